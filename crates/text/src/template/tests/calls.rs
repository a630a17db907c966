//! Tests that earlier tool calls get the form that a template expects.

use super::*;

#[test]
fn calls_are_in_the_content_where_a_template_leaves_them_out() {
    const WITHOUT: &str = "{%- for m in messages -%}<{{ m.role }}>{{ m.content }}{%- endfor -%}";
    const WITH: &str = "{%- for m in messages -%}<{{ m.role }}>{{ m.content }}\
                        {%- for c in m.tool_calls -%}{{ c.function.name }}{{ c.function.arguments | tojson }}{%- endfor -%}{%- endfor -%}";
    let call = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\": [true, \"y\"]}"}});
    let chat = |content: Json| {
        json!([
            say("user", "a"),
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "4"},
        ])
    };
    let written = "<|tool_call_start|>[f(x=[True, \"y\"])]<|tool_call_end|>";
    for (content, text) in [(json!(null), ""), (json!(""), ""), (json!("So."), "So.")] {
        let expected = format!("<user>a<assistant>{text}{written}<tool>4");
        let mut template = compile(WITHOUT);
        template.put_calls_into_content(CallWriter::Lfm2);
        let chat = chat(content);
        assert_eq!(template.render(&ChatPrompt::new(&chat)), Ok(expected));
        let mut template = compile(WITH);
        template.put_calls_into_content(CallWriter::Lfm2);
        let expected = format!("<user>a<assistant>{text}f{{\"x\": [true, \"y\"]}}<tool>4");
        assert_eq!(template.render(&ChatPrompt::new(&chat)), Ok(expected));
    }
}

#[test]
fn call_ids_are_shortened_if_the_template_checks_their_length() {
    let long = "call_0123456789abcdef01234567";
    let chat = json!([
        say("user", "a"),
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": long, "function": {"name": "f", "arguments": "{}"}}, {"function": {"name": "g"}}]},
        {"role": "tool", "content": "4", "tool_call_id": long},
        {"role": "tool", "content": "5", "tool_call_id": "AbCdEf123"},
    ]);
    let ids = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.id }} {% endfor %}{{ m.tool_call_id }} {% endfor %}";
    let given = render(ids, chat.clone());
    assert_eq!(given.matches(long).count(), 2, "{given}");
    let strict = format!(
        "{{% if messages[0].id is defined and messages[0].id | length != 9 %}}{{% endif %}}{ids}"
    );
    let made = render(&strict, chat);
    let made: Vec<&str> = made.split_whitespace().collect();
    assert!(made.iter().all(|id| id.len() == 9), "{made:?}");
    assert_eq!((made.len(), made[0], made[3]), (4, made[2], "AbCdEf123"));
}

#[test]
fn a_conversation_continues_after_arguments_that_are_not_an_object() {
    let messages = json!([{"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "f", "arguments": "{\"row\": "}}]}]);
    let shown = "{% for m in messages %}{{ m.tool_calls[0].function.arguments }}{% endfor %}";
    let looped = "{% for m in messages %}{% for k, v in m.tool_calls[0].function.arguments | items %}{{ k }}{% endfor %}!{% endfor %}";
    for (source, expected) in [(shown, "{\"row\": "), (looped, "!")] {
        assert_eq!(render(source, messages.clone()), expected);
    }
}

#[test]
fn arguments_of_calls_are_bounded() {
    let chat = |arguments: String| {
        json!([say("user", "a"), {"role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": arguments}}]}])
    };
    let source = "{{ messages[1].tool_calls[0].function.arguments is mapping }}";
    assert_eq!(render(source, chat("{\"a\": 1}".to_owned())), "True");
    assert_eq!(render(source, chat("[1]".to_owned())), "False");
    assert_eq!(render(source, chat("{\"a\": ".to_owned())), "False");
    let many = format!("{{\"a\": [{}[]]}}", "[],".repeat(1 << 16));
    let error = refused(source, chat(many));
    assert!(error.contains("JSON values"), "{error}");
}

#[test]
fn calls_have_the_form_that_a_template_expects() {
    let chat = json!([say("user", "a"), {"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "f", "arguments": {"row": 4}}}]}]);
    let calls = |shown: &str| {
        format!(
            "{{% for m in messages %}}{{% for c in m.tool_calls %}}{shown}{{% endfor %}}{{% endfor %}}"
        )
    };
    let joined = calls("{{ c.function.name + '(' + c.function.arguments + ')' }}");
    assert_eq!(render(&joined, chat.clone()), "f({\"row\": 4})");
    let object = calls(
        "{{ c.function.name }}({{ c.function.arguments.row }})\
        {% for k in c.function.arguments %}{{ c.function.arguments[k] }}{% endfor %}",
    );
    assert_eq!(render(&object, chat.clone()), "f(4)4");
    let silent = calls(
        "{{ c.function.name }} {{ c.function.arguments | tojson }} \
        {% if m['content'] is none %}nothing{% else %}said{% endif %}",
    );
    assert_eq!(render(&silent, chat), "f {\"row\": 4} nothing");
}
