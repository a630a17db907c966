//! Parses EBNF rules into a syntax tree.

use std::collections::HashMap;
use std::fmt::Write;

use super::expression::{Expression, RuleId};

/// Maximum nesting depth of groups.
const MAX_DEPTH: usize = 64;
/// Maximum count of a repetition.
const MAX_COUNT: u32 = 1_000_000;

/// Parses the rules of a grammar. `root` is the first rule of the result.
pub(super) fn read(grammar: &str) -> Result<Vec<Expression>, String> {
    let mut reader = Reader {
        rest: grammar,
        line: 1,
        ids: HashMap::new(),
        rules: Vec::new(),
        depth: 0,
    };
    let root = reader.id("root", 1);
    reader.grammar()?;
    reader.finish(root)
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
    ids: HashMap<&'a str, RuleId>,
    rules: Vec<RuleEntry<'a>>,
    depth: usize,
}

/// A rule, with the line that first mentions it. `body` is `None` until the rule is defined.
struct RuleEntry<'a> {
    name: &'a str,
    line: usize,
    body: Option<Expression>,
}

impl<'a> Reader<'a> {
    fn grammar(&mut self) -> Result<(), String> {
        self.skip_blank();
        while !self.rest.is_empty() {
            let line = self.line;
            let name = self
                .name()
                .ok_or_else(|| self.unexpected("a rule's name"))?;
            self.skip_blank();
            if !self.eat("::=") {
                return Err(
                    self.unexpected("::= (a grammar in Lark begins with a line %llguidance {})")
                );
            }
            let id = self.id(name, line);
            let body = self.choice()?;
            if self.rules[id].body.replace(body).is_some() {
                return Err(format!("line {line}: the rule {name} is defined twice"));
            }
        }
        Ok(())
    }

    fn finish(self, root: RuleId) -> Result<Vec<Expression>, String> {
        if self.rules[root].body.is_none() {
            return Err("there is no rule named root, the start of the grammar".to_owned());
        }
        let bodies = self.rules.into_iter().map(|rule| {
            let RuleEntry { name, line, .. } = rule;
            rule.body
                .ok_or_else(|| format!("line {line}: the rule {name} is not defined"))
        });
        bodies.collect()
    }

    fn id(&mut self, name: &'a str, line: usize) -> RuleId {
        let next = self.rules.len();
        let id = *self.ids.entry(name).or_insert(next);
        if id == next {
            let body = None;
            self.rules.push(RuleEntry { name, line, body });
        }
        id
    }

    fn choice(&mut self) -> Result<Expression, String> {
        let mut options = vec![self.sequence()?];
        while self.eat("|") {
            options.push(self.sequence()?);
        }
        Ok(match options.len() {
            1 => options.swap_remove(0),
            _ => Expression::Choice(options),
        })
    }

    fn sequence(&mut self) -> Result<Expression, String> {
        let mut parts = Vec::new();
        loop {
            self.skip_blank();
            if self.rest.is_empty() || self.rest.starts_with(['|', ')']) || self.is_at_rule() {
                break;
            }
            let part = self.part()?;
            parts.push(self.repeated(part)?);
        }
        Ok(match parts.len() {
            1 => parts.swap_remove(0),
            _ => Expression::Sequence(parts),
        })
    }

    fn is_at_rule(&self) -> bool {
        let name = name_bytes(self.rest);
        let after = self.rest[name..].trim_start();
        name > 0 && after.starts_with("::=")
    }

    fn part(&mut self) -> Result<Expression, String> {
        if self.rest.starts_with("(=") {
            return Err(self.refused("look-ahead"));
        }
        match self.rest.chars().next() {
            Some('"') => self.text(),
            Some('[') => self.class(),
            Some('(') => self.group(),
            Some('.') => {
                self.eat(".");
                Ok(Expression::Class("(?s:.)".to_owned()))
            }
            Some('\'') => Err(self.refused("a string in single quotes")),
            Some('<') => Err(self.refused("a reference to a token")),
            Some('!' | '~') => Err(self.refused("a negation")),
            Some('%') => Err(self.refused("a directive")),
            _ => self.reference(),
        }
    }

