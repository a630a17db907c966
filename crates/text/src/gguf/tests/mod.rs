//! Tests of tokenizers and chat templates from GGUF metadata.

use std::borrow::Cow;

use super::*;
use souffleur_output::detok::TokenText;

mod equality;
mod fields;
mod infill;
mod lines;
mod pre_tokenizers;
mod refused;
mod sentence_piece;
mod user_defined;

const CONTROL: i32 = 3;
const USER: i32 = 4;
const UNUSED: i32 = 5;

fn load(fields: VocabularyFields<'_>) -> TextModel {
    TextModel::from_vocabulary(Path::new("model.gguf"), fields).expect("a valid vocabulary")
}

fn refused(fields: VocabularyFields<'_>) -> String {
    TextModel::from_vocabulary(Path::new("model.gguf"), fields)
        .expect_err("an invalid vocabulary")
        .to_string()
}

fn owned(texts: impl IntoIterator<Item = String>) -> Vec<Cow<'static, str>> {
    texts.into_iter().map(Cow::Owned).collect()
}

/// Bytes spelled by GPT-2's table, `th`, `the`, and the tokens of `added` with their types.
fn byte_level(added: &[(&str, i32)]) -> VocabularyFields<'static> {
    let printable = |byte: &u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    let mut spelled = |byte: u32| {
        if printable(&byte) {
            char::from_u32(byte)
        } else {
            next += 1;
            char::from_u32(next - 1)
        }
    };
    let bytes = (0..256).map(|byte| spelled(byte).expect("below 324").to_string());
    let mut tokens: Vec<String> = bytes.collect();
    tokens.extend(["th", "the"].map(str::to_owned));
    let mut token_types = vec![1; tokens.len()];
    for (text, kind) in added {
        tokens.push((*text).to_owned());
        token_types.push(*kind);
    }
    VocabularyFields {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens: owned(tokens),
        token_types,
        merges: owned(["t h", "th e"].map(str::to_owned)),
        ..VocabularyFields::default()
    }
}
