//! Checks of the documents: the length of the README, relative links, flags, and names of eviction policies.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use souffleur::state::cache::eviction::EvictionPolicy;

use super::{run, stdout};

/// The documents whose relative links and flags are checked.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
        .map(|name| root.join(name))
        .into();
    let docs = fs::read_dir(root.join("docs")).expect("the folder docs exists");
    let docs = docs.map(|entry| entry.expect("the folder can be listed").path());
    found.extend(docs.filter(|path| path.extension().is_some_and(|kind| kind == "md")));
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_readme_stays_short() {
    let text = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"));
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    assert!(lines <= 150, "{lines} lines, limit is 150");
    assert!(words <= 1200, "{words} words, limit is 1200");
    for line in text.lines() {
        let columns = line.chars().count();
        assert!(columns <= 120, "{columns} columns, limit is 120: {line}");
    }
}

#[test]
fn relative_links_lead_to_files() {
    for document in documents() {
        let text = read(&document);
        let folder = document.parent().expect("a file is in a folder");
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            if path.contains("://") {
                continue;
            }
            let target = match path {
                "" => document.clone(),
                path => folder.join(path),
            };
            assert!(target.exists(), "{}: {link}", document.display());
            if !anchor.is_empty() {
                let anchors = anchors(&read(&target));
                assert!(anchors.contains(anchor), "{}: {link}", document.display());
            }
        }
    }
}

#[test]
fn documents_name_every_eviction_policy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = read(&root.join("docs/configuration.md"));
    let row = table
        .lines()
        .find(|line| line.starts_with("| `--radix-eviction-policy` "));
    let row = row.expect("the table has the flag's row");
    let defaults = read(&root.join("config/default.toml"));
    let comment = defaults
        .split("\nradix_eviction_policy = ")
        .next()
        .and_then(|before| before.split("\n\n").last());
    let comment = comment.expect("the key has a comment");
    for name in EvictionPolicy::names() {
        assert!(row.contains(&format!("`{name}`")), "{name}: {row}");
        let lists_name = |text: &str| {
            text.split_whitespace()
                .any(|word| word.trim_matches(',') == name)
        };
        assert!(lists_name(comment), "config/default.toml: {name}");
    }
}

/// The anchors that GitHub makes of headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn flags_that_documents_name_exist() {
    let known = known_flags();
    for document in documents() {
        for span in code_spans(&read(&document)) {
            let words = span.split_whitespace().collect::<Vec<_>>();
            let arguments = match words.as_slice() {
                ["souffleur", rest @ ..] => rest,
                ["cargo", rest @ ..] => match rest.iter().position(|word| *word == "--") {
                    Some(at) if rest[0] == "run" && !span.contains("benches/") => &rest[at + 1..],
                    _ => continue,
                },
                words @ [first, ..] if first.starts_with("--") => words,
                _ => continue,
            };
            for flag in flags(&arguments.join(" ")) {
                let is_known = known.contains(&flag);
                assert!(is_known, "{}: {flag} in {span:?}", document.display());
            }
        }
    }
}

/// The text of all `backticks`, and each command of a fenced block, with its continued lines joined.
fn code_spans(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let mut spans = Vec::new();
    let mut prose = String::new();
    let mut is_fenced = false;
    for line in text.lines() {
        if line.starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced {
            spans.push(line.split(" # ").next().unwrap_or(line).to_owned());
        } else {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    spans.extend(prose.split('`').skip(1).step_by(2).map(str::to_owned));
    spans
}

/// The names of the `--flags` in a text.
fn flags(text: &str) -> BTreeSet<String> {
    let is_end = |c: char| !(c.is_ascii_alphanumeric() || c == '-');
    let words = text
        .split_whitespace()
        .filter(|word| word.starts_with("--"));
    let names = words.map(|word| word.split(is_end).next().unwrap_or(word).to_owned());
    names.filter(|name| name.len() > 2).collect()
}

/// The flags of all commands, and those of the scripts that the documents show.
fn known_flags() -> BTreeSet<String> {
    let commands = [
        &["serve"][..],
        &["generate"],
        &["chat"],
        &["plan"],
        &["bench"],
        &["simulate"],
        &["replay-log"],
        &["calibrate"],
        &["gpu", "probe"],
        &["gpu", "kernels"],
    ];
    let mut known = BTreeSet::new();
    for command in commands {
        let output = run(&[command, &["--help"]].concat());
        assert!(output.status.success(), "{command:?}");
        known.extend(flags(&stdout(&output).replace([',', '['], " ")));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for script in ["scripts/gpu-check", "benches/peers/run"] {
        let text = read(&root.join(script));
        known.extend(flags(&text.replace(['"', '\'', '(', '[', '|', ')'], " ")));
    }
    known
}
