//! Tests that no function, from its signature to its closing brace, has more than 70 lines.

use std::fs;
use std::path::{Path, PathBuf};

use super::{read, root};

const MAX_LINES: usize = 70;

/// A function with a body.
#[derive(Debug, PartialEq)]
struct Function {
    name: String,
    /// The line of `fn`, from 1.
    line: usize,
    n_lines: usize,
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The end of the string literal whose opening `"` is at `start`; `n_hashes` is the number of `#` of a raw string.
fn end_of_string(source: &[char], start: usize, n_hashes: Option<usize>) -> usize {
    let mut at = start + 1;
    while at < source.len() {
        match (source[at], n_hashes) {
            ('\\', None) => at += 1,
            ('"', None) => return at + 1,
            ('"', Some(n)) => {
                let after = &source[at + 1..];
                if after.len() >= n && after[..n].iter().all(|c| *c == '#') {
                    return at + 1 + n;
                }
            }
            _ => {}
        }
        at += 1;
    }
    source.len()
}

fn end_of_line(source: &[char], start: usize) -> usize {
    let rest = source[start..].iter();
    start + rest.take_while(|c| **c != '\n').count()
}

/// The end of the comment that begins at `start` with `/*`; these comments nest.
fn end_of_comment(source: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < source.len() {
        match source[at..] {
            ['/', '*', ..] => depth += 1,
            ['*', '/', ..] => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    source.len()
}

/// The end of the raw string literal that begins at `start` with `r"` or `r#"`; `None` if there is none.
fn end_of_raw_string(source: &[char], start: usize) -> Option<usize> {
    let is_prefix = |c: &char| !is_name(*c) || ['b', 'c'].contains(c);
    if source[start] != 'r' || !source[..start].last().is_none_or(is_prefix) {
        return None;
    }
    let hashes = source[start + 1..].iter();
    let n = hashes.take_while(|c| **c == '#').count();
    let quote = start + 1 + n;
    (source.get(quote) == Some(&'"')).then(|| end_of_string(source, quote, Some(n)))
}

/// The end of the comment, string or character literal that begins at `start`; `None` for other code and lifetimes.
fn end_of_token(source: &[char], start: usize) -> Option<usize> {
    match source[start..] {
        ['/', '/', ..] => Some(end_of_line(source, start)),
        ['/', '*', ..] => Some(end_of_comment(source, start)),
        ['"', ..] => Some(end_of_string(source, start, None)),
        ['\'', '\\', _, ref rest @ ..] => {
            let n = rest.iter().take_while(|c| **c != '\'').count();
            Some(start + 3 + n + 1)
        }
        ['\'', _, '\'', ..] => Some(start + 3),
        _ => end_of_raw_string(source, start),
    }
}

/// Replaces comments, strings and characters by spaces. Lines keep their numbers.
fn code(source: &str) -> Vec<char> {
    let source: Vec<char> = source.chars().collect();
    let mut code = source.clone();
    let mut at = 0;
    while at < source.len() {
        let Some(end) = end_of_token(&source, at) else {
            at += 1;
            continue;
        };
        let end = end.min(source.len());
        for c in code[at..end].iter_mut().filter(|c| **c != '\n') {
            *c = ' ';
        }
        at = end;
    }
    code
}

/// The name of the function that begins at `at`; `None` for a type such as `fn(u32)`.
fn name_at(code: &[char], at: usize) -> Option<String> {
    let begins = code[..at].last().is_none_or(|c| !is_name(*c));
    let ['f', 'n', blank, ..] = code[at..] else {
        return None;
    };
    if !begins || !blank.is_whitespace() {
        return None;
    }
    let rest = code[at + 2..].iter().skip_while(|c| c.is_whitespace());
    let name: String = rest.take_while(|c| is_name(**c) || **c == '$').collect();
    (!name.is_empty()).then_some(name)
}

/// The end of the body of the function that begins at `start`; `None` if the function has no body.
fn end_of_body(code: &[char], start: usize) -> Option<usize> {
    let mut depth = 0;
    let mut in_body = false;
    for (at, c) in code.iter().enumerate().skip(start) {
        match c {
            ';' if depth == 0 => return None,
            '{' if depth == 0 => {
                in_body = true;
                depth += 1;
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if in_body && depth == 0 {
            return Some(at);
        }
    }
    None
}

/// The functions of a source, nested ones included.
fn functions(source: &str) -> Vec<Function> {
    let code = code(source);
    let lines = |code: &[char]| code.iter().filter(|c| **c == '\n').count();
    let found = (0..code.len()).filter_map(|start| {
        let name = name_at(&code, start)?;
        let end = end_of_body(&code, start)?;
        Some(Function {
            name,
            line: lines(&code[..start]) + 1,
            n_lines: lines(&code[start..end]) + 1,
        })
    });
    found.collect()
}

/// Finds the source files of the repository, except build outputs and fixtures.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the folder can be read").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if !["target", "fixtures"].contains(&&*name) && !name.starts_with('.') {
                sources(&path, found);
            }
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

#[test]
fn functions_have_at_most_70_lines() {
    let mut files = Vec::new();
    sources(&root(), &mut files);
    let mut n_functions = 0;
    let mut wrong = Vec::new();
    for file in &files {
        let path = file.strip_prefix(root()).expect("files are below the root");
        let path = path.to_string_lossy();
        let functions = functions(&read(file));
        n_functions += functions.len();
        for function in functions.iter().filter(|found| found.n_lines > MAX_LINES) {
            let Function {
                name,
                line,
                n_lines,
            } = function;
            wrong.push(format!("{path}:{line}: {name} has {n_lines} lines"));
        }
    }
    assert!(
        n_functions > 5000,
        "only {n_functions} functions were found"
    );
    assert!(
        wrong.is_empty(),
        "longer than {MAX_LINES} lines: {wrong:#?}"
    );
}

#[test]
fn functions_of_a_sample_are_measured() {
    let body = "    let text = \"}\"; // }\n".repeat(40);
    let sample = format!(
        r####"
trait Shape {{
    fn area(&self, sides: [u32; 2]) -> u32;
    fn name(&self) -> &'static str {{
        r#"fn in_a_text() {{ " "#
    }}
}}

/* fn in_a_comment() {{ /* nested */ */
pub(crate) async fn long<'a>(call: fn(u32) -> u32, brace: &'a str) -> char {{
{body}    fn inner() {{
        [1, 2].map(|n| {{
            n + 1
        }});
    }}
{body}    '{{'
}}

macro_rules! made {{
    ($name:ident) => {{
        fn $name() {{ b'\'' }}
    }};
}}
"####
    );
    let expected = [
        ("name", 4, 3),
        ("long", 10, 88),
        ("inner", 51, 5),
        ("$name", 101, 1),
    ];
    let expected = expected.map(|(name, line, n_lines)| Function {
        name: name.to_owned(),
        line,
        n_lines,
    });
    assert_eq!(functions(&sample), expected);
}
