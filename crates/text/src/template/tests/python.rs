//! Tests of expressions and templates against jinja2 as transformers configures it.

use super::*;

/// Written by `tools/chat_templates/expressions.py`.
const EXPRESSIONS: &str =
    include_str!("../../../../../tests/fixtures/chat_templates/expressions.jsonl");

/// Templates that jinja2 renders and this engine refuses, with the text of the refusal.
const REFUSED: [(&str, &str); 1] = [(
    "{% autoescape true %}{{ html }}{% endautoescape %}",
    "autoescape is not supported",
)];

/// Variables as Python reads them from JSON: with every digit.
pub(super) fn variables_of(line: &str) -> FxHashMap<String, Value> {
    let line = Value::parse_json(line).expect("it is JSON");
    let variables = line.field("variables").expect("the fixture has variables");
    let variables = variables.fields();
    variables
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect()
}

fn rendered(template: &str, variables: &FxHashMap<String, Value>) -> Result<String, String> {
    let template = Template::compile(template)?;
    let rendered = template.render(variables, LIMITS);
    rendered.map_err(|error| error.to_string())
}

#[test]
fn expressions_evaluate_as_in_python() {
    let mut lines = EXPRESSIONS.lines();
    let variables = variables_of(lines.next().expect("the fixture has a first line"));
    let mut differences = Vec::new();
    let mut count = 0;
    for line in lines {
        let case: Json = serde_json::from_str(line).expect("a line is JSON");
        let template = case["template"].as_str().expect("a case has a template");
        let found = rendered(template, &variables);
        let refusal = REFUSED.iter().find(|(known, _)| *known == template);
        let agrees = match (&found, refusal) {
            (Err(error), Some((_, words))) => error.contains(words),
            (_, Some(_)) => false,
            (Ok(text), None) => case["output"] == text.as_str(),
            (Err(_), None) => case["error"].is_string(),
        };
        if !agrees {
            differences.push(format!("{case}\n  is {found:?}"));
        }
        count += 1;
    }
    assert!(count > 1000, "{count} cases");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn integers_keep_every_digit() {
    let digits = "123456789012345678901234567890123456789012345678901234567890";
    let chat = json!([say("user", "a"), {"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "f", "arguments": format!("{{\"n\": {digits}, \"m\": -{digits}, \"f\": 1.50}}")}}]}]);
    let arguments = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.name }} \
                     {{ c.function.arguments | tojson }} {{ c.function.arguments.n + 1 }}{% endfor %}{% endfor %}";
    let plus_one = digits.strip_suffix('0').expect("the last digit is a zero");
    assert_eq!(
        render(arguments, chat),
        format!("f {{\"n\": {digits}, \"m\": -{digits}, \"f\": 1.5}} {plus_one}1")
    );
}
