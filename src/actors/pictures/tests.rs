use serde_json::{Map, Value, json};

use super::*;

/// A GIF of one red pixel.
const GIF: &[u8] =
    b"GIF89a\x01\0\x01\0\x80\0\0\xff\0\0\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;";
const SETTINGS: &str = r#"{"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16,
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}"#;
const TEMPLATE: &str = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
    {% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
    {% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";
const PAD: u32 = 97;

/// A vocabulary of a token for each ASCII letter and sign, and those of images.
fn text_model() -> TextModel {
    let letters = ('!'..='~').chain(['Ġ']);
    let vocab: Map<String, Value> = letters
        .enumerate()
        .map(|(id, letter)| (letter.to_string(), json!(id)))
        .collect();
    let added = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"];
    let added = added.iter().enumerate().map(|(n, content)| {
        json!({"id": 95 + n, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    });
    let added: Vec<Value> = added.collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    });
    let dir = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).expect("the file can be written");
    };
    write("tokenizer.json", &tokenizer.to_string());
    write("chat_template.jinja", TEMPLATE);
    TextModel::load(dir.path()).expect("a model's text")
}

fn reader(text: &TextModel, max_tokens: u32) -> ImageReader {
    let processor = Processor::from_files(Some(SETTINGS), None, "qwen3_5");
    let mut processor = processor.expect("valid settings");
    processor.limit_tokens(max_tokens).expect("few tokens");
    ImageReader::new(text, processor, b"tower", Limits::default()).expect("it fits")
}

fn chat(content: Value, files: &[&[u8]]) -> ChatPrompt {
    let file = |(index, bytes): (usize, &&[u8])| ImageFile {
        bytes: (*bytes).into(),
        field: format!("messages[0].content[{index}]").into(),
    };
    ChatPrompt {
        images: files.iter().enumerate().map(file).collect(),
        ..ChatPrompt::new(json!([{"role": "user", "content": content}]))
    }
}

fn image() -> Value {
    json!({"type": "image"})
}

fn part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

#[test]
fn images_have_positions_digests_and_pixels() {
    let text = text_model();
    let reader = reader(&text, 4);
    let chat = chat(json!([part("a"), image(), part("b"), image()]), &[GIF, GIF]);
    let read = reader.read(&text, &chat, 100, &|| false).expect("images");
    let [first, second] = &read.prompt.images[..] else {
        panic!("two images");
    };
    let tokens = [
        64, 95, PAD, PAD, PAD, PAD, 96, 65, 95, PAD, PAD, PAD, PAD, 96,
    ];
    assert_eq!(*read.prompt.tokens, tokens);
    assert_eq!((&first.positions, &second.positions), (&(1..7), &(8..14)));
    assert_eq!(
        first.grid,
        ImageGrid {
            rows: 2,
            columns: 2
        }
    );
    assert_eq!((first.pad, first.digest), (PAD, second.digest));
    assert!(first.vectors.is_none());
    let input = first.input.as_ref().expect("pixels");
    assert_eq!((input.n_views(), input.bytes()), (1, 64 * 64 * 3));
    assert_eq!(
        input.grid(0),
        ImageGrid {
            rows: 4,
            columns: 4
        }
    );
    let patches = input.patches(0);
    assert_eq!(patches.len(), 16 * 1536);
    assert!(input.patches_in(0, 3..5) == patches[3 * 1536..5 * 1536]);
    let image = "<|vision_start|><|image_pad|><|vision_end|>";
    let rendered = reader.render(&text, &chat).expect("images");
    assert_eq!(rendered, format!("a{image}b{image}"));
    let counted = reader.count(&text, &chat, 100).expect("images");
    assert_eq!(
        (&counted.tokens[..], counted.images.len()),
        (&tokens[..], 2)
    );
}

