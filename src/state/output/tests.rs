use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

/// An engine with a tool `seat`, whose markers are text.
fn engine(tool: Option<ToolFormat>, reasoning: Option<ReasoningFormat>) -> OutputEngine {
    let formats = OutputFormats { tool, reasoning };
    let markers = Arc::new(Markers::default());
    OutputEngine::new(formats, Some(tools(true)), markers, false)
}

fn tools(parallel: bool) -> Arc<ToolUse> {
    let parameters = json!({
        "type": "object",
        "properties": {
            "row": {"type": "integer"},
            "who": {"type": "string"},
            "window": {"type": "boolean"},
            "price": {"type": ["number", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "meal": {"$ref": "#/$defs/meal"},
            "any": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        },
        "$defs": {"meal": {"type": "object"}},
    });
    Arc::new(ToolUse {
        tools: vec![Tool {
            name: "seat".to_owned(),
            description: None,
            parameters: Some(parameters),
            strict: false,
        }],
        choice: ToolChoice::Auto,
        parallel,
    })
}

fn run(mut engine: OutputEngine, text: &str) -> Vec<OutputPiece> {
    let mut pieces = Vec::new();
    engine.push_text(text, &mut pieces);
    engine.finish(&mut pieces);
    pieces
}

/// A piece in short: content as it is, `think:…`, `name(arguments` and `)` for a complete call.
fn short(pieces: &[OutputPiece]) -> String {
    let piece = |piece: &OutputPiece| match piece {
        OutputPiece::Text(text) => format!("«{text}»"),
        OutputPiece::Reasoning(text) => format!("‹{text}›"),
        OutputPiece::CallStart { name } => format!("{name}("),
        OutputPiece::CallArguments(arguments) => arguments.clone(),
        OutputPiece::CallEnd => ")".to_owned(),
    };
    pieces.iter().map(piece).collect()
}

fn check(tool: ToolFormat, text: &str, expected: &str) {
    let engine = engine(Some(tool), Some(ReasoningFormat::Think));
    assert_eq!(short(&run(engine, text)), expected, "{text:?}");
}

/// The text comes out as it went in.
fn check_text(tool: ToolFormat, text: &str) {
    check(tool, text, &format!("«{text}»"));
}

mod hermes {
    use super::*;
    const F: ToolFormat = ToolFormat::Hermes;

    #[test]
    fn calls_are_found() {
        check(
            F,
            "<tool_call>\n{\"name\": \"seat\", \"arguments\": {\"row\": 4}}\n</tool_call>",
            r#"seat({"row": 4})"#,
        );
        check(
            F,
            "Sure.\n\n<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\":\"b\",\
             \"arguments\":{\"x\":[{}]}}\n</tool_call>\n",
            r#"«Sure.»a({})b({"x":[{}]})"#,
        );
        check(
            F,
            "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\nDone.\n",
            "a({})«\nDone.\n»",
        );
    }

    #[test]
    fn arguments_are_unchanged() {
        let arguments =
            r#"{ "a" :"<tool_call> </tool_call> }\"\\", "é": [1e5,-0.0, {"x":null}],"b":"\u00e9"}"#;
        let text = format!("<tool_call>{{\"name\":\"f\",\"arguments\":{arguments}}}</tool_call>");
        check(F, &text, &format!("f({arguments})"));
    }

    #[test]
    fn arguments_may_come_first_or_in_other_forms() {
        let call = |inside: &str| format!("<tool_call>\n{{{inside}}}\n</tool_call>");
        let cases = [
            (r#""arguments":{"a":1},"name":"f""#, r#"f({"a":1})"#),
            (r#""name":"f","parameters":{"a":1}"#, r#"f({"a":1})"#),
            (
                r#""name":"f","arguments":"{\"a\": \"\\u00e9\"}""#,
                r#"f({"a": "\u00e9"})"#,
            ),
            (r#""arguments":"{\"a\":1}","name":"f""#, r#"f({"a":1})"#),
            (r#""name":"f","arguments":"""#, "f({})"),
            (r#""name":"f","arguments":null"#, "f({})"),
            (r#""name":"f""#, "f({})"),
            (
                r#""id":"x","name":"f","arguments":{},"more":[1,{}]"#,
                "f({})",
            ),
            (r#""name":"f","arguments":{},"arguments":{"b":2}"#, "f({})"),
            (r#""na\u006de":"f\"g","arguments":{}"#, "f\"g({})"),
        ];
        for (inside, expected) in cases {
            check(F, &call(inside), expected);
        }
    }

    #[test]
    fn what_only_looks_like_a_call_is_text() {
        for text in [
            "<tool_call>",
            "<tool_call",
            "Use <tool_call> tags.",
            "<tool_call>not json</tool_call> and on",
            "<tool_call>\n{\"foo\": 1}\n</tool_call>",
            "<tool_call>{\"name\": 4}</tool_call>",
            "<tool_call>{\"name\": \"\"}</tool_call>",
            "<tool_call>{\"name\": \"f\"",
            "a </tool_call> b",
            "{\"name\": \"f\", \"arguments\": {}}",
            "\n\n<tool_call>\n[]",
            "text\n",
            " \n ",
        ] {
            check_text(F, text);
        }
    }

    #[test]
    fn reading_goes_on_after_an_opening_that_was_none() {
        check(
            F,
            "<tool_call><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
            "«<tool_call>»f({})",
        );
        check(
            F,
            "<think>Use <tool_call> {\"x</think>\nYes",
            "‹Use <tool_call> {\"x›«Yes»",
        );
    }

    #[test]
    fn a_broken_call_has_no_end() {
        check(
            F,
            "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":[1}}</tool_call> x",
            "f({\"a\":[1«}} x»",
        );
        check(
            F,
            "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\"",
            "f({\"a\"",
        );
    }

    #[test]
    fn complete_arguments_make_a_call() {
        check(
            F,
            "<tool_call>{\"name\":\"f\",\"arguments\":{}\n</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}",
            "f({})g({})",
        );
    }

    #[test]
    fn one_call_ends_an_output_without_parallel_calls() {
        let formats = OutputFormats {
            tool: Some(F),
            reasoning: None,
        };
        let markers = Arc::new(Markers::default());
        let mut engine = OutputEngine::new(formats, Some(tools(false)), markers, false);
        let mut pieces = Vec::new();
        let call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
        engine.push_text("a", &mut pieces);
        assert!(!engine.wants_end());
        engine.push_text(&format!("{call}{call} b"), &mut pieces);
        assert!(engine.wants_end());
        engine.finish(&mut pieces);
        assert_eq!(short(&pieces), "«a»f({})");
        assert_eq!(engine.complete_calls(), 1);
    }
}

mod qwen3_coder {
    use super::*;
    const F: ToolFormat = ToolFormat::Qwen3Coder;

    fn call(name: &str, parameters: &[(&str, &str)]) -> String {
        let parameter =
            |(name, value): &(&str, &str)| format!("<parameter={name}>\n{value}\n</parameter>\n");
        let parameters: String = parameters.iter().map(parameter).collect();
        format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
    }

    #[test]
    fn values_are_typed_by_the_schema() {
        let parameters = [
            ("row", "4"),
            ("who", "Ada \"L\"\n\\ é"),
            ("window", "True"),
            ("price", "null"),
            ("tags", "[\"a\", \"b\"]"),
            ("meal", "{'hot': True, \"n\": (1, .5)}"),
            ("any", "x4"),
            ("other", "4"),
        ];
        check(
            F,
            &call("seat", &parameters),
            concat!(
                r#"seat({"row": 4, "who": "Ada \"L\"\n\\ é", "window": true, "price": null, "#,
                r#""tags": ["a", "b"], "meal": {"hot": true, "n": [1, 0.5]}, "any": "x4", "other": "4"})"#,
            ),
        );
        check(
            F,
            &call("seat", &[("row", "four")]),
            r#"seat({"row": "four"})"#,
        );
        check(F, &call("other", &[]), "other({})");
    }

    #[test]
    fn values_keep_what_looks_like_tags() {
        let value = "\n</parameter> x</parameter></parameter> <parameters>\n</function>\n<tool_call></tool_call>\n";
        check(
            F,
            &call("seat", &[("who", value), ("row", "1")]),
            &format!("seat({{\"who\": {}, \"row\": 1}})", json!(value)),
        );
    }

    #[test]
    fn what_only_looks_like_a_call_is_text() {
        for text in [
            "<tool_call>\n<function=seat",
            "<tool_call>\n<function=seat>\nno",
            "<tool_call>\n<function=>",
            "<tool_call>\n<parameter=x>",
            "<function=seat>\n</function>",
            "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
        ] {
            check_text(F, text);
        }
    }

    #[test]
    fn calls_without_the_end_of_the_function() {
        let text = "<tool_call><function=seat><parameter=row>4</parameter></tool_call>ok";
        check(F, text, r#"seat({"row": 4})«ok»"#);
        check(
            F,
            "<tool_call><function=seat><parameter=who>a</parameter>",
            r#"seat({"who": "a"#,
        );
    }
}

mod llama3 {
    use super::*;
    const F: ToolFormat = ToolFormat::Llama3;

    #[test]
    fn calls_are_found() {
        let (a, b) = (
            r#"{"name": "seat", "parameters": {"row": 4}}"#,
            r#"{"name":"b","arguments":{}}"#,
        );
        check(F, a, r#"seat({"row": 4})"#);
        check(
            F,
            &format!("<|python_tag|>{a}; {b};"),
            r#"seat({"row": 4})b({})"#,
        );
        check(F, &format!("\n{a};{b}"), r#"seat({"row": 4})b({})"#);
        check(F, &format!("So: <|python_tag|>{b}"), "«So: »b({})");
        check(F, &format!("<think>x</think>\n{b} ; y"), "‹x›b({})« ; y»");
    }

    #[test]
    fn what_only_looks_like_a_call_is_text() {
        for text in [
            r#"{"name": "Ada", "age": 36}"#,
            r#"{"name": "Ada"}"#,
            r#"{"age": 36, "name": "Ada"}"#,
            r#"{"name": "f", "parameters": 4}"#,
            r#"{"name": "f", "parameters": null}"#,
            r#"{"parameters": {}, "name": "f"}"#,
            r#"A {"name": "f", "parameters": {}}"#,
            "<|python_tag|>print(1)",
            "{",
        ] {
            check_text(F, text);
        }
    }
}

mod pythonic {
    use super::*;
    const F: ToolFormat = ToolFormat::Pythonic;

    #[test]
    fn calls_are_found() {
        check(
            F,
            r#"[seat(row=4, who="Ada"), a.light(on = True,), b()]"#,
            r#"seat({"row": 4, "who": "Ada"})a.light({"on": true})b({})"#,
        );
        check(
            F,
            "<|python_start|>[f(a=1)]<|python_end|>",
            r#"f({"a": 1})"#,
        );
        check(F, " \n[f(a=1)] ok", "f({\"a\": 1})« ok»");
    }

    #[test]
    fn values_become_json() {
        let cases = [
            ("-1.5e3", "-1.5e3"),
            ("None", "null"),
            ("red", "\"red\""),
            (r#"'it\'s "x"'"#, r#""it's \"x\"""#),
            (r#""a\n\x41\u00e9\U0001f600\101\q""#, r#""a\nAé😀A\\q""#),
            (r#""\ud83d\ude00 \ud83d""#, r#""😀 �""#),
            (r#""""a "b" ""c""""#, r#""a \"b\" \"\"c""#),
            ("''", "\"\""),
            (r"r'a\n'", r#""a\\n""#),
            ("[1, [], (2,), {}]", "[1, [], [2], {}]"),
            (
                "{'a': {1: False}, \"b\": [None]}",
                r#"{"a": {"1": false}, "b": [null]}"#,
            ),
            ("'[f(x=1)] }'", "\"[f(x=1)] }\""),
        ];
        for (python, json) in cases {
            check(
                F,
                &format!("[f(a={python})]"),
                &format!("f({{\"a\": {json}}})"),
            );
            check(
                F,
                &format!("[f(a={python} , b=2)]"),
                &format!("f({{\"a\": {json}, \"b\": 2}})"),
            );
            assert!(serde_json::from_str::<Value>(json).is_ok());
        }
    }

    #[test]
    fn what_only_looks_like_a_call_is_text() {
        for text in [
            "[1, 2, 3]",
            "[link](url)",
            "[note (a)]",
            "[f(1)]",
            "[f(a, b)]",
            "[f(",
            "[f(a=",
            "[]",
            "[\"a\"]",
            "See [f(a=1)]",
            "<|python_start|>f(a=1)",
        ] {
            check_text(F, text);
        }
    }

    #[test]
    fn a_broken_call_has_no_end() {
        check(F, "[f(a=1 + 2)]", r#"f({"a": 1«+ 2)]»"#);
        check(F, "[f(a=[1)]", r#"f({"a": [1«)]»"#);
        check(F, "[f(a=1), g(x)]", "f({\"a\": 1})«, g(x)]»");
    }
}

mod mistral {
    use super::*;
    const F: ToolFormat = ToolFormat::Mistral;

    #[test]
    fn calls_are_found() {
        check(
            F,
            r#"[TOOL_CALLS] [{"name": "seat", "arguments": {"row": 4}}, {"name":"b","arguments":{},"id":"1"}]"#,
            r#"seat({"row": 4})b({})"#,
        );
        check(
            F,
            r#"Ok.[TOOL_CALLS]seat[ARGS]{"row": 4}[TOOL_CALLS]b[CALL_ID]a1B[ARGS] {"x":"[TOOL_CALLS]"}"#,
            r#"«Ok.»seat({"row": 4})b({"x":"[TOOL_CALLS]"})"#,
        );
        check(F, "[TOOL_CALLS]b{}", "b({})");
    }

    #[test]
    fn what_only_looks_like_a_call_is_text() {
        for text in [
            "[TOOL_CALLS]",
            "[TOOL_CALL] [",
            "[TOOL_CALLS] []",
            "[TOOL_CALLS] [1, 2]",
            "[TOOL_CALLS] hello world",
            "[TOOL_CALLS]f[ARGS]no",
            "[TOOL_CALLS]f[ARGS]",
            "[ARGS] [CALL_ID]",
            "[TOOL_CALLS][TOOL_CALLS]",
        ] {
            check_text(F, text);
        }
    }
}

mod reasoning {
    use super::*;

    fn check(format: ReasoningFormat, text: &str, expected: &str) {
        let engine = engine(None, Some(format));
        assert_eq!(short(&run(engine, text)), expected, "{text:?}");
    }

    #[test]
    fn tags_part_thoughts_from_content() {
        let f = ReasoningFormat::Think;
        check(f, "<think>\na\n\nb\n</think>\n\nc\n", "‹a\n\nb›«c\n»");
        check(f, "\n<think></think>\n\nc", "«c»");
        check(f, "<think>a", "‹a›");
        check(f, "<think>a\n</thin", "‹a\n</thin›");
        check(f, "a</think>b", "«ab»");
        check(f, "a <think> b</think>c", "«a <think> b</think>c»");
        check(f, "<think>a</think><think>b</think>c", "‹ab›«c»");
        check(f, "<think>a <think> b</think>c", "‹a <think> b›«c»");
        check(ReasoningFormat::MistralThink, "[THINK]a[/THINK]b", "‹a›«b»");
    }

    #[test]
    fn outputs_may_begin_inside() {
        let f = ReasoningFormat::DeepSeekR1;
        check(f, "a</think>b", "‹a›«b»");
        check(f, "<think>\na</think>b", "‹a›«b»");
        check(f, "a", "‹a›");
        assert!(f.is_open_after("x<think>\n"));
        assert!(!f.is_open_after("<think>\n\n</think>\n\n"));
        assert!(!f.is_open_after("x"));
    }

    #[test]
    fn a_call_ends_reasoning() {
        super::check(
            ToolFormat::Hermes,
            "<think>So\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n</think>\nx",
            "‹So›f({})«\n\nx»",
        );
    }
}

mod tokens {
    use super::*;

    fn run(items: &[(&str, Option<u32>)], hidden: bool) -> String {
        let formats = OutputFormats {
            tool: Some(ToolFormat::Hermes),
            reasoning: Some(ReasoningFormat::Think),
        };
        let ids = ["<think>", "</think>", "<tool_call>", "</tool_call>"];
        let markers = Markers::new(formats, |text| {
            ids.iter()
                .position(|known| *known == text)
                .map(|at| at as u32)
        });
        let markers = Arc::new(markers.hiding(|_| hidden));
        assert!(markers.is_marker(3) && !markers.is_marker(4));
        let mut engine = OutputEngine::new(formats, Some(tools(true)), markers, false);
        let mut pieces = Vec::new();
        for (text, token) in items {
            match token {
                Some(token) => engine.push_marker(*token, &mut pieces),
                None => engine.push_text(text, &mut pieces),
            }
        }
        engine.finish(&mut pieces);
        short(&pieces)
    }

    #[test]
    fn tokens_are_markers_and_their_letters_are_not() {
        let text = |text: &'static str| (text, None);
        let token = |id: u32| ("", Some(id));
        let call = "{\"name\":\"f\",\"arguments\":{}}";
        let items = [
            token(0),
            text("a <tool_call>"),
            text(call),
            token(1),
            text("b"),
            token(2),
            text(call),
            token(3),
        ];
        assert_eq!(
            run(&items, false),
            "‹a <tool_call>{\"name\":\"f\",\"arguments\":{}}›«b»f({})"
        );
    }

    #[test]
    fn tokens_that_mean_nothing_are_text() {
        let text = |text: &'static str| (text, None);
        let token = |id: u32| ("", Some(id));
        let items = [
            text("a"),
            token(0),
            token(2),
            text("{\"x "),
            token(1),
            text("y"),
            token(3),
            token(3),
        ];
        assert_eq!(
            run(&items, false),
            "«a<think><tool_call>{\"x </think>y</tool_call>»"
        );
        assert_eq!(run(&items, true), "«a{\"x y»");
        let items = [
            token(2),
            text("{\"name\":\"f\",\"arguments\":{\"a\":\""),
            token(3),
            text("\"}}"),
            token(3),
        ];
        assert_eq!(run(&items, false), "f({\"a\":\"</tool_call>\"})");
        assert_eq!(run(&items, true), "f({\"a\":\"\"})");
    }
}

#[test]
fn names_are_those_of_sglang() {
    for name in ToolFormat::names() {
        assert!(ToolFormat::parse(name).is_some());
    }
    for name in ReasoningFormat::names() {
        assert!(ReasoningFormat::parse(name).is_some());
    }
    assert_eq!(ToolFormat::parse("qwen25"), Some(ToolFormat::Hermes));
    assert_eq!(ToolFormat::parse("x"), None);
    assert_eq!(ToolFormat::Hermes.opening(), "<tool_call>");
    assert_eq!(ToolFormat::Mistral.closing(), None);
}

#[test]
fn without_tools_calls_are_text() {
    let formats = OutputFormats {
        tool: Some(ToolFormat::Hermes),
        reasoning: None,
    };
    let engine = OutputEngine::new(formats, None, Arc::new(Markers::default()), false);
    let text = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    assert_eq!(short(&run(engine, text)), format!("«{text}»"));
}

#[test]
fn bounds_hold() {
    let long = "x".repeat(MAX_HELD_CHARS);
    check_text(
        ToolFormat::Hermes,
        &format!("<tool_call>{{\"name\":\"{long}\",\"arguments\":{{}}}}</tool_call>"),
    );
    let value = "1".repeat(MAX_VALUE_BYTES + 1);
    check(
        ToolFormat::Qwen3Coder,
        &format!(
            "<tool_call><function=seat><parameter=meal>{value}</parameter></function></tool_call>"
        ),
        &format!("seat({{\"meal\": \"{value}\"}})"),
    );
    let deep = "[".repeat(MAX_DEPTH as usize);
    check(
        ToolFormat::Hermes,
        &format!("<tool_call>{{\"name\":\"f\",\"arguments\":{deep}[1"),
        &format!("f({deep}«[1»"),
    );
}
