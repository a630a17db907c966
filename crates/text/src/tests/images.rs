//! Tests of chats with images: placeholders become positions, and names of tokens in messages stay letters.

use serde_json::{Value, json};

use super::{ModelDir, TextModel, byte_level_with};
use crate::{ChatPrompt, ImageMarks, ImageNames, ImagePart, ImageTokens};

pub(super) const TOKENS: [&str; 4] = [
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|extra|>",
];
pub(super) const PAD: u32 = 263;

pub(super) const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}{{ hint }}{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }} {% if m.content is string %}{{ m.content }}{% else %}\
    {% for p in m.content %}{% if p.type == 'image' and m.role != 'tool' %}\
    <|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\
    {% endfor %}";

pub(super) fn model(template: &str) -> TextModel {
    let dir = ModelDir::new(&byte_level_with(&TOKENS));
    dir.with("chat_template.jinja", template).load()
}

pub(super) fn marks(model: &TextModel) -> ImageMarks {
    let names = ImageNames {
        placeholder: TOKENS[2].to_owned(),
        pad: TOKENS[2].to_owned(),
        begin: Some(TOKENS[0].to_owned()),
        end: Some(TOKENS[1].to_owned()),
        others: vec!["<|video_pad|>".to_owned()],
    };
    ImageMarks::find(model, &names).expect("the vocabulary has the tokens")
}

