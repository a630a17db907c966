//! Tests of the format of Qwen3-Coder.

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
fn values_keep_text_that_resembles_tags() {
    let value = "\n</parameter> x</parameter></parameter> <parameters>\n</function>\n<tool_call></tool_call>\n";
    check(
        F,
        &call("seat", &[("who", value), ("row", "1")]),
        &format!("seat({{\"who\": {}, \"row\": 1}})", json!(value)),
    );
}

#[test]
fn text_that_only_resembles_a_call_is_text() {
    for text in [
        "<tool_call>\n<function=seat",
        "<tool_call>\n<function=seat>\nno",
        "<tool_call>\n<function=>",
        "<tool_call>\n<parameter=x>",
        "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
    ] {
        check_text(F, text);
    }
}

#[test]
fn calls_without_the_end_tag_of_the_function_are_read() {
    let text = "<tool_call><function=seat><parameter=row>4</parameter></tool_call>ok";
    check(F, text, r#"seat({"row": 4})«ok»"#);
    check(
        F,
        "<tool_call><function=seat><parameter=who>a</parameter>",
        r#"seat({"who": "a"#,
    );
}

#[test]
fn calls_without_tool_call_tags_or_in_json_are_read() {
    check(F, "<function=seat>\n</function>", "seat({})");
    check(
        F,
        "Well.\n<function=seat>\n<parameter=row>\n4\n</parameter>\n</function>\n</tool_call>",
        r#"«Well.»seat({"row": 4})"#,
    );
    check(
        F,
        "<tool_call>\n{\"name\": \"seat\", \"arguments\": {\"row\": 4}}\n</tool_call>",
        r#"seat({"row": 4})"#,
    );
}

#[test]
fn values_without_end_tags_are_read() {
    let text = "<tool_call>\n<function=seat>\n<parameter=who>\nAda\n<parameter=row>\n4\n</parameter>\n</function>\n</tool_call>";
    check(F, text, r#"seat({"who": "Ada", "row": 4})"#);
    let text = "<tool_call>\n<function=seat>\n<parameter=row>\n4\n<parameter=who>\nAda\n</function>\n</tool_call>ok";
    check(F, text, r#"seat({"row": 4, "who": "Ada"})«ok»"#);
    for value in [
        "a\n<parameter=who>\nb",
        "a\n<parameter=other>\nb",
        "a <parameter=row>\nb",
        "a\n<parameter=row\n>b",
        "a\n</function>\nb",
        "a\n<parameter=<parameter=row",
    ] {
        let text = call("seat", &[("who", value), ("row", "1")]);
        let expected = format!("seat({{\"who\": {}, \"row\": 1}})", json!(value));
        check(F, &text, &expected);
    }
}
