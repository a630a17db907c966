//! Tests Ollama's library for JavaScript, unmodified from its package.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::npm;
use crate::world::World;

const PACKAGE: &str = "ollama@0.6.4";
const LINES: [(&str, &str); 4] = [
    (
        "Which seat?",
        "<tool_call>\n{\"name\": \"find_seat\", \"arguments\": {\"row\": 4}}\n</tool_call>",
    ),
    ("Think first.", "<think>\nOne and one.\n</think>\n\nTwo."),
    ("Name a city.", "{\"city\": \"Lisbon\"}"),
    ("", "Hello to you."),
];

/// Runs the script of calls, and returns the answers that it prints.
fn answers(modules: &Path, world: &World) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/ollama_js/calls.cjs");
    let mut node = Command::new("node");
    node.arg(script);
    let home = npm::home();
    let url = format!("http://{}", world.addr);
    let modules = modules.to_str().expect("the path is UTF-8");
    let environment = [("SOUFFLEUR_URL", url.as_str()), ("NODE_PATH", modules)];
    let printed = npm::finish(node, home.path(), &environment);
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

#[test]
fn ollamas_library_for_javascript() {
    let Some(modules) = npm::modules(PACKAGE, "ollama/dist/index.cjs") else {
        return;
    };
    let world = World::scripted(&LINES);
    let answers = answers(&modules, &world);
    assert_eq!(answers["version"]["version"], "0.12.0-souffleur");
    let model = &answers["list"]["models"][0];
    assert_eq!(model["name"], "scripted:latest");
    assert_eq!(answers["running"]["models"][0]["digest"], model["digest"]);
    assert_eq!(
        answers["shown"]["model_info"]["general.architecture"],
        "qwen3"
    );
    assert_eq!(answers["chat"]["message"]["content"], "Hello to you.");
    let streamed = answers["streamed"].as_array().expect("a list");
    let texts = streamed
        .iter()
        .map(|part| part["message"]["content"].as_str());
    assert_eq!(texts.flatten().collect::<String>(), "Hello to you.");
    let last = streamed.last().expect("a part");
    assert_eq!(last["done"], true);
    assert_eq!(last["eval_count"], answers["chat"]["eval_count"]);
    let call = &answers["called"]["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "find_seat");
    assert_eq!(call["arguments"], json!({"row": 4}));
    assert_eq!(answers["thought"]["message"]["content"], "Two.");
    let thinking = answers["thought"]["message"]["thinking"].as_str();
    assert_eq!(thinking.map(str::trim), Some("One and one."));
    let city = answers["formatted"]["message"]["content"].as_str();
    let city: Value = serde_json::from_str(city.expect("a text")).expect("the answer is JSON");
    assert_eq!(city["city"], "Lisbon");
    assert_eq!(answers["generated"]["done_reason"], "length");
    assert_eq!(
        answers["embedded"]["embeddings"].as_array().map(Vec::len),
        Some(2)
    );
    let unknown = json!({
        "name": "ResponseError", "message": "model 'other' not found", "status": 404,
    });
    assert_eq!(answers["unknown"], unknown);
    assert_eq!(answers["image"]["status"], 400);
    world.wait_until_idle();
}
