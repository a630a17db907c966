//! Tests of the OpenAPI document against the routes, and of its schemas against the readers that they describe.

use std::collections::{BTreeMap, BTreeSet};

use actix_web::web::{self, Data};
use actix_web::{App, HttpRequest, HttpResponse, test as app_test};
use serde_json::{Value, json};

use super::*;
use crate::openapi::facts::by_name;
use crate::{ServerConfig, endpoints, routes};
use souffleur_state::sampling::{ReadParams, SamplingParams};

const METHODS: [&str; 5] = ["get", "post", "put", "delete", "patch"];

fn facts() -> Facts {
    Facts {
        max_requests: 8,
        ..Facts::default()
    }
}

fn document() -> Value {
    serde_json::to_value(super::document(&endpoints::all(), &facts()))
        .expect("documents have string keys only")
}

fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let document = document();
    let paths = document["paths"].as_object().expect("there are paths");
    let methods = |item: &Value| {
        let methods = METHODS
            .into_iter()
            .filter(|method| item.get(method).is_some());
        methods.map(str::to_uppercase).collect()
    };
    let paths = paths.iter();
    paths
        .map(|(path, item)| (path.clone(), methods(item)))
        .collect()
}

/// The patterns that the app matches, parsed from its printed map of resources.
fn patterns(printed: &str) -> BTreeSet<String> {
    let parts = printed.split("patterns: Single(\"").skip(1);
    let patterns = parts.filter_map(|part| part.split_once("\")").map(|(pattern, _)| pattern));
    let patterns = patterns.map(|pattern| label(&pattern.replace("\\\\", "\\")));
    patterns.filter(|pattern| !pattern.is_empty()).collect()
}

#[actix_web::test]
async fn routes_and_document_agree_in_paths_and_methods() {
    let state = AppState::new(
        ServerConfig::default(),
        Default::default(),
        std::sync::Arc::new(String::new),
    );
    let print = |request: HttpRequest| async move {
        HttpResponse::NotFound().body(format!("{:?}", request.resource_map()))
    };
    let app = App::new()
        .app_data(Data::new(state))
        .configure(routes)
        .default_service(web::to(print));
    let app = app_test::init_service(app).await;
    let nowhere = app_test::TestRequest::get().uri("/nowhere").to_request();
    let printed = app_test::call_and_read_body(&app, nowhere).await;
    let mounted = patterns(std::str::from_utf8(&printed).expect("it is text"));

    let documented = documented();
    let paths: BTreeSet<String> = documented.keys().cloned().collect();
    assert_eq!(mounted, paths);

    for (path, methods) in documented {
        for method in METHODS.map(str::to_uppercase) {
            let request = app_test::TestRequest::default()
                .uri(&path.replace(['{', '}'], ""))
                .insert_header(("host", "localhost"))
                .method(method.parse().expect("it is a method"));
            let response = app_test::call_service(&app, request.to_request()).await;
            let is_there = response.status() != 405;
            assert_eq!(is_there, methods.contains(&method), "{method} {path}");
            if is_there {
                continue;
            }
            let allow = response
                .headers()
                .get("allow")
                .expect("the header is present");
            let allow = allow.to_str().expect("it is ASCII").split(", ");
            let allowed = allow.filter(|method| *method != "HEAD").map(str::to_owned);
            assert_eq!(allowed.collect::<BTreeSet<_>>(), methods, "{path}");
        }
    }
}

/// Compares the schemas that the document refers to with those that it defines.
#[test]
fn schemas_are_defined_exactly_if_they_are_referenced() {
    fn collect(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value {
                        Value::String(place) if name == "$ref" => {
                            found.insert(place.clone());
                        }
                        value => collect(value, found),
                    }
                }
            }
            _ => (),
        }
    }
    let document = document();
    let mut used = BTreeSet::new();
    collect(&document, &mut used);
    let schemas = document["components"]["schemas"]
        .as_object()
        .expect("there are some");
    let defined = schemas
        .keys()
        .map(|name| format!("#/components/schemas/{name}"));
    let defined: BTreeSet<String> = defined.collect();
    let in_events = ["ChatCompletionChunk", "ResponseEvent", "MessageEvent"];
    let in_events = in_events.map(|name| format!("#/components/schemas/{name}"));
    let used: BTreeSet<String> = used.into_iter().chain(in_events).collect();
    assert_eq!(used, defined);
}

