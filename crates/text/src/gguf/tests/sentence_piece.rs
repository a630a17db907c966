//! Tests of SentencePiece vocabularies, built from the bundled model's words.

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::TokenPiece;

/// Special tokens, bytes, characters, and the words of the bundled model that are whole characters.
fn vocabulary() -> VocabularyFields<'static> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/souffleur-tiny");
    let bundled = TextModel::load(&dir).expect("a full model");
    let mut tokens = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    let mut token_types = vec![2, CONTROL, CONTROL];
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    token_types.resize(tokens.len(), 6);
    for piece in bundled.pieces().expect("its spelling is known") {
        if let TokenPiece::Bytes(bytes) = piece
            && let Ok(text) = String::from_utf8(bytes)
        {
            tokens.push(text.replace(' ', "\u{2581}"));
        }
    }
    tokens.extend(["é", "中", "я", "क"].map(str::to_owned));
    token_types.resize(tokens.len(), 1);
    tokens.extend(["\n\n", "  ", "<tool_call>", "[PAD9]"].map(str::to_owned));
    token_types.extend([USER, USER, USER, UNUSED]);
    // Seven tokens share each score, to test ties.
    let scores = (0..tokens.len()).map(|id| -((id / 7) as f32));
    VocabularyFields {
        model: "llama".to_owned(),
        pre: Some("default".to_owned()),
        scores: scores.collect(),
        tokens: owned(tokens),
        token_types,
        bos_id: Some(1),
        eos_id: Some(2),
        unknown_id: Some(0),
        ..VocabularyFields::default()
    }
}

fn tokenizer_json(fields: &VocabularyFields<'_>, prefix: bool) -> Value {
    let in_file = |text: &str| {
        if text.trim().is_empty() {
            text.replace(' ', "\u{2581}")
        } else {
            text.to_owned()
        }
    };
    let mut vocab = serde_json::Map::new();
    let mut added = Vec::new();
    for (id, (text, kind)) in fields.tokens.iter().zip(&fields.token_types).enumerate() {
        if *kind == UNUSED {
            continue;
        }
        vocab.insert(in_file(text), json!(id));
        // An added token is matched before normalization: a run of spaces would match only U+2581, and without the
        // prepended space.
        let is_run = prefix && text.trim_matches(' ').is_empty();
        if matches!(*kind, 2..=4) && !is_run {
            added.push(
                json!({"id": id, "content": in_file(text), "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": *kind != USER}),
            );
        }
    }
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let mut normalizers = vec![replace];
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": normalizers}, "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": ranked(fields)}})
}

/// Every split of a word into two words, by the score of the whole, then the longer left part, then the ids.
/// User-defined runs of spaces come before all words, as in published files.
fn ranked(fields: &VocabularyFields<'_>) -> Vec<[String; 2]> {
    let words = fields.tokens.iter().zip(&fields.token_types).enumerate();
    let ids: HashMap<Vec<char>, usize> = words
        .filter(|(_, (text, kind))| **kind == 1 || (**kind == USER && text.trim().is_empty()))
        .map(|(id, (text, _))| (text.replace(' ', "\u{2581}").chars().collect(), id))
        .collect();
    let mut cuts = Vec::new();
    for (word, id) in &ids {
        for at in 1..word.len() {
            let (left, right) = word.split_at(at);
            if let (Some(left_id), Some(right_id)) = (ids.get(left), ids.get(right)) {
                let is_word = fields.token_types[*id] == 1;
                let score = if is_word {
                    -fields.scores[*id] as i32
                } else {
                    -1
                };
                let last = (*id, *left_id, *right_id);
                let lengths = (usize::MAX - left.len(), usize::MAX - right.len());
                cuts.push(((score, lengths, last), [left, right].map(String::from_iter)));
            }
        }
    }
    cuts.sort();
    cuts.into_iter().map(|(_, cut)| cut).collect()
}

fn check(prefix: bool) {
    let fields = VocabularyFields {
        add_space_prefix: (!prefix).then_some(false),
        ..vocabulary()
    };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, value: &Value| {
        let file: PathBuf = dir.path().join(name);
        std::fs::write(file, value.to_string()).expect("writable");
    };
    write("tokenizer.json", &tokenizer_json(&fields, prefix));
    let config = json!({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"});
    write("tokenizer_config.json", &config);
    let expected = TextModel::load(dir.path()).expect("a full model");
    equality::check(&expected, &load(fields), 4 + u64::from(prefix));
}

#[test]
fn scores_give_the_same_tokens_as_the_merges_of_tokenizer_json() {
    check(true);
}

#[test]
fn texts_without_a_prepended_space_encode_alike() {
    check(false);
}

#[test]
fn gemma_4_merges_plain_text_and_always_begins_with_its_token() {
    let fields = VocabularyFields {
        model: "gemma4".to_owned(),
        pre: None,
        merges: ["\u{2581} a", "a b", "\n \n"].map(Cow::from).to_vec(),
        tokens: [
            "<bos>",
            "<unk>",
            "a",
            "b",
            "\u{2581}",
            "\u{2581}a",
            "ab",
            "\n",
            "\n\n",
            "<0xC3>",
            "<0xA9>",
        ]
        .map(Cow::from)
        .to_vec(),
        token_types: vec![3, 3, 1, 1, 1, 1, 1, 1, 1, 6, 6],
        bos_id: Some(0),
        unknown_id: Some(1),
        add_bos: Some(false),
        ..VocabularyFields::default()
    };
    let model = load(fields);
    let ids = model.encode("ab a\n\né?<bos>").expect("known bytes");
    assert_eq!(ids, [0, 6, 5, 8, 9, 10, 1, 0]);
    assert_eq!(model.decode(&ids[..6], true, true), "ab a\n\né");
}
