//! Tests of all formats of tool calls and reasoning, over HTTP: a scripted model replies in the format of its family,
//! and clients must receive reasoning, text and calls, whole and streamed.
//!
//! A test defines a format by the family's markers, its reasoning tags, and a function that writes calls. The engine
//! detects the format from the checkpoint, as it does with real checkpoints.

mod checker;
mod checkpoint;
mod family;
mod received;

use crate::world::World;
use checker::{Checker, ask, call};
use family::{Answer, Call, Family, Form, Reasoning};
use received::Reply;

const THINK: Reasoning = Reasoning::Tags("<think>\n", "\n</think>\n\n");
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
    reasoning: Reasoning,
    calls: fn(&[Call]) -> String,
) -> Family {
    Family {
        tokens,
        has_special_tokens: true,
        form: Form::Tagged { reasoning, calls },
        text_tags: &[],
        allows_text_before_calls: true,
        ends_after_first_call: false,
        has_grammar: true,
    }
}

/// Like [`tagged`], without reasoning, and with calls only at the start of an answer.
const fn bare(tokens: &'static [&'static str], calls: fn(&[Call]) -> String) -> Family {
    Family {
        allows_text_before_calls: false,
        ..tagged(tokens, Reasoning::None, calls)
    }
}

/// A family whose markers are tokens with visible text.
const fn shown(family: Family) -> Family {
    Family {
        has_special_tokens: false,
        ..family
    }
}

/// A family that writes these tags as ordinary text.
const fn with_tags(text_tags: &'static [&'static str], family: Family) -> Family {
    Family {
        text_tags,
        ..family
    }
}

/// A family whose calls differ from those that the engine's grammars force.
const fn without_grammar(family: Family) -> Family {
    Family {
        has_grammar: false,
        ..family
    }
}

fn check(family: &Family) {
    let checker = Checker::new(family);
    checker.check_answers();
    checker.check_stray_markers();
    checker.check_truncated();
    checker.check_required();
    checker.check_single_call();
    checker.check_tool_results();
    checker.world.wait_until_idle();
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
    let family = tagged(&["<|python_tag|>"], Reasoning::None, family::llama3_tagged);
    check(&family);
}

#[test]
fn pythonic() {
    check(&bare(&["<|python_tag|>"], family::pythonic));
}

#[test]
fn pythonic_with_its_tags() {
    let tokens = &["<|python_tag|>", "<|python_start|>", "<|python_end|>"];
    let family = tagged(tokens, Reasoning::None, family::pythonic_tagged);
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
    let family = tagged(tokens, Reasoning::None, family::lfm2_objects);
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
    check(&tagged(tokens, Reasoning::None, family::phi4_mini));
}

#[test]
fn mistral() {
    check(&tagged(
        &["[TOOL_CALLS]"],
        Reasoning::None,
        family::mistral_list,
    ));
}

#[test]
fn mistral_with_reasoning() {
    let tokens = &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"];
    let reasoning = Reasoning::Tags("[THINK]", "[/THINK]");
    check(&tagged(tokens, reasoning, family::mistral_named));
}

#[test]
fn glm45() {
    let reasoning = Reasoning::Tags("\n<think>", "</think>\n");
    check(&shown(tagged(GLM, reasoning, family::glm45)));
}

#[test]
fn glm47_with_special_tokens() {
    let reasoning = Reasoning::Opened("<think>", "</think>");
    check(&tagged(GLM, reasoning, family::glm47));
}

#[test]
fn gemma4_with_special_tokens() {
    let reasoning = Reasoning::Tags("<|channel>thought\n", "\n<channel|>");
    check(&tagged(GEMMA4, reasoning, family::gemma4));
}

#[test]
fn deepseek_r1() {
    let reasoning = Reasoning::Opened("<think>\\n", "\n</think>\n\n");
    check(&tagged(DEEPSEEK, reasoning, family::deepseek_v3));
}

#[test]
fn deepseek_v31() {
    let reasoning = Reasoning::Opened("<think>", "</think>");
    check(&shown(tagged(DEEPSEEK, reasoning, family::deepseek_v31)));
}

const MESSAGES: Family = Family {
    tokens: GPT_OSS,
    has_special_tokens: true,
    form: Form::Messages,
    text_tags: &[],
    allows_text_before_calls: true,
    ends_after_first_call: false,
    has_grammar: true,
};

#[test]
fn gpt_oss() {
    check(&Family {
        ends_after_first_call: true,
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
        ends_after_first_call: true,
        ..MESSAGES
    };
    let header = "<|channel|>commentary to=functions.clock <|constrain|>json";
    let line = format!("{header}<|message|><|call|>");
    let folder = checkpoint::create(&family);
    let world = World::scripted_with(&[("", &line)], |config, _| {
        config.model_path = folder.path().to_owned();
    });
    let wanted = Answer {
        calls: vec![call("clock", serde_json::json!({}))],
        ..Answer::default()
    };
    Reply::ask(&world, &ask("Now?")).check(&wanted, &line);
    world.wait_until_idle();
}
