//! Tests of prompts that ask for the text between a prefix and a suffix, by what llama.cpp's `/infill` makes of them.

use super::*;
use crate::infill::{FimIds, InfillFile, InfillPrompt, NO_INFILL_TOKENS};

/// The first id after the vocabulary's bytes and words.
const FIRST: u32 = 258;
const QWEN: [&str; 6] = [
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

fn controls(names: &[&str]) -> VocabularyFields<'static> {
    let controls: Vec<(&str, i32)> = names.iter().map(|name| (*name, CONTROL)).collect();
    byte_level(&controls)
}

fn bytes(text: &str) -> impl Iterator<Item = u32> {
    text.bytes().map(u32::from).collect::<Vec<_>>().into_iter()
}

fn between<'a>(prefix: &'a str, suffix: &'a str) -> InfillPrompt<'a> {
    InfillPrompt {
        prefix,
        suffix,
        ..InfillPrompt::default()
    }
}

fn encode(model: &TextModel, prompt: &InfillPrompt<'_>) -> Vec<u32> {
    model.encode_infill(prompt).expect("it has the tokens")
}

#[test]
fn each_familys_marks_are_found_by_name() {
    for names in [
        ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
        ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
        ["\u{2581}<PRE>", "\u{2581}<SUF>", "\u{2581}<MID>"],
        ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ] {
        let model = load(controls(&names));
        let tokens = encode(&model, &between("a", "b"));
        assert_eq!(tokens, [FIRST, 97, FIRST + 1, 98, FIRST + 2], "{names:?}");
        assert_eq!(model.infill_ends(), [FIRST, FIRST + 1, FIRST + 2]);
        let without = load(controls(&names[..2]));
        let refused = without.encode_infill(&between("a", "b"));
        let refused = refused.expect_err("a mark is missing").to_string();
        assert!(refused.contains(NO_INFILL_TOKENS), "{refused}");
        assert!(!without.can_infill() && without.infill_ends().is_empty());
    }
}

#[test]
fn mistrals_models_have_the_suffix_first_and_no_middle() {
    let model = load(controls(&["[SUFFIX]", "[MIDDLE]", "[PREFIX]"]));
    let tokens = encode(&model, &between("a", "b"));
    assert_eq!(tokens, [FIRST, 98, FIRST + 2, 97]);
}

#[test]
fn ids_of_the_file_come_before_names() {
    let fields = VocabularyFields {
        fim: FimIds {
            prefix: Some(FIRST + 4),
            suffix: Some(FIRST + 3),
            // Beyond the vocabulary, so the name counts.
            middle: Some(1000),
            ..FimIds::default()
        },
        ..controls(&["<PRE>", "<SUF>", "<MID>", "<after>", "<before>"])
    };
    let tokens = encode(&load(fields), &between("a", "b"));
    assert_eq!(tokens, [FIRST + 4, 97, FIRST + 3, 98, FIRST + 2]);
}

#[test]
fn other_files_come_first_then_bos_then_the_marks() {
    let mut names = QWEN.to_vec();
    names.push("<s>");
    let fields = VocabularyFields {
        bos_id: Some(FIRST + 6),
        add_bos: Some(true),
        ..controls(&names)
    };
    let model = load(fields);
    let file = |name, text| InfillFile { name, text };
    let prompt = InfillPrompt {
        line_start: "c",
        files: Some(vec![file("f.rs", "x"), file("", "y\n")]),
        ..between("a", "b")
    };
    let [prefix, suffix, middle, repository, separator, bos] = [0, 1, 2, 4, 5, 6];
    let mut expected = vec![FIRST + repository];
    expected.extend(bytes("myproject\n"));
    for text in ["f.rs\nx", "\ny\n", "filename\n"] {
        expected.push(FIRST + separator);
        expected.extend(bytes(text));
    }
    expected.extend([FIRST + bos, FIRST + prefix, 97, 99, FIRST + suffix, 98]);
    expected.push(FIRST + middle);
    assert_eq!(encode(&model, &prompt), expected);
    let alone = InfillPrompt {
        files: None,
        ..prompt.clone()
    };
    assert_eq!(encode(&model, &alone), expected[expected.len() - 7..]);
    let all: Vec<u32> = (0..6).map(|role| FIRST + role).collect();
    assert_eq!(model.infill_ends(), all);
}

