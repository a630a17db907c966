//! Tests that every name in `docs/glossary.md` occurs in the code.

use std::collections::HashSet;

use super::words::prose;
use super::{code, read, root};

#[test]
fn names_of_the_glossary_occur_in_the_code() {
    let text = read(&root().join("docs/glossary.md"));
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let mut unused: HashSet<&str> = rows
        .flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`'))
        .filter(|part| part.chars().any(char::is_alphabetic))
        .collect();
    assert!(unused.len() > 40, "only {} names", unused.len());
    let mut files = Vec::new();
    prose(&root(), &mut files);
    files.retain(|file| file.extension().is_some_and(|extension| extension == "rs"));
    for file in files {
        let text = read(&file);
        for word in text
            .lines()
            .flat_map(|line| code(line).split(|c: char| !c.is_alphanumeric() && c != '_'))
        {
            unused.remove(word);
        }
    }
    assert!(
        unused.is_empty(),
        "these names are not in the code: remove their rows, or rename them: {unused:?}"
    );
}