    fn reference(&mut self) -> Result<Expression, String> {
        let line = self.line;
        let name = self.name();
        let name =
            name.ok_or_else(|| self.unexpected("a string, a class, a group or a rule's name"))?;
        if self.rest.starts_with('(') && name.starts_with(|c: char| c.is_ascii_uppercase()) {
            return Err(self.refused(&format!("the macro {name}")));
        }
        Ok(Expression::Rule(self.id(name, line)))
    }

    fn group(&mut self) -> Result<Expression, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!(
                "line {}: groups are nested more than {MAX_DEPTH} deep",
                self.line
            ));
        }
        self.eat("(");
        let group = self.choice()?;
        if !self.eat(")") {
            return Err(self.unexpected("a closing parenthesis"));
        }
        self.depth -= 1;
        Ok(group)
    }

    /// Applies the quantifiers that follow a part.
    fn repeated(&mut self, part: Expression) -> Result<Expression, String> {
        let mut part = part;
        loop {
            let (min, max) = match self.rest.chars().next() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    let counts = self.counts()?;
                    part = repeat(part, counts);
                    continue;
                }
                _ => return Ok(part),
            };
            self.rest = &self.rest[1..];
            part = repeat(part, (min, max));
        }
    }

    /// Parses `{2}`, `{2,}`, `{,5}` or `{2,5}`.
    fn counts(&mut self) -> Result<(u32, Option<u32>), String> {
        let end = self.rest.find('}');
        let end = end.ok_or_else(|| self.unexpected("a count in braces"))?;
        let inner = &self.rest[1..end];
        let number = |digits: &str| {
            let count = digits.trim().parse::<u32>().ok();
            count.filter(|count| *count <= MAX_COUNT)
        };
        let counts = match inner.split_once(',') {
            None => number(inner).map(|count| (count, Some(count))),
            Some((min, max)) => {
                let min = if min.trim().is_empty() {
                    Some(0)
                } else {
                    number(min)
                };
                if max.trim().is_empty() {
                    min.map(|min| (min, None))
                } else {
                    min.zip(number(max)).map(|(min, max)| (min, Some(max)))
                }
            }
        };
        let counts = counts.filter(|(min, max)| max.is_none_or(|max| *min <= max));
        let line = self.line;
        self.rest = &self.rest[end + 1..];
        counts.ok_or_else(|| {
            format!(
                "line {line}: {{{inner}}} is not a count: use {{n}}, {{n,}} or {{n,m}} with n <= m <= {MAX_COUNT}"
            )
        })
    }

    fn text(&mut self) -> Result<Expression, String> {
        let line = self.line;
        self.eat("\"");
        let mut text = String::new();
        loop {
            match self.character()? {
                None => return Err(format!("line {line}: unterminated string")),
                Some((letter, true)) => text.push(letter),
                Some(('"', false)) => return Ok(Expression::Text(text)),
                Some(('\n', false)) => return Err(format!("line {line}: unterminated string")),
                Some((letter, false)) => text.push(letter),
            }
        }
    }

    fn class(&mut self) -> Result<Expression, String> {
        let line = self.line;
        self.eat("[");
        let is_negated = self.eat_here("^");
        let mut items: Vec<(char, char)> = Vec::new();
        loop {
            let first = match self.character()? {
                None | Some(('\n', false)) => {
                    return Err(format!("line {line}: a character class is not closed"));
                }
                Some((']', false)) => break,
                Some((first, _)) => first,
            };
            let is_range = self.rest.starts_with('-') && !self.rest.starts_with("-]");
            let last = if !is_range {
                first
            } else {
                self.eat_here("-");
                let last = self.character()?;
                last.ok_or_else(|| format!("line {line}: a character class is not closed"))?
                    .0
            };
            if first > last {
                return Err(format!(
                    "line {line}: {first}-{last} is not an ascending range"
                ));
            }
            items.push((first, last));
        }
        match (items.is_empty(), is_negated) {
            (true, false) => Err(format!("line {line}: a character class is empty")),
            (true, true) => Ok(Expression::Class("(?s:.)".to_owned())),
            (false, _) => Ok(Expression::Class(class_regex(&items, is_negated))),
        }
    }

    /// The next character of a string or class, and whether it was escaped.
    fn character(&mut self) -> Result<Option<(char, bool)>, String> {
        let mut letters = self.rest.chars();
        let Some(letter) = letters.next() else {
            return Ok(None);
        };
        self.rest = letters.as_str();
        if letter != '\\' {
            return Ok(Some((letter, false)));
        }
        let line = self.line;
        let escape = letters.next();
        let wrong = || {
            let letter = escape.unwrap_or(' ');
            format!(
                "line {line}: unknown escape: \\{letter}, must be n, r, t, f, b, 0, x, u, U or a punctuation mark"
            )
        };
        let bad_digits =
            |n: usize, of: char| format!("line {line}: \\{of} needs {n} hex digits of a character");
        let escape = escape.ok_or_else(wrong)?;
        self.rest = letters.as_str();
        let digits = match escape {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        if digits > 0 {
            let code = self.rest.get(..digits);
            let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
            let letter = code
                .and_then(char::from_u32)
                .ok_or_else(|| bad_digits(digits, escape))?;
            self.rest = &self.rest[digits..];
            return Ok(Some((letter, true)));
        }
        let letter = match escape {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'f' => '\u{c}',
            'b' => '\u{8}',
            '0' => '\0',
            letter if letter.is_ascii_punctuation() => letter,
            _ => return Err(wrong()),
        };
        Ok(Some((letter, true)))
    }

    fn name(&mut self) -> Option<&'a str> {
        let (name, rest) = self.rest.split_at(name_bytes(self.rest));
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip_blank();
        self.eat_here(token)
    }

    fn eat_here(&mut self, token: &str) -> bool {
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn skip_blank(&mut self) {
        loop {
            let rest = self.rest.trim_start();
            let skipped = &self.rest[..self.rest.len() - rest.len()];
            self.line += skipped.matches('\n').count();
            self.rest = rest;
            if !rest.starts_with('#') {
                return;
            }
            self.rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
        }
    }

    fn unexpected(&self, wanted: &str) -> String {
        let found: String = self.rest.chars().take(12).collect();
        let found = if found.is_empty() {
            "the end".to_owned()
        } else {
            format!("{found:?}")
        };
        let found = found.replace('"', "'");
        format!("line {}: expected {wanted}, found {found}", self.line)
    }

    fn refused(&self, what: &str) -> String {
        format!("line {}: {what} is not supported: remove it", self.line)
    }
}

fn repeat(expression: Expression, (min, max): (u32, Option<u32>)) -> Expression {
    match max {
        Some(0) => Expression::empty(),
        _ => Expression::Repeat {
            expression: Box::new(expression),
            min,
            max,
        },
    }
}

fn name_bytes(text: &str) -> usize {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_later = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if text.starts_with(is_first) {
        text.find(|c| !is_later(c)).unwrap_or(text.len())
    } else {
        0
    }
}

fn class_regex(items: &[(char, char)], is_negated: bool) -> String {
    let mut regex = String::from(if is_negated { "[^" } else { "[" });
    for (first, last) in items {
        let (first, last) = (u32::from(*first), u32::from(*last));
        // Writing to a string cannot fail.
        let _ = write!(regex, "\\x{{{first:x}}}-\\x{{{last:x}}}");
    }
    regex.push(']');
    regex
}
