//! Tests that Codex, unmodified from its package, finishes a task with two calls to its shell tool, also with a picture.
//!
//! Codex 0.94.0 is the last version that speaks chat completions: 0.95.0 refuses `wire_api = "chat"`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::npm;
use crate::seeing_script::SeeingWorld;
use crate::world::World;

const PACKAGE: &str = "@openai/codex@0.94.0";
const TASK: &str = "Leave a note that says which row is mine, and read it to me.";
/// The text that the first call writes to a file and the second prints.
const NOTE: &str = "Row 4 is yours.";

fn program() -> Option<PathBuf> {
    npm::program(PACKAGE, "codex", delete_other_platforms)
}

/// Deletes the binaries for other platforms: the package has six, of 65 MB each.
fn delete_other_platforms(folder: &Path) -> Result<(), String> {
    let vendor = folder.join("node_modules/@openai/codex/vendor");
    let error = |error| format!("{}: {error}", vendor.display());
    for entry in fs::read_dir(&vendor).map_err(error)? {
        let platform = entry.map_err(error)?.path();
        let name = platform.file_name().unwrap_or_default().to_string_lossy();
        let system = match env::consts::OS {
            "macos" => "apple",
            other => other,
        };
        if !(name.contains(env::consts::ARCH) && name.contains(system)) {
            fs::remove_dir_all(&platform).map_err(error)?;
        }
    }
    Ok(())
}

fn call(script: &str) -> String {
    npm::call("shell", &json!({"command": ["bash", "-c", script]}))
}

/// A home folder with only the configuration and a working directory.
fn home(url: &str, wire_api: &str) -> TempDir {
    let home = npm::home();
    let settings = format!(
        "model = \"scripted\"\nmodel_provider = \"souffleur\"\ncheck_for_update_on_startup = false\n\
         [model_providers.souffleur]\nname = \"Souffleur\"\nbase_url = \"{url}/v1\"\nwire_api = \"{wire_api}\"\n\
         request_max_retries = 0\nstream_max_retries = 0\n[analytics]\nenabled = false\n"
    );
    let folder = home.path().join(".codex");
    fs::create_dir(&folder).expect("the home has no such folder");
    fs::write(folder.join("config.toml"), settings).expect("the home is writable");
    home
}

/// Runs Codex on the task, with more arguments, and returns the events that it prints.
fn events(program: &Path, home: &Path, more: &[&str]) -> Vec<Value> {
    let mut codex = Command::new(program);
    codex
        .args(["exec", "--json", "--skip-git-repo-check"])
        .args(["--dangerously-bypass-approvals-and-sandbox", TASK])
        .args(more);
    let folder = home.join(".codex");
    let folder = folder.to_str().expect("the path is UTF-8");
    let printed = npm::finish(codex, home, &[("CODEX_HOME", folder)]);
    let event = |line: &str| serde_json::from_str(line).expect("events are JSON");
    printed.lines().map(event).collect()
}

#[test]
fn codex_finishes_a_task_with_two_tools_in_chats() {
    finishes_a_task("chat");
}

#[test]
fn codex_finishes_a_task_with_two_tools_in_responses() {
    finishes_a_task("responses");
}

fn finishes_a_task(wire_api: &str) {
    let Some(program) = program() else {
        return;
    };
    let write = call(&format!("echo '{NOTE}' > note.txt && echo written"));
    let read = call("cat note.txt");
    let world = World::scripted(&[
        (
            TASK,
            &format!("<think>\nFirst the note.\n</think>\n\n{write}"),
        ),
        ("written\\n", &read),
        (&format!("{NOTE}\\n"), "The note says that row 4 is yours."),
    ]);
    let home = home(&format!("http://{}", world.addr), wire_api);
    let events = events(&program, home.path(), &[]);
    let items: Vec<&Value> = events
        .iter()
        .filter(|event| event["type"] == "item.completed")
        .map(|event| &event["item"])
        .collect();
    let commands = items
        .iter()
        .filter(|item| item["type"] == "command_execution");
    let ran: Vec<_> = commands
        .map(|item| {
            (
                item["aggregated_output"].as_str(),
                item["exit_code"].as_i64(),
            )
        })
        .collect();
    let text = format!("{NOTE}\n");
    assert_eq!(
        ran,
        [(Some("written\n"), Some(0)), (Some(text.as_str()), Some(0))],
        "{events:?}"
    );
    let texts = items.iter().filter(|item| item["type"] == "agent_message");
    let texts: Vec<_> = texts.filter_map(|item| item["text"].as_str()).collect();
    assert_eq!(texts, ["The note says that row 4 is yours."], "{events:?}");
    let note = fs::read_to_string(home.path().join("work/note.txt")).expect("the note exists");
    assert_eq!(note, text);
    world.wait_until_idle();
}

#[test]
fn codex_shows_a_picture_which_is_encoded_once() {
    let Some(program) = program() else {
        return;
    };
    let seeing = SeeingWorld::start(&[
        (TASK, &call("echo written")),
        ("written\\n", "The picture says row 4."),
    ]);
    let home = home(&format!("http://{}", seeing.world.addr), "responses");
    let picture = home.path().join("work/picture.png");
    fs::write(picture, SeeingWorld::picture()).expect("the home is writable");
    let events = events(&program, home.path(), &["--image", "picture.png"]);
    let said = |event: &Value| event["item"]["text"] == "The picture says row 4.";
    assert!(events.iter().any(said), "{events:?}");
    // Both turns have it.
    assert_eq!(seeing.encoded.load(Ordering::SeqCst), 1, "{events:?}");
    seeing.world.wait_until_idle();
}
