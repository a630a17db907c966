//! Tests that Claude Code, unmodified from its package, finishes tasks over `/v1/messages`, also with a picture.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::npm;
use crate::seeing_script::SeeingWorld;
use crate::world::World;

const PACKAGE: &str = "@anthropic-ai/claude-code@2.1.332";
const TASK: &str = "Leave a note that says which row is mine, and read it to me.";
/// The text that the first call writes to a file and the second prints.
const NOTE: &str = "Row 4 is yours.";
const TURNS: usize = 12;

fn program() -> Option<PathBuf> {
    npm::program(PACKAGE, "claude", |_| Ok(()))
}

/// A call to Claude Code's shell tool.
fn call(command: &str) -> String {
    let arguments = json!({"command": command, "description": "A step of the task."});
    npm::call("Bash", &arguments)
}

/// Runs Claude Code on the task and returns the events that it prints.
fn events(program: &Path, home: &Path, world: &World) -> Vec<Value> {
    let mut claude = Command::new(program);
    claude
        .args(["--print", TASK, "--model", "scripted"])
        .args(["--output-format", "stream-json", "--verbose"])
        .arg("--dangerously-skip-permissions");
    let url = format!("http://{}", world.addr);
    let environment = [
        ("ANTHROPIC_BASE_URL", url.as_str()),
        ("ANTHROPIC_API_KEY", "none"),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ("DISABLE_AUTOUPDATER", "1"),
        ("DISABLE_TELEMETRY", "1"),
        // Claude Code lets root skip permissions only in a sandbox.
        ("IS_SANDBOX", "1"),
    ];
    let printed = npm::finish(claude, home, &environment);
    let event = |line: &str| serde_json::from_str(line).expect("events are JSON");
    printed.lines().map(event).collect()
}

/// The results of tools, in order.
fn results(events: &[Value]) -> Vec<&str> {
    let blocks = events
        .iter()
        .filter(|event| event["type"] == "user")
        .flat_map(|event| event["message"]["content"].as_array().into_iter().flatten());
    let results = blocks.filter(|block| block["type"] == "tool_result");
    results
        .filter_map(|block| block["content"].as_str())
        .collect()
}

fn result(events: &[Value]) -> &Value {
    let last = events.last().expect("events");
    assert_eq!(
        (&last["type"], &last["subtype"], &last["is_error"]),
        (&json!("result"), &json!("success"), &json!(false)),
        "{events:?}"
    );
    last
}

#[test]
fn claude_code_finishes_a_task_with_two_tools() {
    let Some(program) = program() else {
        return;
    };
    let write = call(&format!("echo '{NOTE}' > note.txt && echo written"));
    let world = World::scripted(&[
        (
            TASK,
            &format!("<think>\nFirst the note.\n</think>\n\nI write it.\n{write}"),
        ),
        ("\nwritten\n", &call("cat note.txt")),
        (&format!("\n{NOTE}\n"), "The note says that row 4 is yours."),
    ]);
    let home = npm::home();
    let events = events(&program, home.path(), &world);
    assert_eq!(results(&events), ["written", NOTE], "{events:?}");
    let result = result(&events);
    assert_eq!(result["result"], "The note says that row 4 is yours.");
    assert_eq!(result["num_turns"], 3);
    let note = fs::read_to_string(home.path().join("work/note.txt")).expect("the note exists");
    assert_eq!(note, format!("{NOTE}\n"));
    world.wait_until_idle();
}

/// The prompt length of each turn and its cached part, from the usage in the messages that Claude Code reports.
fn prompts(events: &[Value]) -> Vec<(u64, u64)> {
    let mut prompts: Vec<(&Value, (u64, u64))> = Vec::new();
    for event in events.iter().filter(|event| event["type"] == "assistant") {
        let message = &event["message"];
        let number = |name: &str| message["usage"][name].as_u64().expect("a number");
        let cached = number("cache_read_input_tokens");
        // Each block of a message is an event.
        if prompts.last().is_none_or(|(id, _)| **id != message["id"]) {
            prompts.push((&message["id"], (number("input_tokens") + cached, cached)));
        }
    }
    prompts.into_iter().map(|(_, prompt)| prompt).collect()
}

#[test]
fn each_turn_of_claude_code_reuses_the_prompt_of_the_previous_turn() {
    let Some(program) = program() else {
        return;
    };
    let lines: Vec<(String, String)> = (0..TURNS)
        .map(|turn| {
            let cue = match turn {
                0 => TASK.to_owned(),
                turn => format!("\nstep {turn} is done\n"),
            };
            let line = match turn + 1 {
                TURNS => "All is done.".to_owned(),
                next => call(&format!("echo step {next} is done")),
            };
            (cue, line)
        })
        .collect();
    let lines: Vec<(&str, &str)> = lines
        .iter()
        .map(|(cue, line)| (cue.as_str(), line.as_str()))
        .collect();
    let world = World::scripted(&lines);
    let home = npm::home();
    let events = events(&program, home.path(), &world);
    assert_eq!(result(&events)["result"], "All is done.");
    let prompts = prompts(&events);
    assert_eq!(prompts.len(), TURNS, "{events:?}");
    for turn in prompts.windows(2) {
        let ((before, _), (_, cached)) = (turn[0], turn[1]);
        assert!(cached >= before, "{cached} of {before}: {prompts:?}");
    }
    world.wait_until_idle();
}

#[test]
fn claude_code_reads_a_picture_which_is_encoded_once() {
    let Some(program) = program() else {
        return;
    };
    let home = npm::home();
    let picture = home.path().join("work/picture.png");
    let read = npm::call("Read", &json!({"file_path": picture}));
    // The reply to the prompt that ends in the picture, which has no text.
    let seen = "\n</tool_response>";
    let seeing = SeeingWorld::start(&[
        (TASK, &read),
        (seen, &call("echo written")),
        (&format!("\nwritten{seen}"), "The picture says row 4."),
    ]);
    fs::write(&picture, SeeingWorld::picture()).expect("the home is writable");
    let world = &seeing.world;
    let events = events(&program, home.path(), world);
    assert_eq!(result(&events)["result"], "The picture says row 4.");
    let shown = events.iter().filter(|event| {
        let block = &event["message"]["content"][0];
        event["type"] == "user" && block["content"][0]["type"] == "image"
    });
    assert_eq!(shown.count(), 1, "{events:?}");
    // Claude Code sends the picture again with the third turn.
    assert_eq!(seeing.encoded.load(Ordering::SeqCst), 1);
    let prompts = prompts(&events);
    assert_eq!(prompts.len(), 3, "{events:?}");
    let ((before, _), (_, cached)) = (prompts[1], prompts[2]);
    assert!(cached >= before, "{cached} of {before}: {prompts:?}");
    world.wait_until_idle();
}
