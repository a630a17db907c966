//! Tests of images in messages of roles for which templates take text only: their placeholders are within the texts.

use serde_json::{Value, json};

use super::images::{PAD, TEMPLATE, TOKENS, encode, image, marks, model, text, tokens};
use crate::{ChatPrompt, ImagePart};

/// The image of a template that writes no marks around it.
const IMAGE: &str = "<|image_pad|>";

/// As the templates of Ministral 3 and Mistral Small 3.2: users' images are placed, and come first of two parts;
/// results are written with Python's `str`, and answers with other parts than texts are refused.
const AS_STRING: &str = "{%- for message in messages %}\
    {%- if message['role'] == 'user' %}\
    {%- if message['content'] is string %}{{- '[INST]' + message['content'] + '[/INST]' }}\
    {%- elif message['content'] | length > 0 %}{{- '[INST]' }}\
    {%- if message['content'] | length == 2 %}{%- set blocks = message['content'] | sort(attribute='type') %}\
    {%- else %}{%- set blocks = message['content'] %}{%- endif %}\
    {%- for block in blocks %}\
    {%- if block['type'] == 'text' %}{{- block['text'] }}\
    {%- elif block['type'] in ['image', 'image_url'] %}{{- '<|image_pad|>' }}\
    {%- else %}{{- raise_exception('Only text, image and image_url chunks are supported in user message content.') }}\
    {%- endif %}{%- endfor %}{{- '[/INST]' }}\
    {%- else %}{{- raise_exception('User message must have a string or a list of chunks in content') }}{%- endif %}\
    {%- elif message['role'] == 'assistant' %}\
    {%- if message['content'] is string %}{{- message['content'] }}\
    {%- else %}{%- for block in message['content'] %}\
    {%- if block['type'] == 'text' %}{{- block['text'] }}\
    {%- else %}{{- raise_exception('Only text chunks are supported in assistant message contents.') }}{%- endif %}\
    {%- endfor %}{%- endif %}{{- '</s>' }}\
    {%- elif message['role'] == 'tool' %}{{- '[TOOL_RESULTS]' + message['content']|string + '[/TOOL_RESULTS]' }}\
    {%- else %}{{- raise_exception('Only user, assistant and tool roles are supported, got ' + message['role']) }}\
    {%- endif %}{%- endfor %}";

/// Users' images are placed with a text before them. `{}` stands for the code of the other messages.
const USERS_ONLY: &str = "{% for m in messages %}[{{ m.role }}]{% if m.role == 'user' %}\
    {% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}\
    {% if p.type == 'image' %}P:<|image_pad|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}\
    {% else %}{}{% endif %}{% endfor %}";

/// The text of a chat with a name for each image, or the error.
fn rendered(template: &str, messages: &Value, n_images: usize) -> Result<String, String> {
    let model = model(template);
    let marks = marks(&model);
    let rendered = model.render_images(&marks, &ChatPrompt::new(messages));
    let rendered = rendered.map_err(|error| error.to_string())?;
    let checked = marks.check_number(&rendered, n_images);
    checked.map_err(|error| error.to_string())?;
    Ok(rendered.text)
}

#[test]
fn results_that_are_written_as_strings_have_their_images() {
    let messages = json!([
        {"role": "user", "content": [text("q"), image()]},
        {"role": "assistant", "content": "c"},
        {"role": "tool", "content": [text("a"), image(), text("b"), image()]},
        {"role": "tool", "content": [text("only")]},
        {"role": "assistant", "content": [text("d"), image()]},
        {"role": "user", "content": [image(), text("e"), image()]},
    ]);
    let vectors = |count: u32| vec![ImagePart::Vectors(count)];
    let images = [1, 2, 3, 4, 5, 6].map(vectors);
    let found = encode(&model(AS_STRING), &ChatPrompt::new(&messages), &images);
    let found = found.expect("six images");
    let texts = [
        "[INST]",
        "q[/INST]c</s>[TOOL_RESULTS]a",
        "b",
        "[/TOOL_RESULTS][TOOL_RESULTS][{'type': 'text', 'text': 'only'}][/TOOL_RESULTS]d",
        "</s>[INST]",
        "e",
        "[/INST]",
    ];
    let (mut expected, mut places) = (Vec::new(), Vec::new());
    for (at, text) in texts.into_iter().enumerate() {
        expected.extend(tokens(&[Ok(text)]));
        if at < images.len() {
            let start = expected.len();
            expected.resize(start + at + 1, PAD);
            places.push(start as u32..expected.len() as u32);
        }
    }
    assert_eq!(found.tokens, expected);
    assert_eq!(found.images, places);
}

#[test]
fn marks_that_the_template_writes_around_images_are_around_those_in_texts() {
    let messages = json!([
        {"role": "user", "content": [image()]},
        {"role": "tool", "content": [text("a"), image(), text("b")]},
    ]);
    let images = [vec![ImagePart::Vectors(1)], vec![ImagePart::Vectors(2)]];
    let found = encode(&model(TEMPLATE), &ChatPrompt::new(&messages), &images);
    let found = found.expect("two images");
    let mark = |index: usize| tokens(&[Ok(TOKENS[index])]);
    let first = tokens(&[Ok("<|im_start|>user ")]);
    let between = tokens(&[Ok("<|im_end|><|im_start|>tool a")]);
    let after = tokens(&[Ok("b<|im_end|>")]);
    let one = [mark(0), vec![PAD], mark(1)].concat();
    let two = [mark(0), vec![PAD; 2], mark(1)].concat();
    let expected = [&first[..], &one, &between, &two, &after].concat();
    assert_eq!(found.tokens, expected);
    let place = first.len() as u32;
    let next = place + 3 + between.len() as u32;
    assert_eq!(found.images, [place..place + 3, next..next + 4]);
}

