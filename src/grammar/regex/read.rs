//! Parses regular expressions of requests into a syntax tree.

use regex_syntax::hir::ClassUnicode;

use super::node::Node;
use super::{Dialect, class};

/// Maximum nesting depth of groups, and so of the reader's recursion.
const MAX_DEPTH: usize = 100;

/// Maximum number of ranges in all classes of an expression, which are written out.
const MAX_RANGES: usize = 50_000;
/// Maximum characters of a name, or of a count in braces.
const LONGEST_NAME: usize = 100;

/// Kinds of groups that no automaton can match, by the text after `(?`.
const UNSUPPORTED: [(&str, &str); 7] = [
    ("=", "look-ahead"),
    ("!", "look-ahead"),
    ("<=", "look-behind"),
    ("<!", "look-behind"),
    (">", "an atomic group"),
    ("P=", "a back reference"),
    ("(", "a condition"),
];

/// Parses an expression.
///
/// # Errors
/// A noun phrase for the invalid syntax, or for the syntax that no automaton can match.
pub(super) fn read(pattern: &str, dialect: Dialect) -> Result<Node, String> {
    let mut reader = Reader {
        letters: pattern.chars().collect(),
        at: 0,
        dialect,
        depth: 0,
        n_ranges: 0,
        options: Options::default(),
    };
    let node = reader.choice()?;
    if reader.at == reader.letters.len() {
        Ok(node)
    } else {
        Err("a closing parenthesis without an opening one".to_owned())
    }
}

#[derive(Clone, Copy, Default)]
struct Options {
    ignores_case: bool,
    dot_is_all: bool,
}

pub(super) struct Reader {
    letters: Vec<char>,
    pub(super) at: usize,
    pub(super) dialect: Dialect,
    depth: usize,
    n_ranges: usize,
    options: Options,
}

/// Errors complete "the pattern must not have …".
impl Reader {
    pub(super) fn peek(&self) -> Option<char> {
        self.letters.get(self.at).copied()
    }

    pub(super) fn next(&mut self) -> Option<char> {
        let letter = self.peek()?;
        self.at += 1;
        Some(letter)
    }

    pub(super) fn sees(&self, text: &str) -> bool {
        let rest = &self.letters[self.at..];
        text.chars()
            .enumerate()
            .all(|(at, letter)| rest.get(at) == Some(&letter))
    }

    pub(super) fn eat(&mut self, text: &str) -> bool {
        let sees = self.sees(text);
        self.at += if sees { text.chars().count() } else { 0 };
        sees
    }

    /// Consumes text up to and including `end`. If `end` does not follow, consumes nothing and returns `None`.
    pub(super) fn until(&mut self, end: char) -> Option<String> {
        let rest = &self.letters[self.at..];
        let ahead = &rest[..rest.len().min(LONGEST_NAME)];
        let length = ahead.iter().position(|&letter| letter == end)?;
        let text = rest[..length].iter().collect();
        self.at += length + 1;
        Some(text)
    }

    /// Parses alternatives up to a closing parenthesis or the end.
    fn choice(&mut self) -> Result<Node, String> {
        let outer = self.options;
        let mut options = vec![self.sequence()?];
        while self.eat("|") {
            options.push(self.sequence()?);
        }
        self.options = outer;
        Ok(match options.len() {
            1 => options.remove(0),
            _ => Node::Choice(options),
        })
    }

    fn sequence(&mut self) -> Result<Node, String> {
        let mut parts = Vec::new();
        while let Some(letter) = self.peek().filter(|letter| !matches!(letter, '|' | ')')) {
            self.at += 1;
            let part = self.atom(letter)?;
            parts.push(self.repeated(part)?);
        }
        Ok(Node::sequence(parts))
    }

    /// Reads the rest of an atom after its first character.
    fn atom(&mut self, letter: char) -> Result<Node, String> {
        Ok(match letter {
            '^' => Node::Start,
            '$' => Node::End,
            '.' => Node::Class(class::dot(self.options.dot_is_all, self.dialect)),
            '(' => self.group()?,
            '[' => Node::Class(self.class()?),
            '\\' => self.escape_atom()?,
            '*' | '+' | '?' => return Err(format!("a quantifier {letter:?} without an operand")),
            '{' if self.counts()?.is_some() => {
                return Err("a quantifier in braces, such as {2}, without an operand".to_owned());
            }
            letter => Node::Class(self.folded(class::of(&[(letter, letter)]))?),
        })
    }

