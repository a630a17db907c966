//! Tests that a vocabulary in GGUF fields encodes texts as the `tokenizer.json` that it was converted from.

use std::path::PathBuf;

use serde_json::Value;

use super::lines::lines;
use super::*;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name)
}

fn json(dir: &Path, name: &str) -> Value {
    let text = std::fs::read(dir.join(name)).expect("the file is in the repository");
    serde_json::from_slice(&text).expect("JSON")
}

/// The fields that a converter writes for a byte-level `tokenizer.json`.
fn converted(dir: &Path) -> VocabularyFields<'static> {
    let tokenizer = json(dir, "tokenizer.json");
    let config = json(dir, "tokenizer_config.json");
    let n_rows = json(dir, "config.json")["vocab_size"]
        .as_u64()
        .expect("a number") as usize;
    let mut tokens: Vec<String> = (0..n_rows).map(|id| format!("[PAD{id}]")).collect();
    let mut token_types = vec![UNUSED; n_rows];
    for (text, id) in tokenizer["model"]["vocab"].as_object().expect("a map") {
        let id = id.as_u64().expect("an id") as usize;
        tokens[id].clone_from(text);
        token_types[id] = 1;
    }
    for token in tokenizer["added_tokens"].as_array().expect("a list") {
        let id = token["id"].as_u64().expect("an id") as usize;
        tokens[id] = token["content"].as_str().expect("text").to_owned();
        token_types[id] = if token["special"] == true {
            CONTROL
        } else {
            USER
        };
    }
    let merges = tokenizer["model"]["merges"].as_array().expect("a list");
    let merge = |pair: &Value| match pair {
        Value::String(pair) => pair.clone(),
        pair => format!(
            "{} {}",
            pair[0].as_str().expect("text"),
            pair[1].as_str().expect("text")
        ),
    };
    let id_of = |name: &str| {
        let token = config[name].as_str()?;
        Some(tokens.iter().position(|text| text == token)? as u32)
    };
    let splits = tokenizer["pre_tokenizer"].to_string();
    let template = std::fs::read_to_string(dir.join("chat_template.jinja")).ok();
    VocabularyFields {
        model: "gpt2".to_owned(),
        pre: Some(
            if splits.contains("(?i:'s") {
                "qwen2"
            } else {
                "gpt-2"
            }
            .to_owned(),
        ),
        merges: owned(merges.iter().map(merge)),
        bos_id: id_of("bos_token"),
        eos_id: id_of("eos_token"),
        unknown_id: id_of("unk_token"),
        padding_id: id_of("pad_token"),
        add_bos: config["add_bos_token"].as_bool(),
        chat_template: template.or_else(|| Some(config["chat_template"].as_str()?.to_owned())),
        tokens: owned(tokens),
        token_types,
        ..VocabularyFields::default()
    }
}

pub(super) fn check(expected: &TextModel, found: &TextModel, seed: u64) {
    check_vocabulary(expected, found);
    let markers: Vec<String> = expected
        .markers()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    let words = (0..expected.vocab_size() as u32).filter_map(|id| expected.token(id));
    let texts: Vec<String> = words.chain(lines(seed, &markers)).collect();
    for text in &texts {
        check_text(expected, found, text);
    }
    // In joined texts, a word may span the end of one text and the start of the next.
    for some in texts.chunks(500) {
        check_text(expected, found, &some.concat());
    }
}

fn check_vocabulary(expected: &TextModel, found: &TextModel) {
    assert_eq!(found.vocab_size(), expected.vocab_size());
    assert_eq!(found.max_token_bytes(), expected.max_token_bytes());
    assert_eq!(found.special_tokens(), expected.special_tokens());
    assert_eq!(found.pieces(), expected.pieces());
    let sorted = |mut markers: Vec<(String, u32)>| {
        markers.sort_unstable();
        markers
    };
    assert_eq!(sorted(found.markers()), sorted(expected.markers()));
    for id in 0..expected.vocab_size() as u32 + 3 {
        assert_eq!(found.token(id), expected.token(id), "{id}");
        assert_eq!(found.is_special(id), expected.is_special(id), "{id}");
        assert_eq!(found.token_text(id), expected.token_text(id), "{id}");
    }
    assert_eq!(found.has_chat_template(), expected.has_chat_template());
    assert_eq!(found.tool_format(), expected.tool_format());
    assert_eq!(found.reasoning_format(), expected.reasoning_format());
}

fn check_text(expected: &TextModel, found: &TextModel, text: &str) {
    let ids = expected.encode(text).expect("known bytes");
    assert_eq!(found.encode(text).expect("known bytes"), ids, "{text:?}");
    let chat = expected.encode_chat(text).expect("known bytes");
    assert_eq!(
        found.encode_chat(text).expect("known bytes"),
        chat,
        "{text:?}"
    );
    assert_eq!(
        found.encode_fragment(text),
        expected.encode_fragment(text),
        "{text:?}"
    );
    for skip_special in [true, false] {
        let decoded = expected.decode(&ids, skip_special, true);
        assert_eq!(found.decode(&ids, skip_special, true), decoded, "{text:?}");
    }
}

fn check_folder(name: &str, seed: u64) {
    let dir = folder(name);
    let expected = TextModel::load(&dir).expect("a full model");
    check(&expected, &load(converted(&dir)), seed);
}

/// All folders in `tests/fixtures/models` have the same tokenizer, with GPT-2's pre-tokenizer.
#[test]
fn the_fixture_models_encode_alike() {
    check_folder("tests/fixtures/models/llama", 1);
    let text = |name: &str| std::fs::read(folder(name).join("tokenizer.json")).expect("a file");
    for name in ["mistral", "qwen2", "qwen3", "llama-sharded"] {
        let name = format!("tests/fixtures/models/{name}");
        assert!(text(&name) == text("tests/fixtures/models/llama"), "{name}");
    }
}

#[test]
fn the_bundled_model_encodes_alike() {
    check_folder("models/souffleur-tiny", 2);
}

#[test]
fn the_model_for_agents_encodes_alike() {
    check_folder("tests/fixtures/qwen3-agents", 3);
}
