//! Tests of `souffleur bench --taught` with the model in the binary, and of the script that makes texts for it.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{souffleur, stderr, stdout};

#[test]
fn taught_benches_decode_the_given_texts() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("texts.jsonl");
    let line = |prompt: Value, output: Value| {
        json!({"kind": "edit", "prompt": prompt, "output": output}).to_string()
    };
    let looped = [9, 8, 7].repeat(16);
    let lines = [
        line(
            json!("Write it again: "),
            json!("one two three four, one two three five"),
        ),
        line(json!([5, 6, 7]), json!(looped)),
    ];
    std::fs::write(&file, lines.join("\n")).expect("the file can be written");
    let run = |more: &[&str]| {
        let mut command = souffleur(&["bench", "--rounds", "2", "--output-tokens", "48"]);
        command.arg("--taught").arg(&file).args(more);
        command.env("SOUFFLEUR_CACHE_DIR", folder.path());
        command.output().expect("the binary runs")
    };
    let bench = |more: &[&str]| run(&[&["--speculative-algorithm", "NGRAM"][..], more].concat());
    // The command fails if a stream has another output than its text.
    let streams = ["--streams", "1,2,4", "--context", "0,40", "--json", "-"];
    let measured = bench(&[&["--kinds", "edit"][..], &streams[..]].concat());
    assert!(measured.status.success(), "{}", stderr(&measured));
    let record: Value = serde_json::from_str(&stdout(&measured)).expect("the record is JSON");
    assert_eq!(record["schema"], "souffleur-bench-taught/1");
    let cells = record["cells"].as_array().expect("cells are a list");
    let loads: Vec<_> = cells
        .iter()
        .map(|cell| (cell["context_tokens"].as_u64(), cell["streams"].as_u64()))
        .collect();
    let load = |context, streams| (Some(context), Some(streams));
    assert_eq!(loads, [load(0, 1), load(0, 2), load(40, 1), load(40, 2)]);
    assert!(cells.iter().all(|cell| cell["kind"] == "edit"), "{cells:?}");
    // One of 64 steps with proposals has a draft, whatever the measured times.
    let drafted = cells.iter().filter_map(|cell| cell["drafted"].as_u64());
    assert!(drafted.sum::<u64>() > 0, "{cells:?}");
    for cell in cells {
        let decodes = cell["decodes"].as_array().expect("decodes are a list");
        let sum = |of: &dyn Fn(&Value) -> Option<u64>| decodes.iter().filter_map(of).sum::<u64>();
        let rows = sum(&|decode| decode[2].as_u64());
        let drafted = sum(&|decode| Some(decode[0].as_u64()? * decode[2].as_u64()?));
        let accepted = sum(&|decode| Some(decode[1].as_u64()? * decode[2].as_u64()?));
        assert_eq!(
            json!([rows, drafted, accepted]),
            json!([cell["rows"], cell["drafted"], cell["accepted"]])
        );
    }
    let skipped = record["skipped"].to_string();
    assert!(
        skipped.contains("needs 4 texts of this kind, there are 2"),
        "{skipped}"
    );
    let unknown = bench(&["--kinds", "essay"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", stderr(&unknown));
    let reason = stderr(&unknown);
    assert!(
        reason.contains("must be some of edit, adversary"),
        "{reason}"
    );
    let plain = run(&[]);
    assert_eq!(plain.status.code(), Some(2), "{}", stderr(&plain));
    let reason = stderr(&plain);
    assert!(
        reason.contains("set --speculative-algorithm NGRAM"),
        "{reason}"
    );
}

/// A repository whose second commit changes a document in two places.
fn repository(folder: &Path) {
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(folder).args(args);
        for (name, value) in [
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_AUTHOR_NAME", "A"),
            ("GIT_AUTHOR_EMAIL", "a@example.org"),
            ("GIT_AUTHOR_DATE", "2026-01-02T03:04:05Z"),
            ("GIT_COMMITTER_NAME", "A"),
            ("GIT_COMMITTER_EMAIL", "a@example.org"),
            ("GIT_COMMITTER_DATE", "2026-01-02T03:04:05Z"),
        ] {
            command.env(name, value);
        }
        let output = command.output().expect("git runs");
        assert!(output.status.success(), "{}", stderr(&output));
    };
    git(&["init", "--quiet"]);
    for changed in ["old", "new"] {
        let lines = (0..50).map(|line| match line {
            10 | 30 => format!("The {changed} line {line} of an ä document.\n"),
            _ => format!("A line with the number {line}.\n"),
        });
        let text: String = lines.collect();
        std::fs::write(folder.join("ä.md"), text).expect("the file can be written");
        git(&["add", "."]);
        let body = "The body of this message says why the lines were changed.";
        let title = format!("docs: write {changed} lines");
        git(&["commit", "--quiet", "-m", &title, "-m", body]);
    }
}

#[test]
fn made_texts_do_not_depend_on_the_configuration_of_git() {
    for tool in ["git", "python3"] {
        if let Err(error) = Command::new(tool).arg("--version").output() {
            let in_ci = std::env::var_os("CI").is_some();
            assert!(!in_ci, "CI needs {tool}: {error}");
            eprintln!("skipped: cannot run {tool}: {error}");
            return;
        }
    }
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let home = |name: &str| {
        let home = folder.path().join(name);
        std::fs::create_dir_all(home.join("git")).expect("the folder can be made");
        home
    };
    let [source, plain, configured] = ["source", "plain", "configured"].map(home);
    repository(&source);
    let settings = "[core]\nabbrev = 30\nquotePath = false\n[color]\nui = always\n\
        [diff]\nnoprefix = true\ncontext = 1\ninterHunkContext = 40\nalgorithm = patience\nexternal = false\n\
        [log]\nshowSignature = true\n";
    std::fs::write(configured.join(".gitconfig"), settings).expect("the file can be written");
    let attributes = "*.md diff=markdown\n";
    std::fs::write(configured.join("git/attributes"), attributes).expect("it can be written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/speculation/make_texts.py");
    let make = |home: &Path, diff_options: &str| {
        let file = home.join("texts.jsonl");
        let mut command = Command::new("python3");
        command.arg(&script).arg(&source).arg(&file);
        command.env("HOME", home).env("XDG_CONFIG_HOME", home);
        command.env("GIT_DIFF_OPTS", diff_options);
        let output = command.output().expect("python3 runs");
        assert!(output.status.success(), "{}", stderr(&output));
        std::fs::read_to_string(file).expect("the file is written")
    };
    let expected = make(&plain, "");
    assert_eq!(make(&configured, "--unified=1"), expected);
    let texts = expected.lines().map(serde_json::from_str::<Value>);
    let texts: Vec<Value> = texts.map(|text| text.expect("a line is JSON")).collect();
    let diff = texts.iter().find(|text| text["kind"] == "diff");
    let diff = diff.and_then(|text| text["output"].as_str());
    let diff = diff.expect("a text of a diff");
    assert!(diff.contains("--- \"a/\\303\\244.md\"\n"), "{diff}");
    assert_eq!(diff.matches("\n@@ ").count(), 2, "{diff}");
    for kind in ["edit", "message"] {
        assert!(texts.iter().any(|text| text["kind"] == kind), "{kind}");
    }
}
