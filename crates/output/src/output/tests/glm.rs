//! Tests of the formats of GLM.

use super::*;
const F: ToolFormat = ToolFormat::Glm45;

#[test]
fn calls_are_read_with_and_without_newlines() {
    let expected = r#"seat({"row": 4, "who": "\nAda ", "window": true, "meal": {"a":[1]}})"#;
    for line in ["\n", ""] {
        let pair = |(key, value): (&str, &str)| {
            format!("<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}")
        };
        let pairs = [
            ("row", "4"),
            ("who", "\nAda "),
            ("window", "true"),
            ("meal", "{\"a\":[1]}"),
        ];
        let call = format!(
            "<tool_call>seat{line}{}</tool_call>",
            pairs.map(pair).concat()
        );
        check(F, &call, expected);
        check(ToolFormat::Glm47, &call, expected);
        check(
            F,
            &format!("<think>So</think>{line}{call}{line}{call}"),
            &format!("‹So›{expected}{expected}"),
        );
    }
    check(F, "<tool_call>seat</tool_call>", "seat({})");
    check(F, "<tool_call>\nseat\n</tool_call>\n", "seat({})");
    check(
        F,
        "<tool_call>other<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
        r#"other({"a": "1"})"#,
    );
}

#[test]
fn values_keep_text_that_resembles_tags() {
    let value = "</arg_value> x<arg_key></arg_value></tool_call>";
    let inside = value
        .strip_suffix("</arg_value></tool_call>")
        .expect("the value ends with both tags");
    check(
        F,
        &format!("<tool_call>seat<arg_key>who</arg_key><arg_value>{value}"),
        &format!("seat({{\"who\": {}}})", json!(inside)),
    );
}

#[test]
fn text_that_only_resembles_a_call_is_text() {
    for text in [
        "<tool_call>",
        "<tool_call>seat",
        "<tool_call>nothing</tool_call> at all",
        "<tool_call>two words</tool_call>",
        "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
        "<tool_call>seat<arg_key>a</arg_key>b",
        "<arg_key>a</arg_key>",
    ] {
        check_text(F, text);
    }
}