#[test]
fn placeholders_of_a_text_stand_for_images() {
    let text = text_model();
    let reader = reader(&text, 4);
    let given = |text: &str, n_images: usize| TextImages {
        text: text.into(),
        images: chat(json!(""), &vec![GIF; n_images]).images,
    };
    let one = given("a<|vision_start|><|image_pad|><|vision_end|>b", 1);
    let read = reader.read_text(&text, &one, 100, &|| false);
    let read = read.expect("an image");
    assert_eq!(*read.prompt.tokens, [64, 95, PAD, PAD, PAD, PAD, 96, 65]);
    assert_eq!(read.prompt.images[0].positions, 1..7);
    for (text_of, n_images) in [("a", 1), ("<|image_pad|><|image_pad|>", 1)] {
        let error = reader.read_text(&text, &given(text_of, n_images), 100, &|| false);
        let error = error.expect_err("another number").to_string();
        assert!(error.contains("and there are 1 images"), "{error}");
    }
}

#[test]
fn another_tower_gives_other_digests() {
    let text = text_model();
    let chat = chat(json!([image()]), &[GIF]);
    let digest = |tower: &[u8]| {
        let processor = Processor::from_files(Some(SETTINGS), None, "").expect("settings");
        let reader = ImageReader::new(&text, processor, tower, Limits::default());
        let read = reader.expect("it fits").read(&text, &chat, 100, &|| false);
        read.expect("an image").prompt.images[0].digest
    };
    assert_eq!(digest(b"a"), digest(b"a"));
    assert_ne!(digest(b"a"), digest(b"b"));
}

#[test]
fn names_in_a_chat_without_images_are_letters() {
    let text = text_model();
    let reader = reader(&text, 4);
    // Longer than the piece that is counted at a time.
    let long = chat(json!("<|image_pad|> ".repeat(1 << 14)), &[]);
    let chat = chat(json!("<|image_pad|>"), &[]);
    let read = reader.read(&text, &chat, 100, &|| false).expect("text");
    assert!(read.prompt.images.is_empty() && !read.prompt.tokens.contains(&PAD));
    assert_eq!(read.text, "<|image_pad|>");
    let plain = ChatPrompt::of_user("image");
    let tokens = read.prompt.tokens.to_vec();
    // With and without a tower the tokens are the same.
    for tower in [None, Some(&reader)] {
        let found = render(tower, &text, &chat, 100).expect("text");
        assert_eq!(found, RenderedChat::Tokens(tokens.clone()));
        let others = render(tower, &text, &plain, 100).expect("text");
        assert_eq!(others, RenderedChat::Text("image".to_owned()));
        let too_long = render(tower, &text, &long, 3).expect_err("too long");
        assert_eq!(too_long.code(), "context_length_exceeded");
    }
}

#[test]
fn errors_name_the_place_and_the_limit() {
    let text = text_model();
    let reader = reader(&text, 4);
    let two = json!([image(), image()]);
    let refusal = |chat: &ChatPrompt, limit: usize| {
        let counted = reader.count(&text, chat, limit).expect_err("is refused");
        let read = reader.read(&text, chat, limit, &|| false);
        assert_eq!(read.expect_err("is refused"), counted);
        if let Err(error) = reader.render(&text, chat) {
            assert_eq!(error, counted);
        }
        counted.to_string()
    };
    let error = refusal(&chat(two.clone(), &[GIF, b"BM"]), 100);
    let expected =
        "messages[0].content[1]: the image's first bytes (42 4d) are those of no known format";
    assert!(error.starts_with(expected), "{error}");
    let error = refusal(&chat(two.clone(), &[GIF, GIF]), 7);
    assert!(error.contains("at least 8"), "{error}");
    let error = refusal(&chat(two, &[GIF]), 100);
    assert!(
        error.contains("writes 2 images, and the messages have 1"),
        "{error}"
    );
    let cut = chat(json!([image()]), &[&GIF[..GIF.len() - 4]]);
    let error = reader
        .read(&text, &cut, 100, &|| false)
        .expect_err("is cut");
    assert!(
        error.to_string().starts_with("messages[0].content[0]: "),
        "{error}"
    );
    let cancelled = reader.read(&text, &chat(json!([image()]), &[GIF]), 100, &|| true);
    assert!(cancelled.is_err());
}
