//! Tests that discouraged words occur in comments, documents and messages as often as `words.txt` allows.

use std::fs;
use std::path::{Path, PathBuf};

use super::{read, root};

/// A line of `words.txt`: phrases, and the number of their occurrences.
struct Budget {
    phrases: Vec<Vec<String>>,
    expected: usize,
}

/// Lines such as `nobody, whoever: 40`.
fn budgets() -> Vec<Budget> {
    let text = read(&root().join("tests/layers/words.txt"));
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let budgets = lines.map(|line| {
        let (phrases, expected) = line.split_once(':').expect("phrases: number");
        Budget {
            phrases: phrases.split(',').map(words).collect(),
            expected: expected.trim().parse().expect("a number"),
        }
    });
    budgets.collect()
}

/// The words of a text, in lower case. Names with underscores are one word.
fn words(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let words = parts.filter(|part| !part.is_empty());
    words.map(str::to_lowercase).collect()
}

/// Finds the files with prose, except those from clients, models and other projects.
pub(super) fn prose(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the folder can be read").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if !["target", "fixtures", "models"].contains(&&*name) && !name.starts_with('.') {
                prose(&path, found);
            }
            continue;
        }
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        if ["rs", "md", "py", "cu", "cuh"].contains(&&*extension) {
            found.push(path);
        }
    }
}

fn count(words: &[String], phrase: &[String]) -> usize {
    let windows = words.windows(phrase.len());
    windows.filter(|window| *window == phrase).count()
}

#[test]
fn discouraged_words_occur_as_often_as_the_budgets_allow() {
    let mut files = Vec::new();
    prose(&root(), &mut files);
    assert!(files.len() > 500, "only {} files", files.len());
    let texts: Vec<Vec<String>> = files.iter().map(|file| words(&read(file))).collect();
    let mut wrong = Vec::new();
    for Budget { phrases, expected } in budgets() {
        let counts = phrases
            .iter()
            .flat_map(|phrase| texts.iter().map(|text| count(text, phrase)));
        let n: usize = counts.sum();
        if n != expected {
            wrong.push(format!("{phrases:?}: {n}, the budget is {expected}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "rewrite the new places, or lower the budget in words.txt: {wrong:#?}"
    );
}
