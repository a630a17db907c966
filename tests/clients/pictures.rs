//! Tests of pictures with unmodified clients of OpenAI, Anthropic and Ollama, against the binary with tiny models that
//! see.

use crate::python::check;
use crate::seeing_models::{PIXTRAL, QWEN, Sight};

/// Runs the tests of a module against a server with this model.
#[track_caller]
fn check_with(sight: &Sight, module: &str) {
    let folder = sight.folder();
    let path = folder.path().display().to_string();
    // The models are too small to call tools, but their conversations have calls.
    let flags = [
        "--model-path",
        &path,
        "--tool-call-parser",
        "qwen25",
        "--max-total-tokens",
        "4096",
    ];
    check(module, &flags);
}

#[test]
fn openai() {
    check_with(&QWEN, "test_pictures_openai");
}

#[test]
fn openai_without_recurrent_states() {
    check_with(&PIXTRAL, "test_pictures_openai");
}

#[test]
fn anthropic() {
    check_with(&QWEN, "test_pictures_anthropic");
}

#[test]
fn ollama() {
    check_with(&QWEN, "test_pictures_ollama");
}