    /// Counts the set's ranges, and returns the set.
    ///
    /// # Errors
    /// If the expression's sets have more than [`MAX_RANGES`] ranges together.
    pub(super) fn within_range_limit(&mut self, set: ClassUnicode) -> Result<ClassUnicode, String> {
        self.n_ranges += set.ranges().len();
        if self.n_ranges > MAX_RANGES {
            Err(format!("classes of more than {MAX_RANGES} ranges"))
        } else {
            Ok(set)
        }
    }

    /// Adds the other cases of the set's letters if case is ignored.
    ///
    /// # Errors
    /// As [`Self::within_range_limit`], because folding visits each character of each range.
    pub(super) fn folded(&mut self, mut set: ClassUnicode) -> Result<ClassUnicode, String> {
        if self.options.ignores_case {
            let mut letters = set.clone();
            letters.intersect(class::cased());
            let mut letters = self.within_range_limit(letters)?;
            // Case folding fails only if the Unicode tables were not compiled in.
            let _ = letters.try_case_fold_simple();
            set.union(&letters);
        }
        Ok(set)
    }

    /// Reads a group after its opening parenthesis.
    fn group(&mut self) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("groups nested more than {MAX_DEPTH} deep"));
        }
        let outer = self.options;
        let has_content = !self.eat("?") || self.group_kind()?;
        let node = if has_content {
            self.choice()?
        } else {
            Node::empty()
        };
        if has_content {
            self.options = outer;
        }
        self.depth -= 1;
        if self.eat(")") {
            Ok(node)
        } else {
            Err("an unclosed group".to_owned())
        }
    }

    /// Reads a group's kind, after `(?`; false if it has no content.
    fn group_kind(&mut self) -> Result<bool, String> {
        if let Some((_, what)) = UNSUPPORTED.iter().find(|(sign, _)| self.sees(sign)) {
            return Err((*what).to_owned());
        }
        if self.eat("<") || self.eat("P<") {
            let name = self.until('>').filter(|name| !name.is_empty());
            return name
                .map(|_| true)
                .ok_or("a group without a name".to_owned());
        }
        let mut is_on = true;
        loop {
            match self.next() {
                Some(':') => return Ok(true),
                Some('-') if is_on => is_on = false,
                Some('i') => self.options.ignores_case = is_on,
                Some('s') => self.options.dot_is_all = is_on,
                // Unicode is always on.
                Some('u') if is_on => {}
                Some(')') => {
                    self.at -= 1;
                    return Ok(false);
                }
                Some(flag) => return Err(format!("the flag {flag:?}")),
                None => return Err("an unclosed group".to_owned()),
            }
        }
    }

    /// Applies the quantifier that follows a part, if there is one.
    fn repeated(&mut self, node: Node) -> Result<Node, String> {
        let (min, max) = match self.next() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => match self.counts()? {
                Some(counts) => counts,
                None => {
                    self.at -= 1;
                    return Ok(node);
                }
            },
            letter => {
                self.at -= usize::from(letter.is_some());
                return Ok(node);
            }
        };
        // Lazy and greedy quantifiers match the same texts.
        self.eat("?");
        if self.eat("+") {
            return Err("a possessive quantifier".to_owned());
        }
        let node = Box::new(node);
        Ok(Node::Repeat { node, min, max })
    }

    /// Parses the rest of `{2}`, `{2,}` or `{2,5}`, in Python also `{,5}`; else consumes nothing and returns `None`.
    fn counts(&mut self) -> Result<Option<(u32, Option<u32>)>, String> {
        let before = self.at;
        let inner = self.until('}').unwrap_or_default();
        let (min, max) = match inner.split_once(',') {
            Some((min, max)) => (min, Some(max)),
            None => (inner.as_str(), None),
        };
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let can_omit = self.dialect == Dialect::Python && max.is_some_and(|max| !max.is_empty());
        let is_count = is_number(min) && max.is_none_or(is_number);
        if is_count && min.is_empty() && max.is_some_and(|max| !max.is_empty()) && !can_omit {
            return Err(format!("the count {{{inner}}} without a lower bound"));
        }
        if !is_count || min.is_empty() && !can_omit {
            self.at = before;
            return Ok(None);
        }
        let number = |text: &str| match text.parse::<u32>() {
            _ if text.is_empty() => Ok(None),
            // llguidance takes `u32::MAX` for no limit.
            Ok(number) if number < u32::MAX => Ok(Some(number)),
            _ => Err(format!("the count {{{inner}}} of 2^32 - 1 or more")),
        };
        let lower = number(min)?.unwrap_or(0);
        let upper = match max {
            None => Some(lower),
            Some(max) => number(max)?,
        };
        if upper.is_some_and(|upper| upper < lower) {
            Err(format!("the count {{{inner}}} with reversed bounds"))
        } else {
            Ok(Some((lower, upper)))
        }
    }
}
