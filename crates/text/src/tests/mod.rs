//! Tests of `TextModel`: tokenizer, chat templates and formats.

mod formats;
mod images;
mod images_in_texts;
mod turns;

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::*;
use souffleur_output::detok::{TextOptions, TextStream};

struct ModelDir(TempDir);

impl ModelDir {
    fn new(tokenizer: &Value) -> Self {
        let dir = Self(tempfile::tempdir().expect("a temporary directory"));
        dir.with("tokenizer.json", &tokenizer.to_string())
    }

    fn with(self, name: &str, text: &str) -> Self {
        std::fs::write(self.0.path().join(name), text).expect("a writable directory");
        self
    }

    fn with_config(self, config: &Value) -> Self {
        self.with("tokenizer_config.json", &config.to_string())
    }

    fn load(&self) -> TextModel {
        TextModel::load(self.0.path()).expect("a valid directory")
    }

    fn refused(&self) -> String {
        TextModel::load(self.0.path())
            .expect_err("an invalid directory")
            .to_string()
    }
}

/// GPT-2's printable stand-in for each byte.
fn byte_characters() -> Vec<char> {
    let mut next = 256;
    let printable = |byte: &u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let stand_in = |byte: u32| {
        if printable(&byte) {
            byte
        } else {
            next += 1;
            next - 1
        }
    };
    (0..256)
        .map(stand_in)
        .map(|code| char::from_u32(code).expect("below 324"))
        .collect()
}

/// Byte-level BPE with one id for each byte, `th`, `the` and three special tokens.
fn byte_level() -> Value {
    let mut vocab: Map<String, Value> = Map::new();
    for (id, character) in byte_characters().iter().enumerate() {
        vocab.insert(character.to_string(), json!(id));
    }
    vocab.insert("th".to_owned(), json!(256));
    vocab.insert("the".to_owned(), json!(257));
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "!"},
        "added_tokens": added(&[(258, "<|begin|>"), (259, "<|im_start|>"), (260, "<|im_end|>")]),
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocab, "merges": ["t h", "th e"]},
    })
}

/// The tokenizer of `byte_level` with more special tokens.
fn byte_level_with(tokens: &[&str]) -> Value {
    let mut tokenizer = byte_level();
    let list = tokenizer["added_tokens"].as_array_mut().expect("a list");
    let numbered = (261..).zip(tokens.iter().copied());
    let more = added(&numbered.collect::<Vec<_>>());
    list.extend(more.as_array().expect("a list").iter().cloned());
    tokenizer
}

fn added(tokens: &[(u32, &str)]) -> Value {
    let flags = |&(id, content): &(u32, &str)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    };
    tokens.iter().map(flags).collect()
}

/// Llama 2's kind of SentencePiece tokenizer: spaces as `▁`, byte fallback, `<s>` before a prompt.
fn metaspace(decoder: Value) -> Value {
    let mut vocab = vec![
        json!(["<unk>", 0.0]),
        json!(["<s>", 0.0]),
        json!(["</s>", 0.0]),
    ];
    for piece in ["▁", "▁Hello", "▁world", "Hello", "▁▁", ",", "é", "▁a", "b"] {
        vocab.push(json!([piece, -1.0 - piece.len() as f64 / 100.0]));
    }
    vocab.extend((0..256).map(|byte| json!([format!("<0x{byte:02X}>"), -20.0])));
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added(&[(0, "<unk>"), (1, "<s>"), (2, "</s>")]),
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": decoder,
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": true, "vocab": vocab},
    })
}

fn llama_decoder() -> Value {
    json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})
}

fn metaspace_decoder() -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})
}

fn streamed(model: &TextModel, tokens: &[u32]) -> String {
    let mut stream = TextStream::new(TextOptions::default(), Arc::default(), &[], model);
    let mut text = String::new();
    for &token in tokens {
        stream.push(token, model);
        text += &stream.take_text();
    }
    text + &stream.finish()
}

