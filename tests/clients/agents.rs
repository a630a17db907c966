//! Tests of agents' client libraries against a scripted model, which replies with the lines of `py/lines.json`.

use std::fs;
use std::path::Path;

use crate::python::{interpreter, run_module};
use crate::world::World;

/// Runs the tests of a Python module, then checks that every page of the pool is free or cached.
#[track_caller]
fn check(module: &str) {
    let Some(python) = interpreter() else {
        return;
    };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/py/lines.json");
    let text = fs::read_to_string(file).expect("the file of lines exists");
    let lines: Vec<(String, String)> =
        serde_json::from_str(&text).expect("the lines are pairs of strings");
    let lines: Vec<(&str, &str)> = lines
        .iter()
        .map(|(cue, line)| (cue.as_str(), line.as_str()))
        .collect();
    // All engines of this process share metrics. The model name identifies the metrics of this engine.
    let world = World::scripted_with(&lines, |engine, _| {
        engine.served_model_name = Some(module.to_owned());
    });
    let url = format!("http://{}", world.addr);
    let ran = run_module(python, module, &url, &std::process::id().to_string());
    ran.unwrap_or_else(|text| panic!("{text}"));
    world.wait_until_idle();
}

#[test]
fn openai_agents() {
    check("test_agents_openai");
}

#[test]
fn anthropic() {
    check("test_agents_anthropic");
}

#[test]
fn openai_responses() {
    check("test_agents_responses");
}

#[test]
fn shapes() {
    check("test_agents_shapes");
}

#[test]
fn langchain() {
    check("test_agents_langchain");
}

#[test]
fn ollama_python() {
    check("test_agents_ollama");
}

#[test]
fn langchain_ollama() {
    check("test_agents_langchain_ollama");
}

#[test]
fn litellm_ollama() {
    check("test_agents_litellm_ollama");
}

#[test]
fn litellm() {
    check("test_agents_litellm");
}