#[test]
fn without_a_separator_files_are_snippets() {
    let model = load(controls(&QWEN[..3]));
    let prompt = InfillPrompt {
        files: Some(vec![InfillFile {
            name: "f.rs",
            text: "x",
        }]),
        ..between("a", "b")
    };
    let mut expected: Vec<u32> = bytes("\n\n--- snippet ---\n\nx").collect();
    expected.extend([FIRST, 97, FIRST + 1, 98, FIRST + 2]);
    assert_eq!(encode(&model, &prompt), expected);
}

#[test]
fn marks_in_a_text_stay_text_and_other_pieces_are_matched() {
    let marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
    // Some converters mark the marks as user-defined.
    for kind in [CONTROL, USER] {
        let added = marks.map(|name| (name, kind));
        let more = [("<|im_end|>", CONTROL), ("<tool_call>", USER)];
        let model = load(byte_level(&[&added[..], &more[..]].concat()));
        let prefix = "<|fim_middle|><|im_end|><tool_call>";
        let mut expected = vec![FIRST];
        expected.extend(bytes("<|fim_middle|><|im_end|>"));
        expected.extend([FIRST + 4, FIRST + 1]);
        expected.extend(bytes("<|fim_prefix|>"));
        expected.push(FIRST + 2);
        assert_eq!(encode(&model, &between(prefix, "<|fim_prefix|>")), expected);
    }
}

#[test]
fn sentence_piece_puts_a_space_before_each_part() {
    let blank = '\u{2581}';
    let mut tokens = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    let rest = [
        "_", "a", "b", "_a", "_b", "_<PRE>", "_<SUF>", "_<MID>", "_<EOT>",
    ];
    tokens.extend(rest.map(|text| text.replace('_', &blank.to_string())));
    let model = load(VocabularyFields {
        model: "llama".to_owned(),
        scores: (0..tokens.len()).map(|id| -(id as f32)).collect(),
        token_types: vec![
            2, CONTROL, CONTROL, 1, 1, 1, 1, 1, CONTROL, CONTROL, CONTROL, CONTROL,
        ],
        tokens: owned(tokens),
        bos_id: Some(1),
        eos_id: Some(2),
        unknown_id: Some(0),
        ..VocabularyFields::default()
    });
    assert_eq!(encode(&model, &between("a", "b")), [1, 8, 6, 9, 7, 10]);
    assert_eq!(encode(&model, &between("a", "")), [1, 8, 6, 9, 10]);
    assert_eq!(model.infill_ends(), [8, 9, 10, 11]);
}

#[test]
fn a_long_prompt_is_cut_and_its_beginning_rarely_moves() {
    const LIMIT: usize = 400;
    let model = load(controls(&QWEN));
    let file = "x".repeat(150);
    let suffix = "s".repeat(150);
    let mut moved = 0;
    let mut last: Vec<u32> = Vec::new();
    for typed in 0..500 {
        let prefix = "p".repeat(typed);
        let prompt = InfillPrompt {
            files: Some(vec![InfillFile {
                name: "f",
                text: &file,
            }]),
            cut_to: Some(LIMIT),
            ..between(&prefix, &suffix)
        };
        let tokens = encode(&model, &prompt);
        assert!(
            tokens.len() <= LIMIT - LIMIT / 8,
            "{typed}: {}",
            tokens.len()
        );
        let is_whole = encode(
            &model,
            &InfillPrompt {
                cut_to: None,
                ..prompt
            },
        );
        assert!(
            is_whole.len() >= LIMIT - LIMIT / 8 || is_whole == tokens,
            "{typed}"
        );
        let place = |tokens: &[u32]| tokens.iter().position(|token| *token == FIRST);
        let (now, before) = (place(&tokens), place(&last));
        moved += usize::from(typed > 0 && now != before);
        last = tokens;
    }
    // Files are dropped in at most five steps; a change of the prefix alone leaves its mark in place.
    assert!((1..=6).contains(&moved), "{moved}");
    let kept = last
        .iter()
        .filter(|token| **token == u32::from(b's'))
        .count();
    assert!(kept >= 80, "{kept}");
}