#[test]
fn text_survives_encoding_and_decoding() {
    let text = "the thé 日本 <html> 😀\n";
    let bytes = ModelDir::new(&byte_level()).load();
    let ids = bytes.encode(text).expect("bytes cover everything");
    assert_eq!(ids[0], 257);
    assert_eq!(bytes.decode(&ids, true, true), text);
    assert_eq!(streamed(&bytes, &ids), text);
    assert_eq!(bytes.vocab_size(), 261);
    let pieces = ModelDir::new(&metaspace(llama_decoder())).load();
    let ids = pieces
        .encode("Hello world, 日")
        .expect("bytes cover everything");
    assert_eq!(ids[..4], [1, 4, 5, 8]);
    assert_eq!(pieces.decode(&ids, true, true), "Hello world, 日");
    assert_eq!(streamed(&pieces, &ids), "Hello world, 日");
}

#[test]
fn special_tokens_are_read_from_strings_and_objects() {
    let config = json!({"bos_token": "<|begin|>", "eos_token": {"content": "<|im_end|>", "lstrip": false},
        "pad_token": null, "model_max_length": 1e30});
    let model = ModelDir::new(&byte_level()).with_config(&config).load();
    assert_eq!(
        (model.bos_id(), model.eos_id(), model.pad_id()),
        (Some(258), Some(260), None)
    );
    assert_eq!(model.encode("<|im_end|>x").expect("valid"), [260, 120]);
    assert_eq!(model.decode(&[260, 120], true, true), "x");
    assert_eq!(model.decode(&[260, 120, 9999], false, true), "<|im_end|>x");
}

#[test]
fn the_bos_token_goes_before_prompts_and_not_before_chats() {
    let pieces = metaspace(llama_decoder());
    for (add_bos, prompt) in [
        (json!(null), vec![1, 4]),
        (json!(true), vec![1, 4]),
        (json!(false), vec![4]),
    ] {
        let config = json!({"bos_token": "<s>", "add_bos_token": add_bos});
        let model = ModelDir::new(&pieces).with_config(&config).load();
        assert_eq!(model.encode("Hello").expect("valid"), prompt);
        assert_eq!(model.encode_letters("Hello", true).expect("valid"), prompt);
        assert_eq!(model.encode_chat("<s>Hello").expect("valid")[0], 1);
        assert_eq!(model.encode_chat("Hello").expect("valid"), [4]);
    }
    let config = json!({"bos_token": "<|begin|>", "add_bos_token": true});
    let bytes = ModelDir::new(&byte_level()).with_config(&config).load();
    assert_eq!(bytes.encode("a").expect("valid"), [258, 97]);
    assert_eq!(bytes.encode_chat("<|begin|>a").expect("valid"), [258, 97]);
}

#[test]
fn names_of_special_tokens_are_letters_on_request() {
    const TEXT: &str = "<|begin|>a";
    let config = json!({"bos_token": "<|begin|>", "add_bos_token": true});
    let model = ModelDir::new(&byte_level()).with_config(&config).load();
    let mut letters: Vec<u32> = TEXT.bytes().map(u32::from).collect();
    assert_eq!(model.encode_letters(TEXT, false).expect("valid"), letters);
    letters.insert(0, 258);
    assert_eq!(model.encode_letters(TEXT, true).expect("valid"), letters);
    assert!(model.encode_letters("", false).expect("valid").is_empty());
}

#[test]
fn the_text_of_a_token_keeps_its_leading_space() {
    let pieces = ModelDir::new(&metaspace(llama_decoder())).load();
    let texts = [4, 6, 3, 2, 9999].map(|id| pieces.token_text(id));
    assert_eq!(texts, [" Hello", "Hello", " ", "</s>", ""]);
    let bytes = ModelDir::new(&byte_level()).load();
    let texts = [257, 32, 0xe6, 260].map(|id| bytes.token_text(id));
    assert_eq!(texts, ["the", " ", "\u{fffd}", "<|im_end|>"]);
}

