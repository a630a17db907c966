//! Tests of the errors for invalid vocabularies.

use super::*;

fn check(change: impl FnOnce(&mut VocabularyFields<'static>), expect: &str) {
    let mut fields = byte_level(&[("<|end|>", CONTROL)]);
    change(&mut fields);
    let error = refused(fields);
    assert!(error.contains("model.gguf"), "{error}");
    assert!(error.contains(expect), "{error}");
}

#[test]
fn unknown_tokenizers_are_named() {
    check(
        |fields| fields.model = "bert".to_owned(),
        "tokenizer.ggml.model is \"bert\"",
    );
    check(
        |fields| fields.pre = None,
        "tokenizer.ggml.pre is missing, supported: chatglm-bpe",
    );
    check(
        |fields| fields.pre = Some(String::new()),
        "tokenizer.ggml.pre is \"\", supported: chatglm-bpe",
    );
    let default = |fields: &mut VocabularyFields<'static>| fields.pre = Some("default".to_owned());
    check(default, "is \"default\", supported: chatglm-bpe, codeshell");
}

#[test]
fn lists_must_be_consistent() {
    check(
        |fields| fields.tokens.clear(),
        "tokenizer.ggml.tokens is missing or empty",
    );
    check(
        |fields| fields.merges.clear(),
        "tokenizer.ggml.merges is missing or empty",
    );
    check(
        |fields| fields.token_types.truncate(9),
        "token_type has 9 entries, but there are 259 tokens",
    );
    check(
        |fields| fields.scores = vec![0.0; 3],
        "scores has 3 entries, but there are 259 tokens",
    );
    check(
        |fields| fields.token_types[7] = 12,
        "token_type[7] is 12, expected 0 to 6",
    );
    check(
        |fields| fields.token_types[7] = -1,
        "token_type[7] is -1, expected 0 to 6",
    );
}

#[test]
fn duplicate_tokens_are_refused() {
    check(
        |fields| fields.tokens[257] = "th".into(),
        "holds \"th\" twice, as 256 and as 257",
    );
}

#[test]
fn merges_must_join_two_tokens_to_a_token() {
    let merge = |text: &'static str, expect: &str| {
        check(|fields| fields.merges[1] = text.into(), expect);
    };
    merge(
        "the",
        "merges[1] is \"the\", expected two tokens with a space",
    );
    merge("", "expected two tokens with a space");
    merge("é", "expected two tokens with a space");
    merge(" x", "expected two tokens with a space");
    merge("th ", "but \"\" is not a token");
    merge("é é", "but \"éé\" is not a token");
    merge("th o", "but \"tho\" is not a token");
    merge("zz e", "but \"zz\" is not a token");
    merge("the the", "but \"thethe\" is not a token");
    let long = "long ".repeat(9);
    check(
        |fields| fields.merges[1] = long.into(),
        "\"long long long long long long long long \"...",
    );
}

#[test]
fn ids_must_be_in_the_vocabulary() {
    check(
        |fields| fields.eos_id = Some(259),
        "eos_token_id is 259, but there are 259 tokens",
    );
    check(
        |fields| fields.padding_id = Some(u32::MAX),
        "padding_token_id is 4294967295, but",
    );
}

#[test]
fn absurd_sizes_are_refused() {
    check(
        |fields| fields.tokens[0] = "x".repeat((1 << 16) + 1).into(),
        "tokens[0] has 65537 bytes, the limit is 65536",
    );
    check(
        |fields| fields.tokens.resize((1 << 21) + 1, "".into()),
        "tokenizer.ggml.tokens has 2097153 entries, the limit is 2097152",
    );
    check(
        |fields| fields.chat_template = Some("x".repeat((4 << 20) + 1)),
        "chat_template has 4194305 bytes",
    );
}

#[test]
fn scores_are_required_and_long_tokens_are_refused() {
    let pieces = |n: usize| {
        let tokens: Vec<String> = (1..=n).map(|length| "a".repeat(length)).collect();
        VocabularyFields {
            model: "llama".to_owned(),
            token_types: vec![1; n],
            scores: vec![0.0; n],
            tokens: owned(tokens),
            ..VocabularyFields::default()
        }
    };
    load(pieces(100));
    let error = refused(pieces(1500));
    assert!(
        error.contains("too many or too long tokens: deriving the merges"),
        "{error}"
    );
    let error = refused(VocabularyFields {
        scores: Vec::new(),
        ..pieces(3)
    });
    assert!(
        error.contains("tokenizer.ggml.scores is missing"),
        "{error}"
    );
    let nan = VocabularyFields {
        scores: vec![f32::NAN; 3],
        ..pieces(3)
    };
    load(nan);
}
