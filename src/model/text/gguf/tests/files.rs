//! The vocabulary files that llama.cpp tests itself with, if a folder has them: `tools/gguf/vocabularies.py` puts them
//! there.

use std::fs;

use serde_json::Value;
use tokenizers::NormalizedString;
use tokenizers::normalizers::NFC;
use tokenizers::tokenizer::Normalizer;

use super::*;

/// Names a folder of JSON files, each with the keys of one vocabulary, `texts` and the `ids` that are expected.
const FOLDER: &str = "SOUFFLEUR_VOCABULARIES";

#[test]
fn vocabulary_files_encode_as_expected() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        println!("skipped: {FOLDER} is not set");
        return;
    };
    let mut files: Vec<_> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    let wrong: usize = files.iter().map(|file| check_file(file)).sum();
    assert_eq!(wrong, 0, "texts with other ids");
}

fn check_file(file: &Path) -> usize {
    let name = file.file_stem().expect("a name").to_string_lossy();
    let json: Value = serde_json::from_slice(&fs::read(file).expect("readable")).expect("JSON");
    let fields = fields_of(&json);
    let ends: Vec<&str> = fields
        .end_token_ids()
        .iter()
        .map(|&id| fields.tokens[id as usize].as_str())
        .collect();
    println!("{name}: ends at {ends:?}");
    let composes = fields.pre.as_deref().and_then(splits::Splits::named);
    let composes = composes.is_some_and(|splits| splits.composes);
    let start = std::time::Instant::now();
    let model = match TextModel::from_vocabulary(file, fields) {
        Ok(model) => model,
        Err(error) => {
            println!("{name}: refused: {error}");
            return 0;
        }
    };
    let took_ms = start.elapsed().as_millis();
    let texts = json["texts"].as_array().expect("a list");
    let ids = json["ids"].as_array().expect("a list");
    let (mut wrong, mut composed) = (0, 0);
    for (text, expected) in texts.iter().zip(ids) {
        let text = text.as_str().expect("text");
        let expected: Vec<u32> = list(expected, |id| id.as_u64().map(|id| id as u32));
        let found = model.encode_chat(text).expect("it is covered");
        if found == expected {
            continue;
        }
        match composes && !is_composed(text) {
            true => composed += 1,
            false => wrong += 1,
        }
        println!("{name}: {text:?}\n  expected {expected:?}\n  found    {found:?}");
    }
    println!(
        "{name}: {} texts, {wrong} wrong, {composed} differ because the model composes them (NFC), built in {took_ms} ms",
        texts.len()
    );
    wrong
}

fn is_composed(text: &str) -> bool {
    let mut composed = NormalizedString::from(text);
    NFC.normalize(&mut composed).expect("it cannot fail");
    composed.get() == text
}

fn fields_of(json: &Value) -> VocabularyFields {
    let text = |key: &str| json[key].as_str().map(str::to_owned);
    let texts = |key: &str| list(&json[key], |value| value.as_str().map(str::to_owned));
    let id = |key: &str| json[key].as_u64().map(|id| id as u32);
    VocabularyFields {
        model: text("model").expect("every file has one"),
        pre: text("pre"),
        tokens: texts("tokens"),
        token_types: list(&json["token_type"], |kind| {
            kind.as_i64().map(|kind| kind as i32)
        }),
        scores: list(&json["scores"], |score| {
            score.as_f64().map(|score| score as f32)
        }),
        merges: texts("merges"),
        bos_id: id("bos_token_id"),
        eos_id: id("eos_token_id"),
        eot_id: id("eot_token_id"),
        eom_id: id("eom_token_id"),
        unknown_id: id("unknown_token_id"),
        padding_id: id("padding_token_id"),
        add_bos: json["add_bos_token"].as_bool(),
        add_eos: json["add_eos_token"].as_bool(),
        add_space_prefix: json["add_space_prefix"].as_bool(),
        ..VocabularyFields::default()
    }
}

fn list<T>(json: &Value, read: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    let values = json.as_array().map(Vec::as_slice).unwrap_or_default();
    let read = |value| read(value).expect("the list holds one kind of value");
    values.iter().map(read).collect()
}