pub(super) fn encode(
    model: &TextModel,
    prompt: &ChatPrompt<'_>,
    images: &[Vec<ImagePart<'_>>],
) -> Result<ImageTokens, String> {
    let marks = marks(model);
    let rendered = model.render_images(&marks, prompt);
    let rendered = rendered.map_err(|error| error.to_string())?;
    let tokens = model.encode_images(&marks, &rendered, images);
    tokens.map_err(|error| error.to_string())
}

fn chat(messages: Value, images: &[Vec<ImagePart<'_>>]) -> Result<ImageTokens, String> {
    let model = model(TEMPLATE);
    encode(&model, &ChatPrompt::new(&messages), images)
}

/// The tokens of texts, one after another: those in which names are tokens, and those in which they are letters.
pub(super) fn tokens(texts: &[Result<&str, &str>]) -> Vec<u32> {
    let model = model(TEMPLATE);
    let encode = |text: &Result<&str, &str>| match text {
        Ok(text) => model.encode_chat(text),
        Err(letters) => model.encode_letters(letters, false),
    };
    let tokens = texts.iter().map(encode);
    tokens.flat_map(|tokens| tokens.expect("bytes")).collect()
}

pub(super) fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

pub(super) fn image() -> Value {
    json!({"type": "image"})
}

#[test]
fn each_placeholder_of_the_template_becomes_an_image() {
    let messages = json!([
        {"role": "system", "content": "s"},
        {"role": "user", "content": [text("a"), image(), text("b"), image()]},
    ]);
    let images = [vec![ImagePart::Vectors(3)], vec![ImagePart::Vectors(1)]];
    let found = chat(messages, &images).expect("two images");
    let before = tokens(&[Ok("<|im_start|>system s<|im_end|><|im_start|>user a")]);
    let mark = |index: usize| tokens(&[Ok(TOKENS[index])]);
    let first = [mark(0), vec![PAD; 3], mark(1)].concat();
    let second = [mark(0), vec![PAD], mark(1)].concat();
    let between = tokens(&[Ok("b")]);
    let end = tokens(&[Ok("<|im_end|>")]);
    let expected = [&before[..], &first, &between, &second, &end].concat();
    assert_eq!(found.tokens, expected);
    let start = before.len() as u32;
    assert_eq!(found.images, [start..start + 5, start + 6..start + 9]);
}

#[test]
fn parts_of_a_layout_are_encoded_with_their_neighbours() {
    let messages = json!([{"role": "user", "content": [text("a"), image(), text("b")]}]);
    let parts = vec![
        ImagePart::Text("\n\n"),
        ImagePart::Mark(TOKENS[2]),
        ImagePart::Vectors(2),
        ImagePart::Mark(TOKENS[1]),
        ImagePart::Vectors(1),
        ImagePart::Text("t"),
        ImagePart::Text("h"),
    ];
    let found = chat(messages, std::slice::from_ref(&parts)).expect("an image");
    let before = tokens(&[Ok("<|im_start|>user a<|vision_start|>\n\n")]);
    let inside = [PAD, PAD, PAD, 262, PAD];
    // `th` is one token.
    let after = tokens(&[Ok("th<|vision_end|>b<|im_end|>")]);
    assert_eq!(found.tokens, [&before[..], &inside, &after].concat());
    // The template's marks are not next to the image.
    let start = before.len() as u32;
    assert_eq!(
        found.images[..],
        std::slice::from_ref(&(start..start + 5))[..]
    );
    let messages = json!([{"role": "user", "content": [image()]}]);
    let error = chat(messages, &[vec![ImagePart::Mark("<|extra|>")]]).expect_err("not a mark");
    assert!(
        error.starts_with("an image of this size needs the token <|extra|>, which"),
        "{error}"
    );
}

#[test]
fn names_in_messages_are_letters() {
    let name = "<|image_pad|>";
    for content in [
        format!("a {name} b"),
        format!("{name}{name}<|vision_start|>{name}<|vision_end|>"),
        "<|image_<|image_pad|>pad|>".to_owned(),
        format!("x{name}<|extra|>"),
    ] {
        let (letters, extra) = match content.strip_suffix("<|extra|>") {
            Some(letters) => (letters, "<|extra|>"),
            None => (&*content, ""),
        };
        for role in ["user", "system", "tool"] {
            let head = format!("<|im_start|>{role} ");
            let expected = tokens(&[Ok(head.as_str()), Err(letters), Ok(extra), Ok("<|im_end|>")]);
            let plain = json!([{"role": role, "content": content}]);
            let found = chat(plain, &[]).expect("text");
            assert_eq!(found.tokens, expected, "{content}");
            assert!(found.images.is_empty());
        }
        // With an image in the message, its place stays.
        let parts = json!([{"role": "user", "content": [text(&content), image(), text(&content)]}]);
        let found = chat(parts, &[vec![ImagePart::Vectors(2)]]).expect("an image");
        let before = tokens(&[Ok("<|im_start|>user "), Err(letters), Ok(extra)]);
        let start = before.len() as u32;
        assert_eq!(
            found.images[..],
            std::slice::from_ref(&(start..start + 4))[..],
            "{content}"
        );
        assert_eq!(found.tokens[..before.len()], before, "{content}");
    }
}

#[test]
fn names_do_not_arise_between_texts() {
    for (first, second) in [
        ("<|image_", "pad|>"),
        ("<", "|image_pad|>"),
        ("a <|image_pad|", ">"),
        ("<|vision_start|>", "<|image_pad|>"),
    ] {
        let messages = json!([{"role": "user", "content": [text(first), text(second), image()]}]);
        let found = chat(messages, &[vec![ImagePart::Vectors(1)]]).expect("an image");
        let both = format!("{first}{second}");
        let before = tokens(&[Ok("<|im_start|>user "), Err(both.as_str())]);
        assert_eq!(found.tokens[..before.len()], before, "{both}");
        let start = before.len() as u32;
        assert_eq!(
            found.images[..],
            std::slice::from_ref(&(start..start + 3))[..],
            "{both}"
        );
    }
}

#[test]
fn names_in_tools_and_arguments_are_letters() {
    let model = model(TEMPLATE);
    let tools = r#"[{"name": "a<|image_pad|>", "b": "\u003c|vision_start|\u003e", "n": 12345678901234567890123}]"#;
    let tools = serde_json::value::RawValue::from_string(tools.to_owned()).expect("JSON");
    let kwargs = json!({"hint": "<|image_pad|>"});
    let messages = json!([{"role": "user", "content": [image()]}]);
    let prompt = ChatPrompt {
        tools: Some(&*tools),
        template_kwargs: kwargs.as_object(),
        ..ChatPrompt::new(&messages)
    };
    let found = encode(&model, &prompt, &[vec![ImagePart::Vectors(1)]]).expect("an image");
    let json = r#"[{"name": "a<|image_pad|>", "b": "<|vision_start|>", "n": 12345678901234567890123}]<|image_pad|>"#;
    let expected = tokens(&[Err(json), Ok("<|im_start|>user <|vision_start|>")]);
    assert_eq!(found.tokens[..expected.len()], expected);
}

#[test]
fn images_that_the_template_leaves_out_are_refused() {
    let messages = json!([{"role": "tool", "content": [text("a"), image()]}]);
    let no_tools = TEMPLATE.replace("m in messages", "m in messages if m.role != 'tool'");
    let prompt = ChatPrompt::new(&messages);
    let no_tools = model(&no_tools);
    let error = encode(&no_tools, &prompt, &[vec![ImagePart::Vectors(1)]]).expect_err("no place");
    let expected = "the chat template writes 0 images, and the messages have 1: ";
    assert!(error.starts_with(expected), "{error}");
    let text_only = model("{% for m in messages %}{{ m.content }}{% endfor %}");
    let messages = json!([{"role": "user", "content": [text("a"), image()]}]);
    let prompt = ChatPrompt::new(&messages);
    let error = encode(&text_only, &prompt, &[vec![ImagePart::Vectors(1)]]).expect_err("no parts");
    let expected = "messages[0].content[1] has type \"image\", only \"text\" is supported";
    assert!(error.starts_with(expected), "{error}");
    let error = text_only.render_chat(&prompt).expect_err("no images");
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[test]
fn missing_tokens_are_named() {
    let model = model(TEMPLATE);
    let names = ImageNames {
        placeholder: "<image>".to_owned(),
        pad: "<|image_pad|>".to_owned(),
        begin: None,
        end: None,
        others: Vec::new(),
    };
    let error = ImageMarks::find(&model, &names).expect_err("is missing");
    assert_eq!(error, "the vocabulary has no added token <image>");
    let marks = marks(&model);
    assert_eq!(marks.pad_id(), PAD);
    assert!(marks.are_in("x<|vision_end|>"));
    assert!(!marks.are_in("<|extra|>|image_pad|><"));
}

#[test]
fn names_are_found_in_tools_and_arguments_without_images() {
    let model = model(TEMPLATE);
    let marks = marks(&model);
    let messages = json!([{"role": "user", "content": "a"}]);
    let found = |tools: &str, kwargs: Value| {
        let tools = serde_json::value::RawValue::from_string(tools.to_owned()).expect("JSON");
        let prompt = ChatPrompt {
            tools: Some(&*tools),
            template_kwargs: kwargs.as_object(),
            ..ChatPrompt::new(&messages)
        };
        let is_in = marks.are_in(&model.render_chat(&prompt).expect("text"));
        (is_in, encode(&model, &prompt, &[]).expect("text").tokens)
    };
    let after = tokens(&[Ok("<|im_start|>user a<|im_end|>")]);
    for (json, hint, expected) in [
        (r#"[{"name": "a", "n": 15}]"#, "", false),
        (r#"[{"name": "<|image_pad|>"}]"#, "", true),
        (r#"[{"<|vision_end|>": {}}]"#, "", true),
        // A part of a name.
        (r#"[{"name": "a<|image_"}]"#, "", false),
        (r#"[{"name": "a<|image_"}]"#, "pad|>", false),
        ("[]", "<|image_pad|>", false),
        ("[{}]", "<|vision_start|><|image_pad|>", true),
    ] {
        let (is_in, found) = found(json, json!({"hint": hint, "other": [1, true]}));
        assert_eq!(is_in, expected, "{json}");
        // Without tools the template writes nothing.
        let written = if json == "[]" {
            String::new()
        } else {
            format!("{json}{hint}")
        };
        let expected = [tokens(&[Err(written.as_str())]), after.clone()].concat();
        assert_eq!(found, expected, "{json} {hint}");
    }
    let (is_in, found) = found(r#"[{"a": "\u003c|image_pad\u007c>"}]"#, json!({}));
    let written = r#"[{"a": "<|image_pad|>"}]"#;
    let expected = [tokens(&[Err(written)]), after].concat();
    assert_eq!((is_in, found), (true, expected));
}

#[test]
fn names_in_calls_and_reasoning_are_letters() {
    let model = model(
        "{% for m in messages %}<|im_start|>{{ m.reasoning_content }}{{ m.content }}{% if m.tool_calls %}\
         {% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endif %}\
         <|im_end|>{% endfor %}",
    );
    let name = "<|image_pad|>";
    for arguments in [
        json!({"a": name}),
        json!(r#"{"a": "<|image_pad|>"}"#),
        json!(r#"{"a": "\u003c|image_p\u0061d|\u003E"}"#),
    ] {
        let call =
            json!({"type": "function", "function": {"name": "look", "arguments": arguments}});
        let messages = json!([
            {"role": "assistant", "content": "b", "reasoning_content": name, "tool_calls": [call]},
        ]);
        let prompt = ChatPrompt::new(&messages);
        let rendered = model.render_chat(&prompt).expect("text");
        assert!(marks(&model).are_in(&rendered));
        let found = encode(&model, &prompt, &[]).expect("text");
        let letters = format!("{name}blook{{\"a\": \"{name}\"}}");
        let expected = tokens(&[Ok("<|im_start|>"), Err(letters.as_str()), Ok("<|im_end|>")]);
        assert_eq!(found.tokens, expected, "{arguments}");
    }
}

#[test]
fn names_do_not_arise_when_a_template_trims_texts() {
    let trims = "{% for m in messages %}{% for p in m.content %}{{ p.text | trim }}{% endfor %}{% endfor %}";
    let model = model(trims);
    let messages = json!([{"role": "user", "content": [text("<|image_ \n"), text(" pad|>")]}]);
    let found = encode(&model, &ChatPrompt::new(&messages), &[]).expect("text");
    assert_eq!(found.tokens, tokens(&[Err("<|image_pad|>")]));
}

/// Templates of calls write keys between brackets.
#[test]
fn names_do_not_arise_from_a_text_and_the_template() {
    for (before, after) in [
        ("<parameter=", ">"),
        ("<", ">"),
        ("<|", "|>"),
        ("<|image_", ""),
    ] {
        let place =
            "{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}";
        let template = format!(
            "{{% for m in messages %}}{{% for p in m.content %}}{place}{before}{{{{ p.text | replace('~', '') }}}}{after}\
             {{% endif %}}{{% endfor %}}{{% endfor %}}"
        );
        let model = model(&template);
        let of_model = marks(&model);
        for key in [
            "x<|image_pad|",
            "|image_pad|",
            "|image_~pad|",
            "image_pad",
            "pad|>",
        ] {
            let all = format!("{before}{}{after}", key.replace('~', ""));
            let letters = tokens(&[Err(all.as_str())]);
            let messages = json!([{"role": "user", "content": [text(key)]}]);
            let prompt = ChatPrompt::new(&messages);
            let plain = model.render_chat(&prompt).expect("text");
            assert_eq!(plain, all);
            assert_eq!(
                of_model.are_in(&plain),
                all.contains("<|image_pad|>"),
                "{all}"
            );
            let found = encode(&model, &prompt, &[]).expect("text");
            assert_eq!(found.tokens, letters, "{all}");
            // The place of an image stays.
            let messages = json!([{"role": "user", "content": [text(key), image()]}]);
            let prompt = ChatPrompt::new(&messages);
            let found = encode(&model, &prompt, &[vec![ImagePart::Vectors(1)]]);
            let found = found.expect("an image").tokens;
            assert_eq!(found, [&letters[..], &[261, PAD, 262]].concat(), "{all}");
        }
    }
}

#[test]
fn errors_of_templates_show_no_stand_in() {
    let model = model(
        "{% for m in messages %}{{ raise_exception('write ' ~ '<|image_pad|>' ~ ' once') }}{% endfor %}",
    );
    let messages = json!([{"role": "user", "content": "a"}]);
    let error = encode(&model, &ChatPrompt::new(&messages), &[]).expect_err("is refused");
    assert!(error.ends_with("write <|image_pad|> once"), "{error}");
}

#[test]
fn names_of_media_are_letters_for_models_that_take_text_only() {
    let model = model(TEMPLATE);
    let marks = model.media_names().expect("the vocabulary has names");
    let messages = json!([{"role": "user", "content": "a<|image_pad|><|vision_start|><|extra|>"}]);
    let prompt = ChatPrompt::new(&messages);
    assert!(marks.are_in(&model.render_chat(&prompt).expect("text")));
    let rendered = model.render_images(marks, &prompt).expect("text");
    assert!(marks.are_letters_in(&rendered));
    let found = model.encode_images(marks, &rendered, &[]).expect("text");
    let letters = "a<|image_pad|><|vision_start|>";
    let head = Ok("<|im_start|>user ");
    let expected = tokens(&[head, Err(letters), Ok("<|extra|><|im_end|>")]);
    assert_eq!(found.tokens, expected);
    // The template's own marks stay tokens, with and without an image.
    let own = "{% for m in messages %}<|image_pad|>{{ m.content }}{% endfor %}";
    let own = self::model(own);
    let marks = own.media_names().expect("the vocabulary has names");
    let rendered = own.render_images(marks, &prompt).expect("text");
    let found = own.encode_images(marks, &rendered, &[]).expect("text");
    assert_eq!(found.tokens.first(), Some(&PAD));
    assert_eq!(found.tokens.iter().filter(|id| **id == PAD).count(), 1);
    let messages = json!([{"role": "user", "content": "a"}]);
    let rendered = own.render_images(marks, &ChatPrompt::new(&messages));
    let rendered = rendered.expect("text");
    assert!(marks.are_in(&rendered.text) && !marks.are_letters_in(&rendered));
    let plain = ModelDir::new(&super::byte_level()).load();
    assert!(plain.media_names().is_none());
}

/// Placeholder, token of a vector, begin, end, and another name.
type FamilyNames = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
);

#[rustfmt::skip]
const FAMILIES: [FamilyNames; 5] = [
    ("<|image_pad|>", "<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"),
    ("<start_of_image>", "<image_soft_token>", "<start_of_image>", "<end_of_image>", "<audio_soft_token>"),
    ("<|image|>", "<|image|>", "<|image>", "<image|>", "<|audio|>"),
    ("[IMG]", "[IMG]", "", "[IMG_END]", "[IMG_BREAK]"),
    ("<image>", "<image>", "<|image_start|>", "<|image_end|>", "<|img_row_1_col_2|>"),
];

/// A model with a family's names, in their order in its vocabulary, and its marks.
fn family((placeholder, pad, begin, end, other): FamilyNames) -> (TextModel, ImageMarks, String) {
    let mut tokens = vec![placeholder, pad, begin, end, other];
    tokens.retain(|name| !name.is_empty());
    tokens.sort_unstable();
    tokens.dedup();
    let template = TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", placeholder);
    let dir = ModelDir::new(&byte_level_with(&tokens));
    let model = dir.with("chat_template.jinja", &template).load();
    let given = |name: &str| (!name.is_empty()).then(|| name.to_owned());
    let names = ImageNames {
        placeholder: placeholder.to_owned(),
        pad: pad.to_owned(),
        begin: given(begin),
        end: given(end),
        others: vec![other.to_owned()],
    };
    let marks = ImageMarks::find(&model, &names).expect("the vocabulary has the tokens");
    (model, marks, tokens.concat())
}

#[test]
fn names_of_every_family_are_letters_in_texts_tools_and_arguments() {
    for names in FAMILIES {
        let (model, marks, all) = family(names);
        let tools = json!([{"name": "a", "description": all, "enum": ["[", "<"]}]).to_string();
        let tools = serde_json::value::RawValue::from_string(tools).expect("JSON");
        let kwargs = json!({"hint": all});
        let messages = json!([
            {"role": "user", "content": [text(&all), image(), text(&all)]},
            {"role": "tool", "content": all},
        ]);
        let prompt = ChatPrompt {
            tools: Some(&*tools),
            template_kwargs: kwargs.as_object(),
            ..ChatPrompt::new(&messages)
        };
        let n_of_images = |found: ImageTokens| found.tokens.iter().filter(|id| **id > 260).count();
        let parts = [vec![ImagePart::Vectors(3)]];
        let rendered = model.render_images(&marks, &prompt).expect("text");
        let found = model.encode_images(&marks, &rendered, &parts);
        assert_eq!(n_of_images(found.expect("an image")), 3, "{all}");
        // Without an image, and without a tower.
        let plain = json!([{"role": "user", "content": all}]);
        let prompt = ChatPrompt {
            messages: &plain,
            ..prompt
        };
        for marks in [&marks, model.media_names().expect("names of media")] {
            assert!(marks.are_in(&model.render_chat(&prompt).expect("text")));
            let rendered = model.render_images(marks, &prompt).expect("text");
            let found = model.encode_images(marks, &rendered, &[]).expect("text");
            assert_eq!(n_of_images(found), 0, "{all}");
            assert_eq!(rendered.text.matches(&*all).count(), 3, "{all}");
        }
    }
}
