//! Tests that hostile grammars compile or fail within the work limits.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::GrammarWish;
use super::vocabularies::tiny;
use super::walk::walk_for;
use super::{schema, wish};
use souffleur_state::grammar::Constraint;

/// Compiles a grammar and, if that succeeds, walks 200 tokens. Fails after a minute.
fn survives(name: &str, constraint: Constraint) {
    survives_wish(name, &wish(constraint));
}

fn survives_wish(name: &str, wish: &GrammarWish) {
    let started = Instant::now();
    let vocabulary = tiny();
    let compiled = vocabulary.compiler().compile(wish, &|| false);
    let outcome = match compiled {
        Ok(grammar) => {
            let walk = walk_for(grammar.expect("a grammar").as_ref(), vocabulary, 1, 200);
            format!("{:?} after {} tokens", walk.end, walk.tokens.len())
        }
        Err(error) => error.to_string().chars().take(160).collect(),
    };
    let took = started.elapsed();
    eprintln!("{name}: {outcome} in {took:?}");
    assert!(took < Duration::from_secs(60), "{name} took {took:?}");
}

#[test]
fn schemas_that_are_deep() {
    let deep = std::thread::Builder::new().stack_size(256 << 20).spawn(|| {
        // This thread has a large stack, which dropping such a value needs.
        // `json!` would copy the inner value at each level.
        let around = |inner| serde_json::Map::from_iter([("items".to_owned(), inner)]).into();
        let deep = (0..10_000).fold(json!({"type": "null"}), |inner, _| around(inner));
        survives("nested 10,000 deep", schema(deep));
    });
    deep.expect("the thread starts")
        .join()
        .expect("it does not panic");
}

#[test]
fn schemas_with_many_properties() {
    let wide = |n: usize| -> Value {
        let properties: serde_json::Map<String, Value> = (0..n)
            .map(|at| {
                (
                    format!("property_{at}"),
                    json!({"type": "string", "maxLength": at}),
                )
            })
            .collect();
        json!({"type": "object", "properties": properties})
    };
    survives("50 kB of properties", schema(wide(900)));
    survives("5,000 properties", schema(wide(5_000)));
}

#[test]
fn schemas_with_long_enums_and_references() {
    let words: Vec<String> = (0..5_000)
        .map(|at| format!("word-{at}-{}", at * 7))
        .collect();
    survives("an enum of 5,000", schema(json!({ "enum": words })));
    let chain: serde_json::Map<String, Value> = (0..5_000)
        .map(|at| {
            (
                format!("d{at}"),
                json!({"$ref": format!("#/$defs/d{}", at + 1)}),
            )
        })
        .chain([("d5000".to_owned(), json!({"type": "null"}))])
        .collect();
    survives(
        "a chain of references",
        schema(json!({"$defs": chain, "$ref": "#/$defs/d0"})),
    );
    survives("a reference to itself", schema(json!({"$ref": "#"})));
    survives(
        "an array in itself",
        schema(json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1})),
    );
}

#[test]
fn schemas_that_multiply() {
    let options = |n: usize| -> Vec<Value> {
        (0..n)
            .map(|at| json!({"properties": {format!("p{at}"): {"type": "integer"}}}))
            .collect()
    };
    let all: Vec<Value> = (0..8).map(|_| json!({"anyOf": options(8)})).collect();
    survives("anyOf in allOf", schema(json!({ "allOf": all })));
    survives(
        "long strings",
        schema(json!({"type": "string", "minLength": 1_000_000, "maxLength": 2_000_000})),
    );
    survives(
        "long arrays",
        schema(json!({"type": "array", "minItems": 1_000_000, "items": {"type": "null"}})),
    );
    survives(
        "patterns",
        schema(
            json!({"type": "string", "pattern": "^(a+)+(b|c{1,500}){1,500}$", "minLength": 100}),
        ),
    );
    let patterns: serde_json::Map<String, Value> = (0..40)
        .map(|at| (format!("^({}|b){{1,50}}x{at}$", "a".repeat(at)), json!({})))
        .collect();
    survives(
        "patterns of properties",
        schema(json!({ "patternProperties": patterns })),
    );
    survives(
        "a multiple",
        schema(json!({"type": "number", "multipleOf": 0.000_000_7})),
    );
    survives(
        "no multiple",
        schema(json!({"type": "integer", "multipleOf": 0})),
    );
}

