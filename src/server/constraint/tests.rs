//! Tests of fields that constrain an output.

use serde_json::json;

use super::*;

fn read(body: Value) -> Result<Option<Constraint>, ApiError> {
    let read = of_openai_call(&mut Fields::of(&body))?;
    Ok(read.map(Arc::unwrap_or_clone))
}

#[track_caller]
fn reads(body: Value, expected: Constraint) {
    assert_eq!(read(body), Ok(Some(expected)));
}

#[track_caller]
fn refuses(body: Value, param: &str, message: &str) {
    assert_eq!(read(body), Err(ApiError::field(param, message)));
}

fn schema(schema: Value, whitespace: JsonWhitespace, is_strict: bool) -> Constraint {
    Constraint::JsonSchema {
        schema: Arc::new(schema),
        whitespace,
        is_strict,
    }
}

fn plain(value: Value) -> Constraint {
    schema(value, JsonWhitespace::Bounded, false)
}

#[test]
fn response_formats_are_constraints() {
    let format = |format: Value| json!({ "response_format": format });
    assert_eq!(read(format(json!({"type": "text"}))), Ok(None));
    assert_eq!(read(format(Value::Null)), Ok(None));
    let object = Constraint::JsonObject(JsonWhitespace::Bounded);
    reads(format(json!({"type": "json_object"})), object);
    let wanted = json!({"type": "object", "properties": {"b": {}, "a": {}}});
    let with = |strict: Value| {
        let named = json!({"name": "x", "schema": wanted, "strict": strict});
        format(json!({"type": "json_schema", "json_schema": named}))
    };
    reads(with(Value::Null), plain(wanted.clone()));
    let strict = schema(wanted.clone(), JsonWhitespace::Bounded, true);
    reads(with(json!(true)), strict);
    reads(
        format(json!({"type": "json_object", "schema": wanted})),
        plain(wanted.clone()),
    );
    let tag = json!({"type": "structural_tag", "structures": [], "triggers": ["<f"]});
    reads(
        format(tag.clone()),
        Constraint::StructuralTag(Arc::new(tag)),
    );
}

#[test]
fn invalid_formats_are_refused_with_their_paths() {
    let format = |format: Value| json!({ "response_format": format });
    let kinds = "text, json_object, json_schema or structural_tag";
    refuses(
        format(json!({"type": "xml"})),
        "response_format.type",
        &format!("response_format.type is \"xml\", must be {kinds}"),
    );
    let name = "response_format";
    for (value, shown) in [(json!("json"), "\"json\""), (json!({}), "an object")] {
        let text = format!("{name} is {shown}, must be an object with a type: {kinds}");
        refuses(format(value), name, &text);
    }
    refuses(
        format(json!({"type": "json_schema"})),
        "response_format.json_schema",
        "response_format.json_schema is missing: send an object with name and schema",
    );
    refuses(
        format(json!({"type": "json_schema", "json_schema": {"name": "x"}})),
        "response_format.json_schema.schema",
        "response_format.json_schema.schema is missing: send a JSON schema",
    );
    let named = json!({"schema": [], "strict": 1});
    refuses(
        format(json!({"type": "json_schema", "json_schema": named})),
        "response_format.json_schema.strict",
        "response_format.json_schema.strict is 1, must be true or false",
    );
}

#[test]
fn sglangs_parameters_are_constraints() {
    reads(json!({"regex": "a+"}), Constraint::Regex("a+".into()));
    let ebnf = "root ::= \"a\"";
    reads(json!({"ebnf": ebnf}), Constraint::Ebnf(ebnf.into()));
    for value in [json!({"type": "null"}), json!(" {\"type\": \"null\"} ")] {
        reads(
            json!({"json_schema": value}),
            plain(json!({"type": "null"})),
        );
    }
    reads(json!({"json_schema": {}}), plain(json!({})));
    let tag = json!({"format": {"type": "const_string"}});
    let expected = Constraint::StructuralTag(Arc::new(tag.clone()));
    reads(json!({"structural_tag": tag.to_string()}), expected);
    for nothing in [json!(null), json!(""), json!([]), json!(false)] {
        assert_eq!(
            read(json!({"regex": nothing, "json_schema": nothing})),
            Ok(None)
        );
    }
    refuses(json!({"regex": 5}), "regex", "regex is 5, must be a string");
    let wanted = "must be a JSON schema: an object, or a string with its JSON";
    for value in [json!("5"), json!([1])] {
        let error = read(json!({"json_schema": value})).expect_err("is refused");
        assert!(error.to_string().ends_with(wanted), "{error}");
    }
    let error = read(json!({"json_schema": "{} {}"})).expect_err("is refused");
    assert!(error.to_string().contains("is not valid JSON"), "{error}");
}

