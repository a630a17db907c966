//! Tests of `/openapi.json`, which must describe its server correctly, and of the page `/docs`.

use serde_json::{Value, json};
use souffleur::server::ApiKey;

use crate::http::{Response, get, post, send};
use crate::world::World;

/// A validator for a schema of the document, which may refer to other schemas.
fn validator(document: &Value, schema: &Value) -> jsonschema::Validator {
    let mut schema = schema.clone();
    schema["components"] = document["components"].clone();
    jsonschema::validator_for(&schema).expect("a schema")
}

/// Each POST of the document that takes a body: path, operation, schema and example.
fn posts(document: &Value) -> Vec<(String, Value, Value, Value)> {
    let paths = document["paths"].as_object().expect("paths");
    let posts = paths.iter().filter_map(|(path, item)| {
        let operation = item.get("post")?;
        let body = operation["requestBody"]["content"].get("application/json")?;
        let (schema, example) = (body["schema"].clone(), body["example"].clone());
        Some((path.clone(), operation.clone(), schema, example))
    });
    posts.collect()
}

fn document(world: &World) -> Value {
    get(world.addr, "/openapi.json").ok()
}

#[test]
fn examples_are_answered_as_the_document_says() {
    let world = World::with(|engine, _| engine.max_running_requests = Some(4));
    let document = document(&world);
    assert_eq!(document["openapi"], "3.1.0");
    for (path, operation, schema, example) in posts(&document) {
        assert!(validator(&document, &schema).is_valid(&example), "{path}");
        let response = post(world.addr, &path, &example);
        if path == "/pause_generation" {
            post(world.addr, "/continue_generation", &json!({})).ok();
        }
        let responses = operation["responses"].as_object().expect("responses");
        let documented = responses.get(&response.status.to_string());
        let documented = documented.unwrap_or_else(|| panic!("{path}: {}", response.body));
        // Only closing an unknown session is an error.
        let is_unknown = path == "/close_session" && response.status == 404;
        assert!(
            response.status == 200 || is_unknown,
            "{path}: {}",
            response.body
        );
        let schema = &documented["content"]["application/json"]["schema"];
        let is_valid = validator(&document, schema).is_valid(&response.json());
        assert!(is_valid, "{path}: {}", response.body);
    }
    for (path, item) in document["paths"].as_object().expect("paths") {
        let Some(documented) = item.get("get").filter(|_| !path.contains('{')) else {
            continue;
        };
        let response = get(world.addr, path);
        let documented = &documented["responses"][response.status.to_string()];
        assert!(documented.is_object(), "{path}: {}", response.body);
        let content_type = response.header("content-type").expect("a type");
        let content_type = content_type.trim_end_matches("; charset=utf-8");
        let contents = documented["content"].as_object().expect("contents");
        let content = contents
            .iter()
            .find(|(documented, _)| documented.starts_with(content_type));
        let (_, content) = content.unwrap_or_else(|| panic!("{path}: {content_type}"));
        if content_type == "application/json" {
            let validator = validator(&document, &content["schema"]);
            assert!(
                validator.is_valid(&response.json()),
                "{path}: {}",
                response.body
            );
        }
    }
    world.wait_until_idle();
}

/// Values just outside the range of a number's schema.
fn beyond(schema: &Value) -> Vec<Value> {
    let bound = |name: &str| schema.get(name).filter(|bound| bound.is_number());
    let shifted = |bound: &Value, by: i64| match bound.as_i64() {
        Some(bound) => bound.checked_add(by).map(Value::from),
        None => None,
    };
    let low = bound("minimum").and_then(|bound| shifted(bound, -1));
    let exclusive = bound("exclusiveMinimum").cloned();
    let high = bound("maximum").and_then(|bound| shifted(bound, 1));
    low.into_iter().chain(exclusive).chain(high).collect()
}

#[test]
fn numbers_beyond_the_documented_bounds_are_refused_by_name() {
    let world = World::new();
    let document = document(&world);
    let mut tried = 0;
    for (path, _, schema, example) in posts(&document) {
        for (name, field) in schema["properties"]
            .as_object()
            .expect("bodies are objects")
        {
            for value in beyond(field) {
                let mut body = example.clone();
                body[name] = value.clone();
                if name == "top_logprobs" {
                    body["logprobs"] = json!(true);
                }
                let response = post(world.addr, &path, &body);
                assert_eq!(
                    response.status, 400,
                    "{path}: {name} is {value}: {}",
                    response.body
                );
                let error = &response.json()["error"];
                let message = error.get("message").unwrap_or(error).to_string();
                assert!(
                    message.contains(name),
                    "{path}: {name} is {value}: {message}"
                );
                tried += 1;
            }
        }
    }
    assert!(tried > 60, "{tried} values");
    world.wait_until_idle();
}

#[test]
fn the_document_contains_the_limits_of_its_server() {
    let world = World::with(|engine, server| {
        engine.max_stop_strings = 3;
        server.max_batch_requests = 5;
        server.api_key = Some(ApiKey::new("sk-1").expect("a valid key"));
    });
    let document = document(&world);
    let call = &document["paths"]["/v1/completions"]["post"];
    let fields = &call["requestBody"]["content"]["application/json"]["schema"]["properties"];
    assert_eq!(fields["stop"]["anyOf"][1]["maxItems"], 3);
    assert_eq!(fields["prompt"]["anyOf"][1]["maxItems"], 5);
    assert_eq!(call["security"], json!([{"bearer": []}, {"x-api-key": []}]));
    assert_eq!(document["paths"]["/health"]["get"].get("security"), None);
}

fn ask(world: &World, path: &str, header: &str) -> Response {
    let addr = world.addr;
    let head =
        format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n{header}\r\n\r\n");
    send(addr, &head)
}

#[test]
fn the_docs_page_loads_nothing_from_other_sites() {
    let world = World::without_engine(Default::default());
    let page = get(world.addr, "/docs");
    assert_eq!(page.status, 200);
    assert!(!page.body.contains("://"), "{}", page.body);
    let policy = page.header("content-security-policy").expect("a header");
    assert!(
        policy.starts_with("default-src 'none'; script-src 'self';"),
        "{policy}"
    );
    let sources = page.body.split("docs/").skip(1);
    let files: Vec<&str> = sources.filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(files, ["swagger-ui.css", "swagger-ui-bundle.js", "page.js"]);
    for file in files {
        let path = format!("/docs/{file}");
        let plain = get(world.addr, &path);
        assert_eq!(
            (plain.status, plain.header("content-encoding")),
            (200, None),
            "{path}"
        );
        assert_eq!(plain.header("x-content-type-options"), Some("nosniff"));
        let tag = plain.header("etag").expect("a header");
        let cached = ask(&world, &path, &format!("If-None-Match: {tag}"));
        assert_eq!((cached.status, cached.body.as_str()), (304, ""), "{path}");
        assert_eq!(ask(&world, &path, "If-None-Match: W/\"other\"").status, 200);
    }
    let missing = get(world.addr, "/docs/other.js");
    assert_eq!(
        (missing.status, missing.json()["error"]["code"].as_str()),
        (404, Some("not_found"))
    );
}

#[test]
fn openapi_document_and_docs_page_can_be_turned_off() {
    let off = World::without_engine(souffleur::server::ServerConfig {
        api_docs: false,
        ..Default::default()
    });
    for path in ["/openapi.json", "/docs", "/docs/page.js"] {
        let response = get(off.addr, path);
        assert_eq!(response.status, 404, "{path}");
        assert_eq!(response.json()["error"]["code"], "not_found", "{path}");
    }
}
