//! Tests of tool calls in every model family's format.

mod arguments;
mod messages;

use std::sync::Arc;

use serde_json::json;

use super::super::GrammarWish;
use super::vocabularies::{Vocabulary, large, tiny};
use super::walk::walk;
use super::{accepts, schema};
use souffleur_base::error::RequestError;
use souffleur_state::grammar::{Grammar, GrammarProgress};
use souffleur_state::output::{Tool, ToolChoice, ToolFormat, ToolUse, strict_openings};

const FORMATS: [ToolFormat; 13] = [
    ToolFormat::Hermes,
    ToolFormat::Qwen3Coder,
    ToolFormat::Llama3,
    ToolFormat::Pythonic,
    ToolFormat::Mistral,
    ToolFormat::Lfm2,
    ToolFormat::Glm45,
    ToolFormat::Glm47,
    ToolFormat::DeepSeekV3,
    ToolFormat::DeepSeekV31,
    ToolFormat::Gemma4,
    ToolFormat::Granite,
    ToolFormat::Phi4Mini,
];

fn seat(strict: bool) -> Tool {
    Tool {
        name: "seat".to_owned(),
        description: None,
        parameters: Some(json!({"type": "object", "properties": {
            "row": {"type": "integer", "minimum": 1, "maximum": 99},
            "who": {"type": "string", "maxLength": 20},
            "kind": {"type": "string", "enum": ["aisle", "window"]},
            "near": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
            "ok": {"type": "boolean"}}, "required": ["row", "kind"]})),
        strict,
    }
}

fn ping() -> Tool {
    Tool {
        name: "ping".to_owned(),
        description: None,
        parameters: None,
        strict: false,
    }
}

fn wish(choice: ToolChoice, format: ToolFormat, strict: bool, parallel: bool) -> GrammarWish {
    GrammarWish {
        tools: Some(Arc::new(ToolUse {
            tools: vec![seat(strict), ping()],
            choice,
            parallel,
        })),
        tool_format: Some(format),
        ..GrammarWish::default()
    }
}

fn compile(
    vocabulary: &Vocabulary,
    wish: &GrammarWish,
) -> Result<Option<Arc<dyn Grammar>>, RequestError> {
    vocabulary.compiler().compile(wish, &|| false)
}

fn grammar(vocabulary: &Vocabulary, wish: &GrammarWish) -> Arc<dyn Grammar> {
    let compiled = compile(vocabulary, wish);
    let compiled = compiled.unwrap_or_else(|error| panic!("{wish:?}: {error}"));
    compiled.expect("calls are constrained")
}