#[test]
fn vllms_fields_are_constraints() {
    let structured = |value: Value| json!({ "structured_outputs": value });
    let any = json!({"type": "object"});
    reads(structured(json!({"json": any})), plain(any.clone()));
    reads(
        structured(
            json!({"json": any, "disable_any_whitespace": true, "disable_additional_properties": true}),
        ),
        schema(any.clone(), JsonWhitespace::Compact, true),
    );
    let pattern = || JsonWhitespace::Pattern(" ?".into());
    reads(
        structured(json!({"json_object": true, "whitespace_pattern": " ?", "_backend": "x"})),
        Constraint::JsonObject(pattern()),
    );
    let choice = || Constraint::Choice(["a".to_owned(), "b".to_owned()].into());
    reads(structured(json!({"choice": ["a", "b"]})), choice());
    reads(json!({"guided_choice": ["a", "b"]}), choice());
    reads(
        structured(json!({"grammar": "x"})),
        Constraint::Ebnf("x".into()),
    );
    reads(json!({"guided_grammar": "x"}), Constraint::Ebnf("x".into()));
    reads(json!({"guided_regex": "x"}), Constraint::Regex("x".into()));
    reads(
        json!({"guided_json": any.to_string(), "guided_whitespace_pattern": " ?"}),
        schema(any, pattern(), false),
    );
    reads(
        json!({"guided_json_object": true}),
        Constraint::JsonObject(JsonWhitespace::Bounded),
    );
    assert_eq!(read(json!({"guided_json_object": false})), Ok(None));
    assert_eq!(
        read(structured(json!({"json": null, "regex": ""}))),
        Ok(None)
    );
}

#[test]
fn invalid_vllm_fields_are_refused_with_their_paths() {
    let structured = |value: Value| json!({ "structured_outputs": value });
    refuses(
        structured(json!({"choice": ["a", 5]})),
        "structured_outputs.choice[1]",
        "structured_outputs.choice[1] is 5, must be a string",
    );
    refuses(
        structured(json!({"json_object": "yes"})),
        "structured_outputs.json_object",
        "structured_outputs.json_object is \"yes\", must be true or false",
    );
    let both = json!({"disable_any_whitespace": true, "whitespace_pattern": " "});
    let text = "structured_outputs.disable_any_whitespace and whitespace_pattern contradict each other: send one of them";
    refuses(
        structured(both),
        "structured_outputs.disable_any_whitespace",
        text,
    );
    let error = read(structured(json!({"jsno": {"x": 1}}))).expect_err("is refused");
    let text = error.to_string();
    assert!(
        text.starts_with("structured_outputs has an unknown field \"jsno\": use one of json, "),
        "{text}"
    );
    refuses(
        json!({"guided_json_object": 1}),
        "guided_json_object",
        "guided_json_object is 1, must be true or false",
    );
}

#[test]
fn two_constraints_contradict_each_other() {
    refuses(
        json!({"regex": "a", "ebnf": "b"}),
        "ebnf",
        "regex and ebnf both constrain the answer: send one of them",
    );
    refuses(
        json!({"response_format": {"type": "json_object"}, "guided_choice": ["a"]}),
        "guided_choice",
        "response_format and guided_choice both constrain the answer: send one of them",
    );
    let inside = json!({"json": {"x": 1}, "choice": ["a"]});
    let error = read(json!({ "structured_outputs": inside })).expect_err("is refused");
    assert!(
        error
            .to_string()
            .starts_with("structured_outputs.json and structured_outputs.choice")
    );
}

#[test]
fn constraints_are_bounded() {
    let long = "x".repeat(MAX_BYTES);
    let bytes = long.len() + 2;
    let text = format!("regex has {bytes} bytes, limit is {MAX_BYTES}: shorten it");
    refuses(json!({ "regex": long }), "regex", &text);
    let values = json!({"enum": vec![0; 2000]});
    for schema in [values.clone(), json!(values.to_string())] {
        let error = read(json!({ "json_schema": schema })).expect_err("is refused");
        assert!(
            error.to_string().contains("limit is 1024 per body"),
            "{error}"
        );
    }
}
