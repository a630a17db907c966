//! Calls of tools in every family's form.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::{AnswerFrame, GrammarWish};
use super::vocabularies::{Vocabulary, large, messages, tiny};
use super::walk::walk;
use super::{compiler, schema, takes};
use crate::error::RequestError;
use crate::state::grammar::{Grammar, GrammarProgress};
use crate::state::output::{OutputStart, Tool, ToolChoice, ToolFormat, ToolUse};

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
    compiler(vocabulary).compile(wish, &|| false)
}

fn grammar(vocabulary: &Vocabulary, wish: &GrammarWish) -> Arc<dyn Grammar> {
    let compiled = compile(vocabulary, wish);
    let compiled = compiled.unwrap_or_else(|error| panic!("{wish:?}: {error}"));
    compiled.expect("calls are constrained")
}

/// A call of `seat`, one of `ping`, what is between calls, and what is around them.
fn example(format: ToolFormat, has_args: bool) -> [&'static str; 5] {
    match format {
        ToolFormat::Hermes => [
            "<tool_call>\n{\"name\": \"seat\", \"arguments\": {\"row\": 4, \"kind\": \"aisle\"}}\n</tool_call>",
            "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>",
            "\n",
            "",
            "",
        ],
        ToolFormat::Qwen3Coder => [
            "<tool_call>\n<function=seat>\n<parameter=row>\n4\n</parameter>\n<parameter=kind>\naisle\n</parameter>\n\
             </function>\n</tool_call>",
            "<tool_call>\n<function=ping>\n</function>\n</tool_call>",
            "\n",
            "",
            "",
        ],
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
        ToolFormat::Glm45 => [
            "<tool_call>seat\n<arg_key>row</arg_key>\n<arg_value>4</arg_value>\n<arg_key>kind</arg_key>\n\
             <arg_value>aisle</arg_value>\n</tool_call>",
            "<tool_call>ping\n</tool_call>",
            "\n",
            "",
            "",
        ],
        ToolFormat::Glm47 => [
            "<tool_call>seat<arg_key>row</arg_key><arg_value>4</arg_value><arg_key>kind</arg_key>\
             <arg_value>aisle</arg_value></tool_call>",
            "<tool_call>ping</tool_call>",
            "",
            "",
            "",
        ],
        ToolFormat::DeepSeekV3 => [
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>seat\n```json\n{\"row\": 4, \"kind\": \"aisle\"}\n```<｜tool▁call▁end｜>",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n```<｜tool▁call▁end｜>",
            "\n",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
        ],
        ToolFormat::DeepSeekV31 => [
            "<｜tool▁call▁begin｜>seat<｜tool▁sep｜>{\"row\": 4, \"kind\": \"aisle\"}<｜tool▁call▁end｜>",
            "<｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
            "",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
        ],
        ToolFormat::Gemma4 => [
            "<|tool_call>call:seat{row:4,kind:<|\"|>aisle<|\"|>}<tool_call|>",
            "<|tool_call>call:ping{}<tool_call|>",
            "",
            "",
            "",
        ],
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
fn required_calls_are_written_in_the_models_form() {
    for (vocabulary, has_args) in [(large(), true), (tiny(), false)] {
        for format in FORMATS {
            let [first, second, between, begin, end] = example(format, has_args);
            let many = grammar(vocabulary, &wish(ToolChoice::Required, format, false, true));
            let one = grammar(vocabulary, &wish(ToolChoice::Required, format, true, false));
            let single = format!("{begin}{first}{end}");
            let several = format!("{begin}{first}{between}{second}{between}{first}{end}");
            assert!(takes(many.as_ref(), vocabulary, &single), "{format:?}");
            assert!(takes(many.as_ref(), vocabulary, &several), "{format:?}");
            assert!(takes(one.as_ref(), vocabulary, &single), "{format:?}");
            assert!(!takes(one.as_ref(), vocabulary, &several), "{format:?}");
            let wrong = single.replace("aisle", "floor");
            assert!(!takes(many.as_ref(), vocabulary, &wrong), "{format:?}");
            assert!(!takes(many.as_ref(), vocabulary, ""), "{format:?}");
            assert!(
                !takes(many.as_ref(), vocabulary, &format!("Well, {single}")),
                "{format:?}"
            );
        }
    }
}

#[test]
fn a_named_tool_is_the_only_one() {
    for format in FORMATS {
        let [first, second, _, begin, end] = example(format, true);
        let named = ToolChoice::Named("ping".to_owned());
        let grammar = grammar(large(), &wish(named, format, false, true));
        assert!(
            takes(grammar.as_ref(), large(), &format!("{begin}{second}{end}")),
            "{format:?}"
        );
        assert!(
            !takes(grammar.as_ref(), large(), &format!("{begin}{first}{end}")),
            "{format:?}"
        );
        let unknown = ToolChoice::Named("fly".to_owned());
        assert!(compile(large(), &wish(unknown, format, false, true)).is_err());
    }
}

#[test]
fn auto_constrains_only_with_a_strict_tool() {
    for (vocabulary, has_args) in [(large(), true), (tiny(), false)] {
        for format in FORMATS {
            let loose = compile(vocabulary, &wish(ToolChoice::Auto, format, false, true));
            assert!(loose.expect("it is no error").is_none());
            let grammar = grammar(vocabulary, &wish(ToolChoice::Auto, format, true, true));
            let [first, second, between, begin, end] = example(format, has_args);
            let calls = format!("{begin}{first}{between}{second}{end}");
            let wrong = calls.replace("aisle", "floor");
            assert!(
                takes(grammar.as_ref(), vocabulary, "Just a {text}."),
                "{format:?}"
            );
            assert!(takes(grammar.as_ref(), vocabulary, ""), "{format:?}");
            assert!(takes(grammar.as_ref(), vocabulary, &calls), "{format:?}");
            assert!(!takes(grammar.as_ref(), vocabulary, &wrong), "{format:?}");
            let after_text = format!("Well.\n{calls}");
            let has_trigger = !matches!(format, ToolFormat::Llama3 | ToolFormat::Pythonic);
            if has_trigger {
                assert!(
                    takes(grammar.as_ref(), vocabulary, &format!("{after_text}\nSo.")),
                    "{format:?}"
                );
                let wrong = after_text.replace("aisle", "floor");
                assert!(!takes(grammar.as_ref(), vocabulary, &wrong), "{format:?}");
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

const SEAT: &str = "<|channel|>commentary to=functions.seat <|constrain|>json<|message|>{\"row\": 4, \"kind\": \"aisle\"}";
const PING: &str = " to=functions.ping<|channel|>commentary json<|message|>{}";
const THOUGHT: &str = "<|channel|>analysis<|message|>So, a seat.<|end|><|start|>assistant";
const SAID: &str = "<|channel|>commentary<|message|>One moment.<|end|><|start|>assistant";

/// A wish of a chat with a model that writes messages.
fn among_messages(choice: ToolChoice, strict: bool) -> GrammarWish {
    GrammarWish {
        frame: AnswerFrame::Messages(OutputStart::Header),
        ..wish(choice, ToolFormat::GptOss, strict, true)
    }
}

#[test]
fn calls_in_messages_are_constrained() {
    for vocabulary in [messages(), tiny()] {
        let required = grammar(vocabulary, &among_messages(ToolChoice::Required, false));
        let auto = grammar(vocabulary, &among_messages(ToolChoice::Auto, true));
        let named = ToolChoice::Named("ping".to_owned());
        let named = grammar(vocabulary, &among_messages(named, false));
        let takes =
            |grammar: &Arc<dyn Grammar>, text: &str| takes(grammar.as_ref(), vocabulary, text);
        for call in [SEAT, PING] {
            for text in [
                call.to_owned(),
                format!("{THOUGHT}{call}"),
                format!("{THOUGHT}{THOUGHT}{call}"),
            ] {
                assert!(takes(&required, &text) && takes(&auto, &text), "{text}");
                assert_eq!(takes(&named, &text), call == PING, "{text}");
            }
            assert!(!takes(&required, &format!("{SAID}{call}")));
            assert!(takes(&auto, &format!("{THOUGHT}{SAID}{call}")));
        }
        let wrong = SEAT.replace("aisle", "floor");
        let answer = "<|channel|>final<|message|>Row 4.";
        assert!(!takes(&required, &wrong) && !takes(&auto, &wrong));
        assert!(!takes(&required, answer) && takes(&auto, answer));
        assert!(takes(&auto, &format!("{THOUGHT}{answer}")));
        for text in [
            "",
            "Row 4.",
            "<|channel|>commentary to=functions.fly<|message|>{}",
        ] {
            assert!(!takes(&required, text) && !takes(&auto, text), "{text}");
        }
        let loose = compile(vocabulary, &among_messages(ToolChoice::Auto, false));
        assert!(loose.expect("it is no error").is_none());
    }
}

#[test]
fn a_constraint_binds_the_last_message() {
    let numbers = || schema(json!({"type": "array", "items": {"type": "integer"}}));
    let mut with_tools = among_messages(ToolChoice::Auto, false);
    with_tools.constraint = Some(Arc::new(numbers()));
    let alone = GrammarWish {
        tools: None,
        ..with_tools.clone()
    };
    let continued = GrammarWish {
        frame: AnswerFrame::Messages(OutputStart::Content),
        ..alone.clone()
    };
    let answer = "<|channel|>final<|message|>[1, 2]";
    for vocabulary in [messages(), tiny()] {
        let takes = |wish: &GrammarWish, text: &str| {
            takes(grammar(vocabulary, wish).as_ref(), vocabulary, text)
        };
        for wish in [&alone, &with_tools] {
            assert!(takes(wish, answer) && takes(wish, &format!("{THOUGHT}{answer}")));
            assert!(!takes(wish, "[1, 2]") && !takes(wish, &answer.replace("1", "x")));
        }
        assert!(takes(&with_tools, PING) && !takes(&alone, PING));
        assert!(takes(&continued, "[1, 2]") && !takes(&continued, answer));
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
    assert!(takes(grammar.as_ref(), large(), call));
    assert!(takes(grammar.as_ref(), large(), &format!("Well. {call}")));
    assert!(!takes(
        grammar.as_ref(),
        large(),
        &call.replace("aisle", "floor")
    ));
    assert!(
        takes(grammar.as_ref(), large(), "{\"a\": 1}"),
        "JSON that is no call is text"
    );
}

#[test]
fn a_constraint_binds_answers_without_calls() {
    for format in FORMATS {
        let mut wish = wish(ToolChoice::Auto, format, false, true);
        wish.constraint = Some(Arc::new(schema(
            json!({"type": "array", "items": {"type": "integer"}}),
        )));
        let grammar = grammar(large(), &wish);
        let [_, second, _, begin, end] = example(format, true);
        assert!(takes(grammar.as_ref(), large(), "[1, 2]"), "{format:?}");
        assert!(
            takes(grammar.as_ref(), large(), &format!("{begin}{second}{end}")),
            "{format:?}"
        );
        assert!(!takes(grammar.as_ref(), large(), "text"), "{format:?}");
        assert!(
            !takes(
                grammar.as_ref(),
                large(),
                &format!("[1]{begin}{second}{end}")
            ),
            "{format:?}"
        );
    }
}

#[test]
fn walked_calls_have_valid_arguments() {
    let parameters = seat(true).parameters.expect("it has some");
    let validator = jsonschema::validator_for(&parameters).expect("it is a schema");
    for (format, open, close) in [
        (ToolFormat::Hermes, "<tool_call>\n", "\n</tool_call>"),
        (ToolFormat::Llama3, "", ""),
    ] {
        for vocabulary in [large(), tiny()] {
            let named = ToolChoice::Named("seat".to_owned());
            let grammar = grammar(vocabulary, &wish(named, format, true, false));
            for seed in 0..10 {
                let walk = walk(grammar.as_ref(), vocabulary, seed);
                let text = walk.text.trim_start_matches("<|python_tag|>");
                let inner = text
                    .strip_prefix(open)
                    .and_then(|text| text.strip_suffix(close));
                let call: Value =
                    serde_json::from_str(inner.expect("it is tagged")).expect("it is JSON");
                let arguments = call
                    .get("arguments")
                    .or(call.get("parameters"))
                    .expect("it has some");
                assert!(validator.is_valid(arguments), "{text}");
                assert_eq!(call["name"], "seat");
            }
        }
    }
}

#[test]
fn walked_parameters_in_xml_follow_their_types() {
    let named = ToolChoice::Named("seat".to_owned());
    for vocabulary in [large(), tiny()] {
        let grammar = grammar(
            vocabulary,
            &wish(named.clone(), ToolFormat::Qwen3Coder, true, false),
        );
        for seed in 0..10 {
            let text = walk(grammar.as_ref(), vocabulary, seed).text;
            let inner = text
                .strip_prefix("<tool_call>\n<function=seat>\n")
                .expect("it begins so");
            let inner = inner
                .strip_suffix("</function>\n</tool_call>")
                .expect("it ends so");
            for parameter in inner
                .split("</parameter>\n")
                .filter(|rest| !rest.is_empty())
            {
                let parameter = parameter.strip_prefix("<parameter=").expect("it begins so");
                let (name, value) = parameter.split_once(">\n").expect("it has a name");
                let value = value.strip_suffix('\n').expect("it ends so");
                match name {
                    "row" => assert!((1..=99).contains(&value.parse::<u32>().expect("a row"))),
                    "kind" => assert!(["aisle", "window"].contains(&value), "{value}"),
                    "who" => assert!(value.chars().count() <= 20, "{value}"),
                    "near" => assert!(serde_json::from_str::<Vec<i64>>(value).is_ok(), "{value}"),
                    _ => assert!(["true", "false"].contains(&value), "{value}"),
                }
            }
        }
    }
}

/// One call of a tool with these parameters.
fn one_call(schema: Value, format: ToolFormat) -> GrammarWish {
    let tool = Tool {
        name: "f".to_owned(),
        description: None,
        parameters: Some(schema),
        strict: true,
    };
    GrammarWish {
        tools: Some(Arc::new(ToolUse {
            tools: vec![tool],
            choice: ToolChoice::Required,
            parallel: false,
        })),
        tool_format: Some(format),
        ..GrammarWish::default()
    }
}

/// The form in which Gemma 4 writes a call of `f`.
fn braced(arguments: &str) -> String {
    format!("<|tool_call>call:f{{{arguments}}}<tool_call|>")
}

#[test]
fn choices_are_taken_apart_whatever_is_said_beside_them() {
    let schema = json!({"type": "object", "properties": {"a": {
        "title": "A", "description": "One of three.", "default": null, "examples": [true], "x-order": 1,
        "anyOf": [
            {"type": "boolean", "description": "Either."},
            {"enum": ["x", null], "title": "Named"},
            {"type": "array", "items": {"const": true, "description": "Always."}, "minItems": 1}
        ]}}, "required": ["a"]});
    let pythonic = |value: &str| format!("[f(a={value})]");
    let of_braces = |value: &str| braced(&format!("a:{value}"));
    let python = grammar(tiny(), &one_call(schema.clone(), ToolFormat::Pythonic));
    let gemma = grammar(tiny(), &one_call(schema, ToolFormat::Gemma4));
    for (of_python, of_gemma) in [
        ("True", "true"),
        ("\"x\"", "<|\"|>x<|\"|>"),
        ("None", "null"),
        ("[True]", "[true]"),
        ("[True, True]", "[true,true]"),
    ] {
        let text = pythonic(of_python);
        assert!(takes(python.as_ref(), tiny(), &text), "{text}");
        let text = of_braces(of_gemma);
        assert!(takes(gemma.as_ref(), tiny(), &text), "{text}");
    }
    for (of_python, of_gemma) in [
        ("4", "4"),
        ("\"y\"", "<|\"|>y<|\"|>"),
        ("[]", "[]"),
        ("[False]", "[false]"),
    ] {
        let text = pythonic(of_python);
        assert!(!takes(python.as_ref(), tiny(), &text), "{text}");
        let text = of_braces(of_gemma);
        assert!(!takes(gemma.as_ref(), tiny(), &text), "{text}");
    }
}

#[test]
fn objects_within_objects_have_what_they_must() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "object",
        "properties": {"x": {"type": "boolean"}, "y": {"type": "integer"}}, "required": ["y"]}}, "required": ["a"]});
    let grammar = grammar(tiny(), &one_call(schema, ToolFormat::Gemma4));
    for (arguments, is_right) in [
        ("a:{x:true,y:1}", true),
        ("a:{y:1}", true),
        ("a:{x:true}", false),
        ("a:{}", false),
    ] {
        let text = braced(arguments);
        assert_eq!(takes(grammar.as_ref(), tiny(), &text), is_right, "{text}");
    }
}

#[test]
fn python_writes_its_own_words() {
    let wish = |schema: Value| one_call(schema, ToolFormat::Pythonic);
    let schema = json!({"type": "object", "properties": {
        "a": {"type": ["boolean", "null"]},
        "b": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "maxItems": 2},
        "c": {"type": "object", "properties": {"x": {"type": "boolean"}, "y": {"type": "number"}}, "required": ["y"],
            "additionalProperties": false}}, "required": ["a"]});
    let grammar = grammar(tiny(), &wish(schema));
    for text in [
        "[f(a=True)]",
        "[f(a=None, b=[1, None])]",
        "[f(a=False, b=[], c={\"x\": True, \"y\": 1.5})]",
        "[f(a=None, c={\"y\": 2})]",
    ] {
        assert!(takes(grammar.as_ref(), tiny(), text), "{text}");
    }
    for text in [
        "[f(a=true)]",
        "[f()]",
        "[f(a=True, b=[1, 2, 3])]",
        "[f(b=[], a=True)]",
        "[f(a=True, c={})]",
    ] {
        assert!(!takes(grammar.as_ref(), tiny(), text), "{text}");
    }
    let refused = compile(
        tiny(),
        &wish(json!({"type": "object", "properties": {"a-b": {"type": "null"}}})),
    );
    assert!(
        refused
            .expect_err("it is no name")
            .to_string()
            .contains("a-b")
    );
    let refused = compile(
        tiny(),
        &wish(json!({"type": "object", "properties": {"a": {"not": {}}}})),
    );
    let told = refused.expect_err("it is not supported").to_string();
    assert!(
        told.contains("\"f\"") && told.contains("#/properties/a/not"),
        "{told}"
    );
}
