//! Writes regular expressions for llguidance: without anchors, and with only ranges in classes.

use std::fmt::Write;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

use super::node::Node;

const ANY: &str = "(?s:.*)";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Plain,
    /// For JSON strings. llguidance adds the quoting.
    ///
    /// A class with all control characters is quoted as though it also had the quotation mark and the backslash.
    /// So NUL, which has no escape in such a string, is removed from a class that lacks one of the two.
    Quoted,
}

/// Writes an expression for all texts that contain a match of `node`.
///
/// # Errors
/// A noun phrase for an anchor that is neither at the beginning nor at the end.
pub(super) fn search(node: &Node, purpose: Purpose) -> Result<String, String> {
    let found = anchored(node, Edges::BOTH, purpose)?;
    let before = if found.anchors.start { "" } else { ANY };
    let after = if found.anchors.end { "" } else { ANY };
    Ok(match (before, after) {
        ("", "") => found.text,
        _ => format!("{before}(?:{}){after}", found.text),
    })
}

/// Writes an expression for all texts that `node` matches in full.
pub(super) fn whole(node: &Node, purpose: Purpose) -> Result<String, String> {
    let mut whole = String::new();
    write(node, Edges::BOTH, purpose, &mut whole)?;
    Ok(whole)
}

/// The edges of the text that a part touches, or to which it is anchored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edges {
    start: bool,
    end: bool,
}

impl Edges {
    const BOTH: Self = Self {
        start: true,
        end: true,
    };
    const NONE: Self = Self {
        start: false,
        end: false,
    };

    /// The edges of a part of a sequence. `is_first` (`is_last`) means that only anchors come before (after) it.
    fn of_part(self, is_first: bool, is_last: bool) -> Self {
        Self {
            start: self.start && is_first,
            end: self.end && is_last,
        }
    }
}

/// The text of a part without its anchors, and the anchors.
struct Anchored {
    text: String,
    anchors: Edges,
}

fn anchored(node: &Node, edges: Edges, purpose: Purpose) -> Result<Anchored, String> {
    match node {
        Node::Start | Node::End => {
            let mut text = String::new();
            write(node, edges, purpose, &mut text)?;
            let anchors = Edges {
                start: *node == Node::Start,
                end: *node == Node::End,
            };
            Ok(Anchored { text, anchors })
        }
        Node::Sequence(parts) => anchored_sequence(parts, edges, purpose),
        Node::Choice(options) if edges != Edges::NONE => anchored_choice(options, edges, purpose),
        _ => {
            let mut text = String::new();
            write(node, Edges::NONE, purpose, &mut text)?;
            let anchors = Edges::NONE;
            Ok(Anchored { text, anchors })
        }
    }
}

fn anchored_sequence(parts: &[Node], edges: Edges, purpose: Purpose) -> Result<Anchored, String> {
    let mut all = Anchored {
        text: String::new(),
        anchors: Edges::NONE,
    };
    for (at, part) in parts.iter().enumerate() {
        let part_edges = edges_of(parts, at, edges);
        let found = anchored(part, part_edges, purpose)?;
        all.anchors.start |= found.anchors.start;
        all.anchors.end |= found.anchors.end;
        all.text += &match part {
            Node::Choice(_) => format!("(?:{})", found.text),
            _ => found.text,
        };
    }
    Ok(all)
}

/// If one option is anchored to an edge, all options are extended to that edge.
fn anchored_choice(options: &[Node], edges: Edges, purpose: Purpose) -> Result<Anchored, String> {
    let options = options
        .iter()
        .map(|option| anchored(option, edges, purpose));
    let options: Vec<Anchored> = options.collect::<Result<_, _>>()?;
    let anchors = Edges {
        start: options.iter().any(|option| option.anchors.start),
        end: options.iter().any(|option| option.anchors.end),
    };
    let texts = options.into_iter().map(|option| {
        let before = anchors.start && !option.anchors.start;
        let after = anchors.end && !option.anchors.end;
        match (before, after) {
            (false, false) => option.text,
            (before, after) => {
                let any = |is_there: bool| if is_there { ANY } else { "" };
                format!("{}(?:{}){}", any(before), option.text, any(after))
            }
        }
    });
    let text = texts.collect::<Vec<_>>().join("|");
    Ok(Anchored { text, anchors })
}

