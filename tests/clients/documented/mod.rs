//! Runs every example of `docs/api.md` against a server of this process, and checks the output of each; and those of
//! `docs/images.md`.

mod checks;
mod pictures;

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use checks::{CURL, Check, PYTHON};

use crate::environment::run;
use crate::python::interpreter;
use crate::world::World;

/// The address in the document.
const ADDRESS: &str = "http://127.0.0.1:30000";

/// A part of the prompt, and the model's reply. In some examples, a constraint forces a different reply.
const LINES: [(&str, &str); 25] = [
    ("I am", " the prompter."),
    ("free in row 4?", FIND_4),
    ("\"seat\": 12", "Seat 12 in row 4 is free."),
    ("free in row 6?", FIND_6),
    ("\"seat\": 31", "Seat 31 in row 6 is free."),
    ("Who sits in row 8?", "Nobody does."),
    ("free in rows 4 and 5?", FIND_4_AND_5),
    ("I sit in row 7.", FIND_7_AND_8),
    ("Is row 6 full?", FIND_ALL_OF_6),
    ("Dim the light", SET_LIGHT),
    ("The play begins.", OPEN_CURTAIN),
    ("free in row 9?", FIND_9),
    (
        "Is 91 a prime?",
        "<think>\nSeven times thirteen.\n</think>\n\nNo.",
    ),
    ("Is 97 a prime?", "Yes."),
    ("Is 89 a prime?", "Yes, it is."),
    (
        "Name a city",
        "{\"city\": \"Lisbon\", \"country\": \"Portugal\"}",
    ),
    (
        "Describe the stage",
        "{\"curtain\": \"red\", \"lights\": [1, 2]}",
    ),
    ("Which seat is nearest?", "{\"row\": 2, \"is_free\": true}"),
    ("The free seats are", "[4, 12]"),
    ("Tag the row.", "It is <row=upper>7</row>."),
    ("Where is the stage?", "{\"floor\": 1, \"door\": 2}"),
    ("Is water wet?", "Perhaps."),
    ("Which row is the best?", "Row 5."),
    ("Which row is the worst?", "Row 31."),
    ("", "That I cannot say."),
];
const FIND_4: &str =
    "<tool_call>\n{\"name\": \"find_seat\", \"arguments\": {\"row\": 4}}\n</tool_call>";
const FIND_6: &str =
    "<tool_call>\n{\"name\": \"find_seat\", \"arguments\": {\"row\":  6}}\n</tool_call>";
const FIND_4_AND_5: &str = "<tool_call>\n{\"name\": \"find_seat\", \"arguments\": {\"row\": 4}}\n</tool_call>\n\
    <tool_call>\n{\"name\": \"find_seat\", \"arguments\": {\"row\": 5}}\n</tool_call>";
const FIND_7_AND_8: &str = "<tool_call>\n{\"name\": \"find_seat\", \"arguments\": {\"row\": 7}}\n</tool_call>\n\
    <tool_call>\n{\"name\": \"find_seat\", \"arguments\": {\"row\": 8}}\n</tool_call>";
const FIND_ALL_OF_6: &str =
    "<tool_call>\n{\"name\": \"find_seat\", \"arguments\": {\"row\": 6}}\n</tool_call>";
const FIND_9: &str =
    "<tool_call>\n{\"name\": \"find_seat\", \"arguments\": {\"row\": 9}}\n</tool_call>";
const SET_LIGHT: &str =
    "<tool_call>\n{\"name\": \"set_light\", \"arguments\": {\"level\": \"dim\"}}\n</tool_call>";
const OPEN_CURTAIN: &str =
    "<tool_call>\n{\"name\": \"open_curtain\", \"arguments\": {}}\n</tool_call>";

/// The code blocks of a document in one language.
fn examples(document: &str, language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
    let text = fs::read_to_string(path).expect("the document exists");
    let opening = format!("```{language}\n");
    let blocks = text.split(&opening).skip(1);
    let blocks = blocks.map(|rest| rest.split("\n```").next().expect("each block has an end"));
    blocks.map(str::to_owned).collect()
}

/// Runs the examples of a language. Each example needs exactly one check.
fn check(language: &str, checks: &[(&str, Check)], command: impl Fn(&str) -> Command) {
    // A scripted model has neither hidden states nor probabilities.
    let (scripted, unscripted) = (World::scripted(&LINES), World::new());
    let examples = examples("docs/api.md", language);
    assert_eq!(examples.len(), checks.len(), "each example needs one check");
    for example in examples {
        let mut found = checks.iter().filter(|(part, _)| example.contains(part));
        let (Some((_, check)), None) = (found.next(), found.next()) else {
            panic!("this example needs exactly one check:\n{example}");
        };
        assert!(example.contains(ADDRESS), "{example}");
        let needs_weights = ["/v1/embeddings", "/v1/rerank", "/infill"];
        let addr = if needs_weights.iter().any(|path| example.contains(path)) {
            unscripted.addr
        } else {
            scripted.addr
        };
        let mut command = command(&example.replace(ADDRESS, &format!("http://{addr}")));
        let output = run(without_proxies(&mut command));
        let output = output.unwrap_or_else(|error| panic!("{example}\n{error}"));
        if let Err(reason) = check(&output) {
            panic!("{example}\n{reason}:\n{output}");
        }
    }
    scripted.wait_until_idle();
}

/// The command without variables that name a proxy.
fn without_proxies(command: &mut Command) -> &mut Command {
    for name in ["http_proxy", "https_proxy", "all_proxy"] {
        command.env_remove(name).env_remove(name.to_uppercase());
    }
    command
}

/// Whether curl is installed, as CI's machines must have it.
fn has_curl() -> bool {
    let found = run(Command::new("curl").arg("--version"));
    if let Err(reason) = &found {
        assert!(env::var_os("CI").is_none(), "CI needs curl: {reason}");
        eprintln!("skipped: cannot run curl: {reason}");
    }
    found.is_ok()
}

#[test]
fn examples_for_a_shell() {
    if !has_curl() {
        return;
    }
    check("sh", &CURL, |script| {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    });
}

#[test]
fn examples_in_python() {
    let Some(python) = interpreter() else {
        return;
    };
    check("python", &PYTHON, |program| {
        let mut command = Command::new(python);
        command.args(["-c", program]);
        command
    });
}
