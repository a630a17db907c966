//! Tests of tools in chat completions.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{call, parse, refuses_field};
use souffleur_request::{Tool, ToolChoice, ToolUse};

fn seat() -> Value {
    let row = json!({"type": "object", "properties": {"row": {"type": "integer"}}});
    let function =
        json!({"name": "seat", "description": "Finds a seat.", "parameters": row, "strict": true});
    json!({"type": "function", "function": function})
}

fn light() -> Value {
    json!({"type": "function", "function": {"name": "light.on", "description": null}})
}

fn usage(value: Value) -> Arc<ToolUse> {
    call(value).tools.expect("there are tools")
}

fn names(usage: &ToolUse) -> Vec<&str> {
    usage.tools.iter().map(|tool| tool.name.as_str()).collect()
}

#[test]
fn tools_reach_the_template_and_the_engine() {
    let read = call(json!({"tools": [seat(), light()], "parallel_tool_calls": false}));
    let row = json!({"type": "object", "properties": {"row": {"type": "integer"}}});
    let shown = read
        .prompt
        .tools
        .as_ref()
        .map(|tools| tools.get().to_owned());
    assert_eq!(shown, Some(format!("[{}, {}]", seat(), light())));
    let expected = ToolUse {
        tools: vec![
            Tool {
                name: "seat".to_owned(),
                description: Some("Finds a seat.".to_owned()),
                parameters: Some(row),
                strict: true,
            },
            Tool {
                name: "light.on".to_owned(),
                description: None,
                parameters: None,
                strict: false,
            },
        ],
        choice: ToolChoice::Auto,
        parallel: false,
    };
    assert_eq!(read.tools.as_deref(), Some(&expected));
    let request = &read.into_requests()[0];
    let tools = request
        .parsing
        .as_ref()
        .and_then(|parsing| parsing.tools.as_deref());
    assert_eq!(tools, Some(&expected));
}

#[test]
fn choices_are_read_in_all_their_forms() {
    let choice = |choice: Value| usage(json!({"tools": [seat(), light()], "tool_choice": choice}));
    assert_eq!(choice(Value::Null).choice, ToolChoice::Auto);
    assert_eq!(choice(json!("auto")).choice, ToolChoice::Auto);
    assert_eq!(choice(json!("required")).choice, ToolChoice::Required);
    let named = ToolChoice::Named("seat".to_owned());
    let function = json!({"type": "function", "function": {"name": "seat"}});
    assert_eq!(choice(function.clone()).choice, named);
    assert_eq!(
        choice(json!({"type": "function", "name": "seat"})).choice,
        named
    );
    for (mode, expected) in [
        ("auto", ToolChoice::Allowed),
        ("required", ToolChoice::Required),
    ] {
        let allowed = json!({"mode": mode, "tools": [function]});
        let body = json!({
            "tools": [seat(), light()],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed},
        });
        let read = call(body);
        let shown = read
            .prompt
            .tools
            .as_ref()
            .map(|tools| tools.get().to_owned());
        assert_eq!(shown, Some(format!("[{}, {}]", seat(), light())));
        let usage = read.tools.expect("one may be called");
        assert_eq!((names(&usage), &usage.choice), (vec!["seat"], &expected));
    }
}

#[test]
fn tools_are_ignored_if_the_choice_is_none() {
    let read = call(json!({"tools": [seat()], "tool_choice": "none"}));
    assert!(read.prompt.tools.is_none() && read.tools.is_none());
    let old = json!({"functions": [{"name": "f"}], "function_call": "none"});
    assert!(call(old).tools.is_none());
    for none in [
        json!({"tools": [], "tool_choice": "none", "functions": null}),
        json!({"tools": null, "tool_choice": "auto"}),
    ] {
        assert!(call(none).tools.is_none());
    }
}

#[test]
fn functions_are_tools() {
    let functions = json!([{"name": "seat"}, {"name": "light"}]);
    let read = usage(json!({"functions": functions, "function_call": {"name": "light"}}));
    assert_eq!(names(&read), ["seat", "light"]);
    assert_eq!(read.choice, ToolChoice::Named("light".to_owned()));
    refuses_field(
        json!({"functions": functions, "tools": [seat()]}),
        "functions",
        "functions and tools are both given: leave functions out",
    );
    refuses_field(
        json!({"functions": [{"name": "a"}, {"name": "a"}]}),
        "functions[1].name",
        "functions[1].name is \"a\", which another tool has: rename one",
    );
}