#[test]
fn operations_have_unique_ids_and_document_refused_access() {
    let facts = Facts {
        has_key: true,
        has_admin_key: true,
        ..facts()
    };
    let document =
        serde_json::to_value(super::document(&endpoints::all(), &facts)).expect("plain data");
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().expect("there are paths") {
        for operation in METHODS.iter().filter_map(|method| item.get(method)) {
            let id = operation["operationId"].as_str().expect("it is a text");
            assert!(ids.insert(id.to_owned()), "{id} comes twice");
            let responses = operation["responses"].as_object().expect("there are some");
            assert!(responses.contains_key("403"), "{path}");
            let has_keys = operation.get("security").is_some();
            assert_eq!(has_keys, responses.contains_key("401"), "{path}");
        }
    }
    let keys = |path: &str| {
        let keys = document["paths"][path]["post"]["security"]
            .as_array()
            .expect("a list");
        let keys = keys
            .iter()
            .filter_map(|key| key.as_object()?.keys().next().cloned());
        keys.collect::<Vec<_>>()
    };
    assert_eq!(keys("/generate"), ["bearer", "x-api-key", "admin"]);
    assert_eq!(keys("/flush_cache"), ["admin"]);
}

fn sampling() -> Value {
    document()["components"]["schemas"]["SamplingParams"].clone()
}

fn is_accepted(name: &str, value: &Value) -> bool {
    use serde::de::DeserializeSeed;
    let limits = facts().limits;
    let read = ReadParams {
        limits: &limits,
        read_elsewhere: &[],
    };
    let mut object = json!({ "max_new_tokens": u32::MAX }); // Allows every `min_new_tokens`.
    object[name] = value.clone();
    let params = read.deserialize(object).expect("it is an object");
    params.is_ok_and(|params| params.validate(1 << 20, &limits).is_ok())
}

#[test]
fn the_schema_of_sampling_parameters_matches_their_reader() {
    let schema = sampling();
    let validator = jsonschema::validator_for(&schema).expect("it is a schema");
    let fields = schema["properties"].as_object().expect("there are some");
    let texts = |n| json!(vec!["x"; n]);
    let values = [
        json!(null),
        json!(true),
        json!(-3),
        json!(-2),
        json!(-1.5),
        json!(-1),
        json!(0),
        json!(0.25),
        json!(1),
        json!(1.5),
        json!(2),
        json!(2.5),
        json!(3),
        json!(128),
        json!(129),
        json!(4_294_967_295u64),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("x"),
        json!("x".repeat(1024)),
        json!("x".repeat(1025)),
        json!([]),
        texts(32),
        texts(33),
        json!([1]),
        json!([-1]),
        json!(vec![1; 1025]),
        json!({}),
        json!({"5": 1}),
        json!({"5": "a"}),
        json!({"a": 1}),
    ];
    let constraints = ["json_schema", "regex", "ebnf", "structural_tag"];
    for name in fields
        .keys()
        .filter(|name| !constraints.contains(&name.as_str()))
    {
        for value in &values {
            let object = json!({ name: value });
            assert_eq!(
                validator.is_valid(&object),
                is_accepted(name, value),
                "{object}"
            );
        }
    }
    assert!(!validator.is_valid(&json!({"max_tokens": 1})));
    assert!(!is_accepted("max_tokens", &json!(1)));
}

#[test]
fn sampling_parameters_are_documented_with_their_defaults() {
    let schema = sampling();
    let fields = schema["properties"].as_object().expect("there are some");
    for (name, value) in by_name(&SamplingParams::default()) {
        let field = fields
            .get(&name)
            .unwrap_or_else(|| panic!("{name} is missing"));
        let default = field.get("default").cloned().unwrap_or(Value::Null);
        assert_eq!(default, value, "{name}");
    }
}

#[test]
fn examples_and_defaults_match_their_schemas() {
    let document = document();
    let schemas = &document["components"];
    let mut n_examples = 0;
    for (path, item) in document["paths"].as_object().expect("there are paths") {
        for operation in METHODS.iter().filter_map(|method| item.get(method)) {
            let body = &operation["requestBody"]["content"]["application/json"];
            let Some(example) = body.get("example") else {
                continue;
            };
            let mut schema = body["schema"].clone();
            schema["components"] = schemas.clone();
            let validator = jsonschema::validator_for(&schema).expect("it is a schema");
            assert!(validator.is_valid(example), "{path}: {example}");
            n_examples += 1;
            for (name, field) in schema["properties"]
                .as_object()
                .expect("bodies are objects")
            {
                let Some(default) = field.get("default") else {
                    continue;
                };
                let mut with_default = example.clone();
                with_default[name] = default.clone();
                assert!(validator.is_valid(&with_default), "{path}: {name}");
            }
        }
    }
    assert!(n_examples > 20);
}
