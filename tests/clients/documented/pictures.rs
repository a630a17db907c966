//! Runs every example of `docs/images.md` with a tiny model that sees, in a folder with the picture that they name.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::{ADDRESS, examples, has_curl, without_proxies};
use crate::binary::Binary;
use crate::environment::run;
use crate::python::interpreter;
use crate::seeing_models::QWEN;
use crate::seeing_script::SeeingWorld;

const DOCUMENT: &str = "docs/images.md";
/// The model in the document.
const MODEL: &str = "Qwen/Qwen3.5-0.8B";

/// A folder with the picture.
fn folder() -> TempDir {
    let folder = TempDir::new().expect("a folder can be made");
    let file = folder.path().join("picture.png");
    fs::write(file, SeeingWorld::picture()).expect("the folder can be written");
    folder
}

/// A server with the model at this path, whose answers are short.
fn serve(model: &str) -> Binary {
    Binary::start(&["--model-path", model, "--context-length", "256"])
}

/// The output of a command that runs next to the picture and calls the server.
fn output(command: &mut Command, folder: &Path) -> String {
    let output = run(without_proxies(command).current_dir(folder));
    output.unwrap_or_else(|error| panic!("{command:?}\n{error}"))
}

/// A conversation in the terminal with these flags.
fn chat(flags: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souffleur"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SOUFFLEUR_") {
            command.env_remove(name);
        }
    }
    command.arg("chat").args(flags);
    command.args(["--max-new-tokens", "8"]).current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    command
}

/// Asks a question about the picture.
fn check_chat(mut chat: Command) {
    let mut child = chat.spawn().expect("the binary runs");
    let mut stdin = child.stdin.take().expect("piped");
    let question = stdin.write_all(b"Which colours?\n");
    question.expect("the chat reads a question");
    drop(stdin);
    let output = child.wait_with_output().expect("the chat ends");
    assert!(output.status.success(), "{output:?}");
}

/// Checks the flags of an example with files that the tests do not have: only a file is missing.
fn check_flags(mut chat: Command) {
    let output = chat.output().expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(".gguf: there is no such file"), "{text}");
}

fn check_answer(out: &str) {
    let answer: Value = serde_json::from_str(out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert_eq!(
        answer["choices"][0]["message"]["role"], "assistant",
        "{out}"
    );
    // 3 x 2 vectors, their marks, and a token for each letter or two of the question.
    let counted = answer["usage"]["prompt_tokens"].as_u64();
    assert!(counted > Some(20), "{out}");
}

#[test]
fn examples_with_pictures_for_a_shell() {
    if !has_curl() {
        return;
    }
    let (model, folder) = (QWEN.folder(), folder());
    let model = model.path().display().to_string();
    for example in examples(DOCUMENT, "sh") {
        let example = example.replace(MODEL, &model);
        let words: Vec<&str> = example.split_whitespace().collect();
        match words[..] {
            ["souffleur", "serve", ref flags @ ..] => Binary::start(flags).stop(),
            ["souffleur", "chat", ref flags @ ..] => {
                let chat = chat(flags, folder.path());
                if example.contains(".gguf") {
                    check_flags(chat);
                } else {
                    check_chat(chat);
                }
            }
            ["curl", ..] => {
                let server = serve(&model);
                let mut shell = Command::new("sh");
                shell.args(["-c", &example.replace(ADDRESS, &server.url)]);
                check_answer(&output(&mut shell, folder.path()));
                server.stop();
            }
            _ => panic!("no test runs this example:\n{example}"),
        }
    }
}

#[test]
fn examples_with_pictures_in_python() {
    let Some(python) = interpreter() else {
        return;
    };
    let (model, folder) = (QWEN.folder(), folder());
    let server = serve(&model.path().display().to_string());
    for example in examples(DOCUMENT, "python") {
        assert!(example.contains(ADDRESS), "{example}");
        let mut command = Command::new(python);
        command.args(["-c", &example.replace(ADDRESS, &server.url)]);
        // The answer may be empty: the model is random.
        output(&mut command, folder.path());
    }
    server.stop();
}
