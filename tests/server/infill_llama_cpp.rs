//! Tests that the prompts of `POST /infill` are llama.cpp's, token by token, for each family of tokens.
//!
//! `tools/infill/record` writes the models' files and the tokens that llama.cpp's server evaluates.

use std::fs;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::http::post;
use crate::repository::repository;
use crate::world::World;

const QWEN: &str = "qwen2.5-coder";
const CODELLAMA: &str = "codellama";
const CODESTRAL: &str = "codestral";
/// The families, with their marks of prefix and suffix.
const FAMILIES: [(&str, [&str; 2]); 6] = [
    (QWEN, ["<|fim_prefix|>", "<|fim_suffix|>"]),
    ("starcoder", ["<fim_prefix>", "<fim_suffix>"]),
    ("deepseek-coder", ["<｜fim▁begin｜>", "<｜fim▁hole｜>"]),
    (CODELLAMA, ["\u{2581}<PRE>", "\u{2581}<SUF>"]),
    ("codegemma", ["<|fim_prefix|>", "<|fim_suffix|>"]),
    (CODESTRAL, ["[PREFIX]", "[SUFFIX]"]),
];

fn fixture(name: &str) -> PathBuf {
    repository().join("tests/fixtures/infill").join(name)
}

fn recording() -> Value {
    let text = fs::read_to_string(fixture("prompts.json")).expect("the fixture exists");
    serde_json::from_str(&text).expect("the fixture is JSON")
}

/// The calls of a kind, by name.
fn calls<'a>(recording: &'a Value, kind: &str) -> &'a Map<String, Value> {
    recording[kind].as_object().expect("calls by name")
}

/// A server with the model of a family, and llama.cpp's prompts for this model.
struct Family {
    name: &'static str,
    prompts: Value,
    world: World,
}

impl Family {
    fn new(name: &'static str, recording: &Value) -> Self {
        let path = fixture(&format!("{name}.gguf"));
        Self {
            name,
            prompts: recording[name].clone(),
            world: World::with(|engine, _| engine.model_path = path),
        }
    }

    fn recorded(&self, case: &str) -> Vec<u32> {
        let prompt = self.prompts[case].clone();
        let mut tokens: Vec<u32> = serde_json::from_value(prompt).expect("a list of tokens");
        if self.name == CODESTRAL {
            // llama.cpp ends each prompt with a token of the middle. Mistral's models are trained without one.
            tokens.pop();
        }
        tokens
    }

    /// Checks that a call's prompt has these tokens: as many, and all of them are in the cache afterwards.
    #[track_caller]
    fn check(&self, case: &str, call: &Value, expected: &[u32]) {
        let addr = self.world.addr;
        self.world.wait_until_idle();
        post(addr, "/flush_cache", &json!({})).ok();
        let answer = post(addr, "/infill", call).ok();
        let place = format!("{}, {case}", self.name);
        assert_eq!(answer["tokens_evaluated"], expected.len(), "{place}");
        let longer: Vec<u32> = expected.iter().copied().chain([0]).collect();
        let again = json!({"input_ids": longer, "sampling_params": {"max_new_tokens": 1}});
        let answer = post(addr, "/generate", &again).ok();
        let cached = &answer["meta_info"]["cached_tokens"];
        assert_eq!(*cached, expected.len(), "{place}");
    }

    /// The tokens before the first mark, and those after the marks of prefix and suffix.
    fn parts<'a>(&self, tokens: &'a [u32], marks: [&str; 2]) -> [&'a [u32]; 3] {
        let engine = self.world.engine();
        let text = engine.text().expect("the file has a tokenizer");
        let [prefix, suffix] = marks.map(|mark| {
            let id = text.token_id(mark).expect("the mark is a token");
            let place = tokens.iter().position(|token| *token == id);
            place.expect("the prompt has the mark")
        });
        let (first, second) = (prefix.min(suffix), prefix.max(suffix));
        let (one, other) = (&tokens[first + 1..second], &tokens[second + 1..]);
        if prefix < suffix {
            [&tokens[..first], one, other]
        } else {
            [&tokens[..first], other, one]
        }
    }
}

#[test]
fn every_prompt_has_llama_cpps_tokens() {
    let recording = recording();
    for (name, _) in FAMILIES {
        let family = Family::new(name, &recording);
        for (case, call) in calls(&recording, "same") {
            family.check(case, call, &family.recorded(case));
        }
        family.world.wait_until_idle();
    }
}

/// llama.cpp reads special tokens in `prompt`. Here a text of an editor is only text, as in `input_prefix`.
#[test]
fn marks_in_the_line_before_the_cursor_are_letters() {
    let recording = recording();
    let (case, in_prefix) = ("marks in the line", "marks in the prefix");
    for (name, _) in FAMILIES {
        let family = Family::new(name, &recording);
        let expected = family.recorded(in_prefix);
        family.check(case, &recording["different"][case], &expected);
        // CodeLlama's marks begin with U+2581, so llama.cpp finds none either.
        let is_same = family.recorded(case) == expected;
        assert_eq!(is_same, name == CODELLAMA, "{name}");
        family.world.wait_until_idle();
    }
}

/// The tokenizer of Qwen's models composes texts (NFC); llama.cpp's does not.
#[test]
fn qwens_texts_are_composed() {
    let recording = recording();
    let case = "not composed";
    for (name, _) in FAMILIES {
        let family = Family::new(name, &recording);
        let expected = match name {
            QWEN => family.recorded("composed"),
            _ => family.recorded(case),
        };
        family.check(case, &recording["different"][case], &expected);
        let is_same = family.recorded(case) == expected;
        assert_eq!(is_same, name != QWEN, "{name}");
        family.world.wait_until_idle();
    }
}

/// llama.cpp keeps the end of the files, the end of the prefix and the beginning of the suffix, as many tokens as its
/// batch allows. Here a prompt is only cut if it is too long for the context, so that the cached beginning of a long
/// prompt stays the same.
#[test]
fn prompts_that_llama_cpp_cuts_by_its_batch_are_whole() {
    let recording = recording();
    for (name, marks) in FAMILIES {
        let family = Family::new(name, &recording);
        for (case, call) in calls(&recording, "cut") {
            let whole = family.recorded(case);
            family.check(case, call, &whole);
            let cut = family.recorded(&format!("{case}, cut"));
            assert_eq!(whole.last(), cut.last(), "{name}, {case}");
            let n_middles = usize::from(name != CODESTRAL);
            let whole = family.parts(&whole[..whole.len() - n_middles], marks);
            let cut = family.parts(&cut[..cut.len() - n_middles], marks);
            let is_cut: [bool; 3] = std::array::from_fn(|part| cut[part].len() < whole[part].len());
            let expected = match case.as_str() {
                "long prefix" => [false, true, false],
                "long suffix" => [false, false, true],
                _ => [true; 3],
            };
            assert_eq!(is_cut, expected, "{name}, {case}");
            let [files, prefix, suffix] = whole;
            assert!(files.ends_with(cut[0]), "{name}, {case}");
            assert!(prefix.ends_with(cut[1]), "{name}, {case}");
            assert!(suffix.starts_with(cut[2]), "{name}, {case}");
        }
        family.world.wait_until_idle();
    }
}
