//! Translates Python values to JSON: literals, lists, tuples and dicts.

use super::atom;
use super::text::{TextReader, TextStep};
use crate::output::json::{MAX_DEPTH, Scan};

const MAX_ATOM_BYTES: usize = 4096;

/// Translates one value while it streams.
#[derive(Debug)]
pub(super) struct ValueReader {
    open: Vec<Container>,
    at: At,
    role: Role,
    atom: String,
}

#[derive(Clone, Copy, Debug)]
struct Container {
    closer: char,
    has_items: bool,
}

#[derive(Debug)]
enum At {
    Value,
    /// Expects an item of a container, or its end.
    Item,
    Colon,
    /// Expects a comma, or the end of the container.
    Comma,
    Atom,
    Text(TextReader),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Key,
    Value,
}

impl ValueReader {
    pub(super) fn new() -> Self {
        Self {
            open: Vec::new(),
            at: At::Value,
            role: Role::Value,
            atom: String::new(),
        }
    }

    pub(super) fn begins(c: char) -> bool {
        matches!(c, '[' | '(' | '{' | '"' | '\'') || atom::is_atom(c)
    }

    pub(super) fn is_in_string(&self) -> bool {
        matches!(self.at, At::Text(_))
    }

    pub(super) fn read(&mut self, c: char, to: &mut String) -> Scan {
        let closes = self.open.last().is_some_and(|open| open.closer == c);
        match &mut self.at {
            At::Value | At::Item | At::Colon | At::Comma if c.is_whitespace() => Scan::More,
            At::Item | At::Comma if closes => self.close(to),
            At::Value | At::Item => self.begin(c, to),
            At::Colon if c == ':' => {
                to.push_str(": ");
                self.at = At::Value;
                self.role = Role::Value;
                Scan::More
            }
            At::Comma if c == ',' => {
                self.expect_item();
                Scan::More
            }
            At::Colon | At::Comma => Scan::Broken,
            At::Atom => self.read_atom(c, to),
            At::Text(text) => match text.read(c, to) {
                TextStep::More => Scan::More,
                TextStep::End => {
                    to.push('"');
                    self.end_value()
                }
                TextStep::EndBefore => {
                    to.push('"');
                    self.end_before(c, to)
                }
            },
        }
    }

    fn begin(&mut self, c: char, to: &mut String) -> Scan {
        let is_item = matches!(self.at, At::Item);
        if let Some(open) = self.open.last_mut().filter(|_| is_item) {
            let has_items = std::mem::replace(&mut open.has_items, true);
            to.push_str(if has_items { ", " } else { "" });
        }
        match c {
            '"' | '\'' => {
                to.push('"');
                self.at = At::Text(TextReader::new(c, ""));
            }
            '[' | '(' | '{' if self.role == Role::Key => return Scan::Broken,
            '[' | '(' | '{' if self.open.len() == MAX_DEPTH as usize => return Scan::Broken,
            '[' => self.open('[', ']', to),
            '(' => self.open('[', ')', to),
            '{' => self.open('{', '}', to),
            _ if atom::is_atom(c) => {
                self.atom.clear();
                self.atom.push(c);
                self.at = At::Atom;
            }
            _ => return Scan::Broken,
        }
        Scan::More
    }

    fn open(&mut self, bracket: char, closer: char, to: &mut String) {
        to.push(bracket);
        self.open.push(Container {
            closer,
            has_items: false,
        });
        self.expect_item();
    }

    fn close(&mut self, to: &mut String) -> Scan {
        let closed = self.open.pop();
        let is_dict = closed.is_some_and(|open| open.closer == '}');
        to.push(if is_dict { '}' } else { ']' });
        self.role = Role::Value;
        self.end_value()
    }

    fn expect_item(&mut self) {
        let is_dict = self.open.last().is_some_and(|open| open.closer == '}');
        self.at = At::Item;
        self.role = if is_dict { Role::Key } else { Role::Value };
    }

    fn read_atom(&mut self, c: char, to: &mut String) -> Scan {
        if atom::is_atom(c) {
            self.atom.push(c);
            return if self.atom.len() > MAX_ATOM_BYTES {
                Scan::Broken
            } else {
                Scan::More
            };
        }
        if matches!(c, '"' | '\'') && TextReader::is_prefix(&self.atom) {
            to.push('"');
            self.at = At::Text(TextReader::new(c, &self.atom));
            return Scan::More;
        }
        match self.role {
            Role::Key => atom::write_key(&self.atom, to),
            Role::Value => atom::write(&self.atom, to),
        }
        self.end_before(c, to)
    }

    fn end_value(&mut self) -> Scan {
        self.at = match self.role {
            Role::Key => At::Colon,
            Role::Value if self.open.is_empty() => return Scan::Done,
            Role::Value => At::Comma,
        };
        Scan::More
    }

    fn end_before(&mut self, c: char, to: &mut String) -> Scan {
        match self.end_value() {
            Scan::Done => Scan::DoneBefore,
            _ => self.read(c, to),
        }
    }
}