fn edges_of(parts: &[Node], at: usize, edges: Edges) -> Edges {
    let is_first = parts[..at].iter().all(|part| *part == Node::Start);
    let is_last = parts[at + 1..].iter().all(|part| *part == Node::End);
    edges.of_part(is_first, is_last)
}

/// Writes a part without its anchors. Fails for an anchor that is not redundant.
fn write(node: &Node, edges: Edges, purpose: Purpose, text: &mut String) -> Result<(), String> {
    match node {
        Node::Start if edges.start => {}
        Node::End if edges.end => {}
        Node::Start => return Err("a \"^\" that is not at its beginning".to_owned()),
        Node::End => return Err("a \"$\" that is not at its end".to_owned()),
        Node::Class(set) => write_class(set, purpose, text),
        Node::Sequence(parts) => {
            for (at, part) in parts.iter().enumerate() {
                let edges = edges_of(parts, at, edges);
                grouped(part, matches!(part, Node::Choice(_)), edges, purpose, text)?;
            }
        }
        Node::Choice(options) => {
            for (at, option) in options.iter().enumerate() {
                text.push_str(if at == 0 { "" } else { "|" });
                write(option, edges, purpose, text)?;
            }
        }
        Node::Repeat { node, min, max } => {
            let is_group = !matches!(**node, Node::Class(_));
            grouped(node, is_group, Edges::NONE, purpose, text)?;
            write_count(*min, *max, text);
        }
    }
    Ok(())
}

fn grouped(
    node: &Node,
    is_group: bool,
    edges: Edges,
    purpose: Purpose,
    text: &mut String,
) -> Result<(), String> {
    text.push_str(if is_group { "(?:" } else { "" });
    write(node, edges, purpose, text)?;
    text.push_str(if is_group { ")" } else { "" });
    Ok(())
}

fn write_count(min: u32, max: Option<u32>, text: &mut String) {
    // Writing to a string cannot fail.
    let _ = match (min, max) {
        (0, None) => write!(text, "*"),
        (1, None) => write!(text, "+"),
        (0, Some(1)) => write!(text, "?"),
        (min, None) => write!(text, "{{{min},}}"),
        (min, Some(max)) if min == max => write!(text, "{{{min}}}"),
        (min, Some(max)) => write!(text, "{{{min},{max}}}"),
    };
}

fn write_class(set: &ClassUnicode, purpose: Purpose, text: &mut String) {
    let has = |letter: char| {
        let mut ranges = set.ranges().iter();
        ranges.any(|range| (range.start()..=range.end()).contains(&letter))
    };
    let set = if purpose == Purpose::Quoted && has('\0') && !(has('"') && has('\\')) {
        let mut rest = set.clone();
        rest.difference(&ClassUnicode::new([ClassUnicodeRange::new('\0', '\0')]));
        rest
    } else {
        set.clone()
    };
    match set.ranges() {
        // An empty class: no character is both `a` and `b`.
        [] => text.push_str(r"[a&&b]"),
        [only] if only.start() == only.end() => write_letter(only.start(), text),
        [all] if (all.start(), all.end()) == ('\0', char::MAX) => text.push_str("(?s:.)"),
        ranges => {
            text.push('[');
            for range in ranges {
                write_letter(range.start(), text);
                if range.start() != range.end() {
                    text.push('-');
                    write_letter(range.end(), text);
                }
            }
            text.push(']');
        }
    }
}

/// Escapes a character for regular expressions and Lark.
pub(super) fn write_letter(letter: char, text: &mut String) {
    if letter.is_alphanumeric() {
        text.push(letter)
    } else {
        let _ = write!(text, "\\x{{{:x}}}", u32::from(letter));
    }
}