/// A call of `seat`, one of `ping`, the separator of calls, and the texts before and after them.
type Example = [&'static str; 5];

const HERMES: Example = [
    "<tool_call>\n{\"name\": \"seat\", \"arguments\": {\"row\": 4, \"kind\": \"aisle\"}}\n</tool_call>",
    "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>",
    "\n",
    "",
    "",
];

const QWEN3_CODER: Example = [
    "<tool_call>\n<function=seat>\n<parameter=row>\n4\n</parameter>\n<parameter=kind>\naisle\n</parameter>\n\
     </function>\n</tool_call>",
    "<tool_call>\n<function=ping>\n</function>\n</tool_call>",
    "\n",
    "",
    "",
];

const GLM45: Example = [
    "<tool_call>seat\n<arg_key>row</arg_key>\n<arg_value>4</arg_value>\n<arg_key>kind</arg_key>\n\
     <arg_value>aisle</arg_value>\n</tool_call>",
    "<tool_call>ping\n</tool_call>",
    "\n",
    "",
    "",
];

const GLM47: Example = [
    "<tool_call>seat<arg_key>row</arg_key><arg_value>4</arg_value><arg_key>kind</arg_key>\
     <arg_value>aisle</arg_value></tool_call>",
    "<tool_call>ping</tool_call>",
    "",
    "",
    "",
];

const DEEPSEEK_V3: Example = [
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>seat\n```json\n{\"row\": 4, \"kind\": \"aisle\"}\n```<｜tool▁call▁end｜>",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n```<｜tool▁call▁end｜>",
    "\n",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
];

const DEEPSEEK_V31: Example = [
    "<｜tool▁call▁begin｜>seat<｜tool▁sep｜>{\"row\": 4, \"kind\": \"aisle\"}<｜tool▁call▁end｜>",
    "<｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
    "",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
];

const GEMMA4: Example = [
    "<|tool_call>call:seat{row:4,kind:<|\"|>aisle<|\"|>}<tool_call|>",
    "<|tool_call>call:ping{}<tool_call|>",
    "",
    "",
    "",
];

/// `has_args`: whether the vocabulary has the marker `[ARGS]` of Mistral's newer format.
fn example(format: ToolFormat, has_args: bool) -> Example {
    match format {
        ToolFormat::Hermes => HERMES,
        ToolFormat::Qwen3Coder => QWEN3_CODER,
        ToolFormat::Llama3 => [
            "{\"name\": \"seat\", \"parameters\": {\"row\": 4, \"kind\": \"aisle\"}}",
            "{\"name\": \"ping\", \"parameters\": {}}",
            "; ",
            "",
            "",
        ],
        ToolFormat::Lfm2 => [
            "seat(row=4, kind=\"aisle\")",
            "ping()",
            ", ",
            "<|tool_call_start|>[",
            "]<|tool_call_end|>",
        ],
        ToolFormat::Glm45 => GLM45,
        ToolFormat::Glm47 => GLM47,
        ToolFormat::DeepSeekV3 => DEEPSEEK_V3,
        ToolFormat::DeepSeekV31 => DEEPSEEK_V31,
        ToolFormat::Gemma4 => GEMMA4,
        ToolFormat::Granite | ToolFormat::Phi4Mini => [
            "{\"name\": \"seat\", \"arguments\": {\"row\": 4, \"kind\": \"aisle\"}}",
            "{\"name\": \"ping\", \"arguments\": {}}",
            ", ",
            "<|tool_call|>[",
            match format {
                ToolFormat::Phi4Mini => "]<|/tool_call|>",
                _ => "]",
            },
        ],
        ToolFormat::GptOss => unreachable!("it writes messages"),
        ToolFormat::Pythonic => ["seat(row=4, kind=\"aisle\")", "ping()", ", ", "[", "]"],
        ToolFormat::Mistral if has_args => [
            "[TOOL_CALLS]seat[ARGS]{\"row\": 4, \"kind\": \"aisle\"}",
            "[TOOL_CALLS]ping[ARGS]{}",
            "",
            "",
            "",
        ],
        ToolFormat::Mistral => [
            "{\"name\": \"seat\", \"arguments\": {\"row\": 4, \"kind\": \"aisle\"}}",
            "{\"name\": \"ping\", \"arguments\": {}}",
            ", ",
            "[TOOL_CALLS] [",
            "]",
        ],
    }
}

#[test]
fn required_calls_are_written_in_the_models_format() {
    for (vocabulary, has_args) in [(large(), true), (tiny(), false)] {
        for format in FORMATS {
            let [first, second, between, begin, end] = example(format, has_args);
            let many = grammar(vocabulary, &wish(ToolChoice::Required, format, false, true));
            let one = grammar(vocabulary, &wish(ToolChoice::Required, format, true, false));
            let single = format!("{begin}{first}{end}");
            let several = format!("{begin}{first}{between}{second}{between}{first}{end}");
            assert!(accepts(many.as_ref(), vocabulary, &single), "{format:?}");
            assert!(accepts(many.as_ref(), vocabulary, &several), "{format:?}");
            assert!(accepts(one.as_ref(), vocabulary, &single), "{format:?}");
            assert!(!accepts(one.as_ref(), vocabulary, &several), "{format:?}");
            let wrong = single.replace("aisle", "floor");
            assert!(!accepts(many.as_ref(), vocabulary, &wrong), "{format:?}");
            assert!(!accepts(many.as_ref(), vocabulary, ""), "{format:?}");
            assert!(
                !accepts(many.as_ref(), vocabulary, &format!("Well, {single}")),
                "{format:?}"
            );
        }
    }
}

#[test]
fn only_the_named_tool_can_be_called() {
    for format in FORMATS {
        let [first, second, _, begin, end] = example(format, true);
        let named = ToolChoice::Named("ping".to_owned());
        let grammar = grammar(large(), &wish(named, format, false, true));
        assert!(
            accepts(grammar.as_ref(), large(), &format!("{begin}{second}{end}")),
            "{format:?}"
        );
        assert!(
            !accepts(grammar.as_ref(), large(), &format!("{begin}{first}{end}")),
            "{format:?}"
        );
        let unknown = ToolChoice::Named("fly".to_owned());
        assert!(compile(large(), &wish(unknown, format, false, true)).is_err());
    }
}

#[test]
fn a_named_tool_is_called_once_and_required_ones_within_a_bound() {
    for (vocabulary, has_args) in [(large(), true), (tiny(), false)] {
        for format in FORMATS {
            let [_, second, between, begin, end] = example(format, has_args);
            let calls = |n: usize| format!("{begin}{}{end}", vec![second; n].join(between));
            let named = ToolChoice::Named("ping".to_owned());
            let once = grammar(vocabulary, &wish(named, format, false, true));
            assert!(accepts(once.as_ref(), vocabulary, &calls(1)), "{format:?}");
            assert!(!accepts(once.as_ref(), vocabulary, &calls(2)), "{format:?}");
            let any = grammar(vocabulary, &wish(ToolChoice::Required, format, false, true));
            assert!(accepts(any.as_ref(), vocabulary, &calls(16)), "{format:?}");
            assert!(!accepts(any.as_ref(), vocabulary, &calls(17)), "{format:?}");
            let line = format!("{}\n", calls(1)); // a line break is allowed unless an end text closes the calls
            let is_open = end.is_empty();
            assert_eq!(
                accepts(any.as_ref(), vocabulary, &line),
                is_open,
                "{format:?}"
            );
        }
    }
}

#[test]
fn auto_constrains_only_with_a_strict_tool() {
    for (vocabulary, has_args) in [(large(), true), (tiny(), false)] {
        for format in FORMATS {
            let loose = compile(vocabulary, &wish(ToolChoice::Auto, format, false, true));
            assert!(loose.expect("no error").is_none());
            let grammar = grammar(vocabulary, &wish(ToolChoice::Auto, format, true, true));
            let [first, second, between, begin, end] = example(format, has_args);
            let calls = format!("{begin}{first}{between}{second}{end}");
            let wrong = calls.replace("aisle", "floor");
            assert!(
                accepts(grammar.as_ref(), vocabulary, "Just a {text}."),
                "{format:?}"
            );
            assert!(accepts(grammar.as_ref(), vocabulary, ""), "{format:?}");
            assert!(accepts(grammar.as_ref(), vocabulary, &calls), "{format:?}");
            assert!(!accepts(grammar.as_ref(), vocabulary, &wrong), "{format:?}");
            let after_text = format!("Well.\n{calls}");
            let has_trigger = !matches!(format, ToolFormat::Llama3 | ToolFormat::Pythonic);
            if has_trigger {
                assert!(
                    accepts(grammar.as_ref(), vocabulary, &format!("{after_text}\nSo.")),
                    "{format:?}"
                );
                let wrong = after_text.replace("aisle", "floor");
                assert!(!accepts(grammar.as_ref(), vocabulary, &wrong), "{format:?}");
            }
            for seed in 0..4 {
                let walk = walk(grammar.as_ref(), vocabulary, seed);
                assert_eq!(
                    walk.end,
                    Ok(GrammarProgress::Done),
                    "{format:?}: {}",
                    walk.text
                );
            }
        }
    }
}

#[test]
fn objects_that_call_strict_tools_without_a_tag_are_constrained() {
    let arguments = "{\"row\": 4, \"kind\": \"aisle\"}";
    for vocabulary in [large(), tiny()] {
        for format in FORMATS {
            let grammar = grammar(vocabulary, &wish(ToolChoice::Auto, format, true, true));
            for (begin, end) in strict_openings("seat") {
                let call = format!("So:\n```json\n{begin}{arguments}{end}\n```\nDone.");
                assert!(accepts(grammar.as_ref(), vocabulary, &call), "{format:?}");
                let wrong = call.replace("aisle", "floor");
                assert!(!accepts(grammar.as_ref(), vocabulary, &wrong), "{format:?}");
            }
            let other = "```json\n{\"name\": \"Ada\", \"arguments\": 4}\n```";
            assert!(accepts(grammar.as_ref(), vocabulary, other), "{format:?}");
        }
    }
}

#[test]
fn calls_after_the_python_tag_are_constrained() {
    let grammar = grammar(
        large(),
        &wish(ToolChoice::Auto, ToolFormat::Llama3, true, true),
    );
    let call =
        "<|python_tag|>{\"name\": \"seat\", \"parameters\": {\"row\": 4, \"kind\": \"aisle\"}}";
    assert!(accepts(grammar.as_ref(), large(), call));
    assert!(accepts(grammar.as_ref(), large(), &format!("Well. {call}")));
    assert!(!accepts(
        grammar.as_ref(),
        large(),
        &call.replace("aisle", "floor")
    ));
    assert!(
        accepts(grammar.as_ref(), large(), "{\"a\": 1}"),
        "JSON that is not a call is text"
    );
}

#[test]
fn a_constraint_applies_to_answers_without_calls() {
    for format in FORMATS {
        let mut wish = wish(ToolChoice::Auto, format, false, true);
        wish.constraint = Some(Arc::new(schema(
            json!({"type": "array", "items": {"type": "integer"}}),
        )));
        let grammar = grammar(large(), &wish);
        let [_, second, _, begin, end] = example(format, true);
        assert!(accepts(grammar.as_ref(), large(), "[1, 2]"), "{format:?}");
        assert!(
            accepts(grammar.as_ref(), large(), &format!("{begin}{second}{end}")),
            "{format:?}"
        );
        assert!(!accepts(grammar.as_ref(), large(), "text"), "{format:?}");
        assert!(
            !accepts(
                grammar.as_ref(),
                large(),
                &format!("[1]{begin}{second}{end}")
            ),
            "{format:?}"
        );
    }
}
