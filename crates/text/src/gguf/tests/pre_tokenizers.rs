//! Tests that named pre-tokenizers split texts as the `tokenizer.json` files of their models do.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::lines::lines;
use super::*;

/// Number of generated texts per pre-tokenizer.
const N_TEXTS: usize = 2_000;

/// Pre-tokenizers in the `tokenizer.json` of Llama 3, Mistral's Tekken, Qwen3.5, gpt-oss, DeepSeek-V3 and Falcon.
fn published() -> Vec<(&'static str, Vec<Value>)> {
    let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let bytes = |words: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": words});
    let then_bytes = |regexes: &[&str]| {
        let splits = regexes.iter().map(|regex| split(regex));
        splits.chain([bytes(false)]).collect::<Vec<_>>()
    };
    let llama = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let qwen35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let tekken = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let gpt = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let deepseek = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
    let falcon = vec![
        json!({"type": "Punctuation", "behavior": "Contiguous"}),
        bytes(true),
        json!({"type": "Digits", "individual_digits": false}),
        split("[0-9][0-9][0-9]"),
    ];
    vec![
        ("llama-bpe", then_bytes(&[llama])),
        ("tekken", then_bytes(&[tekken])),
        ("qwen35", then_bytes(&[qwen35])),
        ("gpt-4o", then_bytes(&[gpt])),
        (
            "deepseek-v3",
            then_bytes(&[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", deepseek]),
        ),
        ("falcon", falcon),
    ]
}

/// Bytes, most byte pairs that may span two words (so that ids show how a text is split), and words without merges.
fn vocabulary() -> VocabularyFields<'static> {
    let mut fields = byte_level(&[]);
    let bytes: Vec<String> = fields.tokens[..256]
        .iter()
        .map(|text| text.to_string())
        .collect();
    let in_ascii = |byte: &usize| matches!(byte, 0x20..=0x7e | 0x0a | 0x0d | 0x09);
    let ends = |byte: &usize| matches!(byte, 0x80..=0xbf);
    let begins = |byte: &usize| matches!(byte, 0xc2..=0xe3 | 0xef..=0xf0);
    let marks = |byte: &usize| b" '\n/!7sS".contains(&(*byte as u8));
    let pairs = (0..256 * 256).map(|pair| (pair / 256, pair % 256));
    let mut pairs: Vec<(usize, usize)> = pairs
        .filter(|(left, right)| {
            in_ascii(left) && in_ascii(right)
                || ends(left) && (begins(right) || marks(right))
                || begins(left) && ends(right)
                || marks(left) && begins(right)
        })
        .collect();
    fastrand::Rng::with_seed(7).shuffle(&mut pairs);
    let existing: HashSet<String> = fields.tokens.iter().map(|text| text.to_string()).collect();
    for (left, right) in pairs {
        let (left, right) = (&bytes[left], &bytes[right]);
        let both = format!("{left}{right}");
        if !existing.contains(&both) {
            fields.merges.push(format!("{left} {right}").into());
            fields.tokens.push(both.into());
        }
    }
    for word in ["ĠMerge", "don", "123", "ing"] {
        fields.tokens.push(word.into());
    }
    fields.token_types = vec![1; fields.tokens.len()];
    fields.tokens.push("<|begin|>".into());
    fields.token_types.push(CONTROL);
    fields.bos_id = Some(fields.tokens.len() as u32 - 1);
    fields
}

fn tokenizer_json(fields: &VocabularyFields<'_>, name: &str, steps: Vec<Value>) -> Value {
    let vocab: serde_json::Map<String, Value> = fields
        .tokens
        .iter()
        .enumerate()
        .map(|(id, text)| (text.to_string(), json!(id)))
        .collect();
    let merges: Vec<&str> = fields.merges.iter().map(AsRef::as_ref).collect();
    let normalizer = match name {
        "qwen35" => json!({"type": "NFC"}),
        _ => Value::Null,
    };
    let bos = fields.bos_id.expect("a BOS id");
    let begin = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [bos], "tokens": ["<|begin|>"]}}});
    let begins = matches!(name, "llama-bpe" | "tekken");
    json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": bos, "content": "<|begin|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": if begins { begin } else { Value::Null },
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": begins,
            "vocab": vocab, "merges": merges}})
}

/// Texts that the pre-tokenizers split differently, and texts in many scripts.
fn texts() -> Vec<String> {
    let own = [
        " Merge WE don't WE'LL camelCaseWord HTTPServer 1234567 12,345.67 x//y\n//\r\n  z ",
        "it'\u{17f} 'S 're\u{301} a\u{301}b क्षत्रिय e\u{301}\u{301}9\u{661}\u{662} \u{2160}\u{bd}",
        "漢字かな交じり文123カナ!?…\n\n\t x\u{a0}\u{3000}y  \r\n",
        "#include <a.h> $x = @y; `code` ^|~ +1 ²³ 100000000",
    ];
    let mut texts = own.map(str::to_owned).to_vec();
    texts.extend(
        lines(19, &["<|begin|>".to_owned()])
            .into_iter()
            .take(N_TEXTS),
    );
    texts
}

/// Checks that both models encode a text to the same ids, and returns the ids without BOS.
fn same_ids(expected: &TextModel, found: &TextModel, (name, text): (&str, &str)) -> Vec<u32> {
    let prompts = [expected, found].map(|model| model.encode(text).expect("bytes are covered"));
    assert_eq!(prompts[1], prompts[0], "{name}: {text:?}");
    let decoded = [expected, found].map(|model| model.decode(&prompts[0], true, true));
    assert_eq!(decoded[1], decoded[0], "{name}: {text:?}");
    let chats = [expected, found].map(|model| model.encode_chat(text).expect("bytes are covered"));
    let [expected, found] = chats;
    assert_eq!(found, expected, "{name}: {text:?}");
    expected
}

#[test]
fn named_pre_tokenizers_split_texts_as_their_files_do() {
    let (fields, texts) = (vocabulary(), texts());
    let mut all = Vec::new();
    for (name, steps) in published() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let json = tokenizer_json(&fields, name, steps).to_string();
        for (file, text) in [
            ("tokenizer.json", json.as_str()),
            ("tokenizer_config.json", "{}"),
        ] {
            std::fs::write(dir.path().join(file), text).expect("writable");
        }
        let expected = TextModel::load(dir.path()).expect("a full model");
        let found = load(VocabularyFields {
            pre: Some(name.to_owned()),
            ..fields.clone()
        });
        let chats = texts
            .iter()
            .map(|text| same_ids(&expected, &found, (name, text)));
        all.push((name, chats.collect::<Vec<_>>()));
    }
    // The texts must tell the pre-tokenizers apart.
    for (at, (name, ids)) in all.iter().enumerate() {
        for (other, others) in &all[..at] {
            let differ = ids.iter().zip(others).filter(|(a, b)| a != b).count();
            assert!(differ > N_TEXTS / 20, "{name} and {other}: {differ}");
        }
    }
}