#[test]
fn expressions_that_explode() {
    for pattern in [
        "(a{1,1000}){1,1000}",
        "((a{1,100}){1,100}){1,100}",
        "(a|aa|aaa)*(b|bb)*c{1000}",
        "(.*a.{200}){1,5}",
        r"(\w+\s?){1,1000}",
        "[a-z]{1,100000}",
        "(x+x+)+y",
    ] {
        survives(pattern, Constraint::Regex(pattern.into()));
    }
    survives(
        "nested groups",
        Constraint::Regex(format!("{}a{}", "(".repeat(20_000), ")".repeat(20_000)).into()),
    );
    survives("a long text", Constraint::Regex("ab".repeat(30_000).into()));
    survives(
        "a forced text",
        Constraint::Regex("(q|z)x{10000000}".into()),
    );
    survives("too long", Constraint::Regex("ab".repeat(100_000).into()));
    let texts: Vec<String> = (0..3_000).map(|at| format!("{at:015}")).collect();
    survives("many choices", Constraint::Choice(texts.into()));
}

#[test]
fn grammars_that_explode() {
    let chain: String = (0..3_000)
        .map(|at| format!("a{at} ::= a{} a{}\n", at + 1, at + 1))
        .collect();
    survives(
        "a chain of rules",
        Constraint::Ebnf(format!("root ::= a0\n{chain}a3000 ::= \"x\"").into()),
    );
    let loops: String = (0..1_500)
        .map(|at| format!("a{at} ::= a{} \"x\" a0 | \"y\"\n", at + 1))
        .collect();
    survives(
        "rules in a circle",
        Constraint::Ebnf(format!("root ::= a0\n{loops}a1500 ::= a0 | \"z\"").into()),
    );
    for text in [
        "root ::= root",
        "root ::= root root | \"\"",
        "root ::= root? root? root? \"a\" | \"b\"",
        "root ::= (((a{1,1000}){1,1000}){1,1000}){1,1000}\na ::= root | \"x\"",
        "root ::= a{1000000}\na ::= \"(\" root \")\" | [a-z]*",
        "root ::= (\"a\" | root \"a\" | \"a\" root)+",
    ] {
        survives(text, Constraint::Ebnf(text.into()));
    }
    survives(
        "deep groups",
        Constraint::Ebnf(
            format!("root ::= {}\"a\"{}", "(".repeat(9_000), ")".repeat(9_000)).into(),
        ),
    );
    let lark: String = (0..3_000)
        .map(|at| format!("a{at}: a{} | \"{at}\"\n", at + 1))
        .collect();
    survives(
        "Lark",
        Constraint::Ebnf(format!("%llguidance {{}}\nstart: a0\n{lark}a3000: \"x\"\n").into()),
    );
}

#[test]
fn very_many_tools() {
    use souffleur_state::output::{Tool, ToolChoice, ToolFormat, ToolUse};
    for format in [
        ToolFormat::Hermes,
        ToolFormat::Qwen3Coder,
        ToolFormat::Pythonic,
    ] {
        for choice in [ToolChoice::Auto, ToolChoice::Required] {
            let tool = |at: usize| Tool {
                name: format!("tool_{at}"),
                description: None,
                parameters: Some(
                    json!({"type": "object", "properties": {format!("p{at}"): {"type": "string"}}}),
                ),
                strict: true,
            };
            let tools = ToolUse {
                tools: (0..10_000).map(tool).collect(),
                choice,
                parallel: true,
            };
            let wish = GrammarWish {
                tools: Some(std::sync::Arc::new(tools)),
                tool_format: Some(format),
                ..Default::default()
            };
            survives_wish("10,000 tools", &wish);
        }
    }
}