#[test]
fn invalid_tools_are_refused_with_their_paths() {
    let with = |tool: Value| json!({"tools": [seat(), tool]});
    let function = |function: Value| with(json!({"type": "function", "function": function}));
    let place = |name: &str| format!("tools[1].function.{name}");
    let refuses = |body: Value, param: &str, rest: &str| {
        refuses_field(body, param, &format!("{param} {rest}"));
    };
    refuses(
        json!({"tools": {"a": 1}}),
        "tools",
        "is an object, must be a list of tools",
    );
    refuses(with(json!(5)), "tools[1]", "is 5, must be an object");
    refuses(
        with(json!({})),
        "tools[1].type",
        "is missing: send \"function\"",
    );
    refuses(
        with(json!({"type": "custom", "custom": {"name": "x"}})),
        "tools[1].type",
        "is \"custom\", must be \"function\": no other kind of tool is supported",
    );
    let missing = "is missing: send an object with a name";
    refuses(
        with(json!({"type": "function"})),
        "tools[1].function",
        missing,
    );
    refuses(
        function(json!({})),
        &place("name"),
        "is missing: send a string",
    );
    let wanted = "must be 1 to 64 letters, digits, _, . or -";
    for name in ["", "a b", "é", "x/y"] {
        let rest = format!("is {name:?}, {wanted}");
        refuses(function(json!({ "name": name })), &place("name"), &rest);
    }
    refuses(
        function(json!({"name": "f", "parameters": "x"})),
        &place("parameters"),
        "is \"x\", must be a JSON schema: an object",
    );
    refuses(
        function(json!({"name": "f", "strict": 1})),
        &place("strict"),
        "is 1, must be true or false",
    );
    refuses(
        function(json!({"name": "f", "description": 1})),
        &place("description"),
        "is 1, must be a string",
    );
    refuses(
        with(seat()),
        &place("name"),
        "is \"seat\", which another tool has: rename one",
    );
    let long = function(json!({"name": "x".repeat(65)}));
    assert!(parse(long).is_err());
}

#[test]
fn invalid_choices_are_refused_with_their_paths() {
    let choice = |choice: Value| json!({"tools": [seat()], "tool_choice": choice});
    let wanted = "must be none, auto, required, or an object that names a function";
    refuses_field(
        choice(json!("any")),
        "tool_choice",
        &format!("tool_choice is \"any\", {wanted}"),
    );
    let none = "but there are no tools: send tools or no tool_choice";
    for (value, shown) in [
        (json!("required"), "required"),
        (json!({"type": "function", "function": {"name": "f"}}), "f"),
    ] {
        let text = format!("tool_choice is {shown:?}, {none}");
        refuses_field(json!({ "tool_choice": value }), "tool_choice", &text);
    }
    let path = "tool_choice.function.name";
    refuses_field(
        choice(json!({"type": "function", "function": {"name": "f"}})),
        path,
        &format!("{path} is \"f\", but no tool has that name: tool_choice must name a tool"),
    );
    let allowed =
        |allowed: Value| choice(json!({"type": "allowed_tools", "allowed_tools": allowed}));
    let path = "tool_choice.allowed_tools.tools[0].function.name";
    let other = json!([{"type": "function", "function": {"name": "f"}}]);
    refuses_field(
        allowed(json!({"mode": "auto", "tools": other})),
        path,
        &format!("{path} is \"f\", but no tool has that name: tool_choice must name a tool"),
    );
    let path = "tool_choice.allowed_tools.mode";
    refuses_field(
        allowed(json!({"mode": "none", "tools": other})),
        path,
        &format!("{path} is \"none\", must be auto or required"),
    );
    let path = "tool_choice.allowed_tools.tools";
    refuses_field(
        allowed(json!({"mode": "auto", "tools": []})),
        path,
        &format!("{path} is a list of 0 items, must be a list with at least one tool"),
    );
    refuses_field(
        choice(json!({"type": "custom", "custom": {"name": "x"}})),
        "tool_choice.type",
        "tool_choice.type is \"custom\", must be function or allowed_tools",
    );
}

#[test]
fn too_many_tools_are_refused_before_they_are_read() {
    let many: Vec<Value> = (0..10_000).map(|index| json!({"type": index})).collect();
    refuses_field(
        json!({ "tools": many }),
        "tools",
        "tools has 10000 tools, limit is 1024: send fewer",
    );
}