#[test]
fn missing_and_broken_files_are_named() {
    let dir = ModelDir(tempfile::tempdir().expect("a temporary directory"));
    assert!(
        dir.refused().contains("tokenizer.json: "),
        "{}",
        dir.refused()
    );
    for (name, text) in [
        ("tokenizer.json", "{\"version\": 1"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", "{\"bos_token\": 3}"),
        (
            "tokenizer_config.json",
            "{\"eos_token\": {\"contents\": 3}}",
        ),
        ("tokenizer_config.json", "{\"chat_template\": 3}"),
        (
            "tokenizer_config.json",
            "{\"chat_template\": [{\"name\": \"x\", \"template\": \"y\"}]}",
        ),
        ("chat_template.json", "nonsense"),
    ] {
        let error = ModelDir::new(&byte_level()).with(name, text).refused();
        assert!(error.contains(&format!("{name}: ")), "{error}");
    }
}

#[test]
fn a_template_file_wins_over_the_configuration() {
    let messages = json!([{"role": "user", "content": "x"}]);
    let render = |dir: &ModelDir| {
        dir.load()
            .render_chat(&ChatPrompt::new(&messages))
            .expect("valid")
    };
    let dir = ModelDir::new(&byte_level()).with_config(&json!({"chat_template": "config"}));
    assert_eq!(render(&dir), "config");
    let dir = dir.with("chat_template.json", "{\"chat_template\": \"json\"}");
    assert_eq!(render(&dir), "json");
    assert_eq!(render(&dir.with("chat_template.jinja", "jinja")), "jinja");
}

#[test]
fn the_tool_use_template_renders_chats_with_tools() {
    let named = json!({"chat_template": [
        {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]});
    let model = ModelDir::new(&byte_level()).with_config(&named).load();
    let (messages, tools) = (
        json!([{"role": "user", "content": "x"}]),
        json!([{"type": "function"}]),
    );
    let plain = ChatPrompt::new(&messages);
    assert_eq!(model.render_chat(&plain).expect("valid"), "plain");
    let tools = serde_json::value::to_raw_value(&tools).expect("it is JSON");
    let with_tools = ChatPrompt {
        tools: Some(&tools),
        ..plain
    };
    assert_eq!(model.render_chat(&with_tools).expect("valid"), "tools");
}

#[test]
fn without_a_usable_template_chats_are_refused_and_prompts_are_not() {
    let messages = json!([{"role": "user", "content": "x"}]);
    let model = ModelDir::new(&byte_level()).load();
    assert!(!model.has_chat_template());
    let error = model
        .render_chat(&ChatPrompt::new(&messages))
        .expect_err("no template")
        .to_string();
    assert!(error.contains("no chat template"), "{error}");
    let broken = ModelDir::new(&byte_level())
        .with("chat_template.jinja", "{% if %}")
        .load();
    let error = broken
        .render_chat(&ChatPrompt::new(&messages))
        .expect_err("broken")
        .to_string();
    assert!(
        error.contains("chat_template.jinja does not compile"),
        "{error}"
    );
    assert_eq!(broken.encode("a").expect("valid"), [97]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn streamed_text_is_the_decoded_whole(
        bytes in prop::collection::vec(0u32..280, 0..60),
        pieces in prop::collection::vec(0u32..12, 0..60),
    ) {
        let model = ModelDir::new(&byte_level()).load();
        prop_assert_eq!(streamed(&model, &bytes), model.decode(&bytes, true, true));
        for decoder in [llama_decoder(), metaspace_decoder()] {
            let model = ModelDir::new(&metaspace(decoder)).load();
            prop_assert_eq!(streamed(&model, &pieces), model.decode(&pieces, true, true));
        }
    }
}