#[test]
fn roles_that_the_template_does_not_place_are_texts_and_others_are_as_before() {
    let parts = || json!([text("a"), image(), text("b")]);
    let user = "[user]aP:<|image_pad|>b";
    for code in [
        "{{ m.content | string }}",
        "{{ m.content | trim }}",
        "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'text' %}\
         {{ p.text }}{% endif %}{% endfor %}{% endif %}",
        "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content | selectattr('type', 'equalto', 'text') | \
         map(attribute='text') | join(' ') }}{% endif %}",
        "{% if m.content is not string %}{{ raise_exception('Only text content blocks are supported in ' + m.role + \
         ' messages') }}{% endif %}{{ m.content }}",
        "{{ '' + m.content }}",
    ] {
        let template = USERS_ONLY.replace("{}", code);
        for role in ["tool", "assistant", "system", "developer", "function"] {
            let messages = json!([
                {"role": "user", "content": parts()},
                {"role": role, "content": parts()},
                {"role": "user", "content": parts()},
            ]);
            // The template does not know the role `developer`.
            let written = if role == "developer" { "system" } else { role };
            let expected = format!("{user}[{written}]a{IMAGE}b{user}");
            let found = rendered(&template, &messages, 3);
            assert_eq!(found.as_deref(), Ok(&*expected), "{code}");
        }
    }
}

#[test]
fn each_role_is_as_the_template_takes_it() {
    let code = "{% if m.role == 'tool' %}{{ m.content | string }}{% elif m.role == 'system' %}\
        {% if m.content is not string %}{{ raise_exception('no lists') }}{% endif %}{{ m.content }}\
        {% elif m.content is string %}{{ m.content }}\
        {% else %}{% for p in m.content %}{% if p.type == 'image' %}A:<|image_pad|>{% else %}{{ p.text }}{% endif %}\
        {% endfor %}{% endif %}";
    let template = USERS_ONLY.replace("{}", code);
    let parts = || json!([text("a"), image()]);
    let of = |roles: &[&str]| {
        let messages = roles
            .iter()
            .map(|role| json!({"role": role, "content": parts()}));
        let messages = messages.collect();
        rendered(&template, &messages, roles.len())
    };
    for roles in [
        &["system", "user", "assistant", "tool"][..],
        &["assistant", "tool"],
        &["user", "system"],
        &["tool"],
        &["system", "tool"],
        &["user", "assistant"],
    ] {
        let written = roles.iter().map(|role| match *role {
            "user" => "[user]aP:<|image_pad|>",
            "assistant" => "[assistant]aA:<|image_pad|>",
            "tool" => "[tool]a<|image_pad|>",
            _ => "[system]a<|image_pad|>",
        });
        let written: String = written.collect();
        assert_eq!(of(roles), Ok(written), "{roles:?}");
    }
}

#[test]
fn names_in_texts_with_images_are_letters() {
    for (before, after) in [
        (IMAGE, IMAGE),
        ("<|image_", "pad|>"),
        ("<", "|image_pad|>"),
        ("x", "z"),
    ] {
        let messages = json!([{"role": "tool", "content": [text(before), image(), text(after)]}]);
        let found = encode(
            &model(AS_STRING),
            &ChatPrompt::new(&messages),
            &[vec![ImagePart::Vectors(2)]],
        );
        let found = found.expect("an image");
        let start = tokens(&[Ok("[TOOL_RESULTS]"), Err(before)]);
        let end = tokens(&[Err(after), Ok("[/TOOL_RESULTS]")]);
        let expected = [&start[..], &[PAD; 2], &end].concat();
        assert_eq!(found.tokens, expected, "{before}");
        let place = start.len() as u32;
        assert_eq!(
            found.images[..],
            std::slice::from_ref(&(place..place + 2))[..]
        );
    }
}

#[test]
fn other_numbers_of_images_keep_their_errors() {
    let messages = json!([
        {"role": "user", "content": [image()]},
        {"role": "tool", "content": [text("a"), image()]},
    ]);
    for (code, expected) in [
        (
            "{{ m.content | string }}{{ m.content | string }}",
            "the chat template writes 1 images, and the messages have 2: ",
        ),
        (
            "",
            "the chat template writes 1 images, and the messages have 2: ",
        ),
        (
            "{{ raise_exception('no tools with ' ~ '<|image_pad|>') }}",
            "the chat template rejects the messages: no tools with <|image_pad|>",
        ),
    ] {
        let template = USERS_ONLY.replace("{}", code);
        let error = rendered(&template, &messages, 2).expect_err("no place");
        assert!(error.starts_with(expected), "{error}");
    }
    // A part that is neither a text nor an image.
    let messages = json!([{"role": "tool", "content": [image(), {"type": "video"}]}]);
    let error = rendered(AS_STRING, &messages, 1).expect_err("a video");
    let expected = "messages[0].content[1] has type \"video\"";
    assert!(error.starts_with(expected), "{error}");
}
