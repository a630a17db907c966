//! Tests of all formats of tool calls and reasoning, over HTTP: a scripted model replies in the format of its family,
//! and clients must receive reasoning, text and calls, whole and streamed.
//!
//! A test defines a format by the family's markers, its reasoning tags, and a function that writes calls. The engine
//! detects the format from the checkpoint, as it does with real checkpoints.

mod checkpoint;
mod family;
mod heard;
mod speaker;

use crate::world::World;
use family::{Call, Family, Form, Said, Thoughts};
use heard::Heard;
use speaker::{Speaker, ask, call};

const THINK: Thoughts = Thoughts::Tags("<think>\n", "\n</think>\n\n");
const QWEN: &[&str] = &["<tool_call>", "</tool_call>", "<think>", "</think>"];
const GLM: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
];
const GEMMA4: &[&str] = &[
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<|channel>",
    "<channel|>",
];
const DEEPSEEK: &[&str] = &[
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<think>",
    "</think>",
];
const GPT_OSS: &[&str] = &[
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];

const PARAMETER_ENDS: &[&str] = &[
    "\\n</parameter>\\n<parameter=",
    "\\n</parameter>\\n</function>",
];

/// A family whose markers are special tokens.
const fn tagged(
    tokens: &'static [&'static str],
    thoughts: Thoughts,
    calls: fn(&[Call]) -> String,
) -> Family {
    Family {
        tokens,
        has_special_tokens: true,
        form: Form::Tagged { thoughts, calls },
        written_tags: &[],
        speaks_before_calls: true,
        calls_once: false,
        has_grammar: true,
    }
}

/// Like [`tagged`], without reasoning, and with calls only at the start of an answer.
const fn bare(tokens: &'static [&'static str], calls: fn(&[Call]) -> String) -> Family {
    Family {
        speaks_before_calls: false,
        ..tagged(tokens, Thoughts::None, calls)
    }
}

/// A family whose markers are tokens with visible text.
const fn shown(family: Family) -> Family {
    Family {
        has_special_tokens: false,
        ..family
    }
}

/// A family with tags that are no tokens.
const fn with_tags(written_tags: &'static [&'static str], family: Family) -> Family {
    Family {
        written_tags,
        ..family
    }
}

/// A family whose calls have another form than the engine's grammars force.
const fn without_grammar(family: Family) -> Family {
    Family {
        has_grammar: false,
        ..family
    }
}

/// Checks a family on every answer that it can give.
fn check(family: &Family) {
    let speaker = Speaker::new(family);
    speaker.check_answers();
    speaker.check_strays();
    speaker.check_cuts();
    speaker.check_required();
    speaker.check_alone();
    speaker.check_results();
    speaker.world.wait_until_whole();
}

#[test]
fn qwen3() {
    check(&shown(tagged(QWEN, THINK, family::hermes)));
}

#[test]
fn hermes_with_special_tokens() {
    check(&tagged(QWEN, THINK, family::hermes));
}

#[test]
fn hermes_without_tokens() {
    let tags = &["<think>", "\n</think>", "<tool_call>", "\n</tool_call>"];
    check(&with_tags(tags, tagged(&[], THINK, family::hermes)));
}

#[test]
fn qwen3_coder() {
    let family = tagged(QWEN, THINK, family::qwen3_coder);
    check(&shown(with_tags(PARAMETER_ENDS, family)));
}

#[test]
fn qwen3_coder_with_special_tokens() {
    let family = tagged(QWEN, THINK, family::qwen3_coder);
    check(&with_tags(PARAMETER_ENDS, family));
}

#[test]
fn llama3() {
    check(&bare(&["<|python_tag|>"], family::llama3));
}

#[test]
fn llama3_with_its_tag() {
    let family = tagged(&["<|python_tag|>"], Thoughts::None, family::llama3_tagged);
    check(&family);
}

#[test]
fn pythonic() {
    check(&bare(&["<|python_tag|>"], family::pythonic));
}

#[test]
fn pythonic_with_its_tags() {
    let tokens = &["<|python_tag|>", "<|python_start|>", "<|python_end|>"];
    let family = tagged(tokens, Thoughts::None, family::pythonic_tagged);
    check(&without_grammar(family));
}

#[test]
fn lfm2() {
    let tokens = &[
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "<think>",
        "</think>",
    ];
    check(&tagged(tokens, THINK, family::lfm2));
}

#[test]
fn lfm2_with_objects() {
    let tokens = &["<|tool_call_start|>", "<|tool_call_end|>"];
    let family = tagged(tokens, Thoughts::None, family::lfm2_objects);
    check(&without_grammar(family));
}

#[test]
fn granite() {
    let tags = &["<think>", "\n</think>"];
    let family = tagged(&["<|tool_call|>"], THINK, family::granite);
    check(&with_tags(tags, family));
}

#[test]
fn phi4_mini() {
    let tokens = &["<|tool_call|>", "<|/tool_call|>"];
    check(&tagged(tokens, Thoughts::None, family::phi4_mini));
}

#[test]
fn mistral() {
    check(&tagged(
        &["[TOOL_CALLS]"],
        Thoughts::None,
        family::mistral_list,
    ));
}

#[test]
fn mistral_with_reasoning() {
    let tokens = &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"];
    let thoughts = Thoughts::Tags("[THINK]", "[/THINK]");
    check(&tagged(tokens, thoughts, family::mistral_named));
}

#[test]
fn glm45() {
    let thoughts = Thoughts::Tags("\n<think>", "</think>\n");
    check(&shown(tagged(GLM, thoughts, family::glm45)));
}

#[test]
fn glm47_with_special_tokens() {
    let thoughts = Thoughts::Opened("<think>", "</think>");
    check(&tagged(GLM, thoughts, family::glm47));
}

#[test]
fn gemma4_with_special_tokens() {
    let thoughts = Thoughts::Tags("<|channel>thought\n", "\n<channel|>");
    check(&tagged(GEMMA4, thoughts, family::gemma4));
}

#[test]
fn deepseek_r1() {
    let thoughts = Thoughts::Opened("<think>\\n", "\n</think>\n\n");
    check(&tagged(DEEPSEEK, thoughts, family::deepseek_v3));
}

#[test]
fn deepseek_v31() {
    let thoughts = Thoughts::Opened("<think>", "</think>");
    check(&shown(tagged(DEEPSEEK, thoughts, family::deepseek_v31)));
}

const MESSAGES: Family = Family {
    tokens: GPT_OSS,
    has_special_tokens: true,
    form: Form::Messages,
    written_tags: &[],
    speaks_before_calls: true,
    calls_once: false,
    has_grammar: true,
};

#[test]
fn gpt_oss() {
    check(&Family {
        calls_once: true,
        ..MESSAGES
    });
}

#[test]
fn gpt_oss_that_continues_after_calls() {
    check(&MESSAGES);
}

/// The token that ends a call without arguments ends the answer as well.
#[test]
fn gpt_oss_without_arguments() {
    let family = Family {
        calls_once: true,
        ..MESSAGES
    };
    let header = "<|channel|>commentary to=functions.clock <|constrain|>json";
    let line = format!("{header}<|message|><|call|>");
    let folder = checkpoint::of(&family);
    let world = World::scripted_with(&[("", &line)], |config, _| {
        config.model_path = folder.path().to_owned();
    });
    let said = Said {
        calls: vec![call("clock", serde_json::json!({}))],
        ..Said::default()
    };
    Heard::ask(&world, &ask("Now?")).check(&said, &line);
    world.wait_until_whole();
}
