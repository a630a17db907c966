//! Tests that tools reach a template as they were sent.

use super::*;

/// Written by `tools/chat_templates/tools.py`.
const CASES: &str = include_str!("../../../../../tests/fixtures/chat_templates/tools.jsonl");
const QWEN3: &str = include_str!("../../../../../tests/fixtures/qwen3-agents/chat_template.jinja");

#[test]
fn tools_are_written_as_transformers_writes_them() {
    let mut differences = Vec::new();
    let mut count = 0;
    for line in CASES.lines() {
        let case: Json = serde_json::from_str(line).expect("a line is JSON");
        let source = match case["template"]
            .as_str()
            .expect("a case names its template")
        {
            "qwen3-agents" => QWEN3,
            source => source,
        };
        let tools = case["tools"].as_str().expect("a case has tools as text");
        let tools = RawValue::from_string(tools.to_owned()).expect("they are JSON");
        let prompt = ChatPrompt {
            tools: Some(&tools),
            ..ChatPrompt::new(&case["messages"])
        };
        let found = compile(source).render(&prompt);
        // Where a template fails on a tool without a schema, it gets an empty one.
        let agrees = match &found {
            Ok(text) => case["output"] == text.as_str() || case["error"].is_string(),
            Err(_) => case["error"].is_string(),
        };
        if !agrees {
            differences.push(format!("{case}\n  is {found:?}"));
        }
        count += 1;
    }
    assert!(count >= 60, "{count} cases");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn a_template_that_reads_the_schema_of_every_tool_takes_one_without() {
    let source = "{% for t in tools %}{{ t.function.name }}{% for p in t.function.parameters.properties %}{{ p }}{% endfor %}\
                  {% endfor %}";
    let tools =
        raw(&json!([{"type": "function", "function": {"name": "clock", "description": null}}]));
    let chat = json!([say("user", "a")]);
    let prompt = ChatPrompt {
        tools: Some(&tools),
        ..ChatPrompt::new(&chat)
    };
    assert_eq!(compile(source).render(&prompt), Ok("clock".to_owned()));
}
