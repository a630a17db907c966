//! Parses escapes and classes of regular expressions.

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

use super::node::Node;
use super::read::Reader;
use super::{Dialect, class};

enum Escape {
    /// A code point, which may be a surrogate.
    Code(u32),
    Class(ClassUnicode),
}

/// Errors complete "the pattern must not have …".
impl Reader {
    /// Parses an escape outside of classes, after its backslash.
    pub(super) fn escape_atom(&mut self) -> Result<Node, String> {
        let is_python = self.dialect == Dialect::Python;
        match self.peek() {
            Some('b' | 'B') => return Err("a word boundary".to_owned()),
            Some('1'..='9' | 'k') => return Err("a back reference".to_owned()),
            Some(letter @ ('A' | 'z' | 'Z')) if is_python => {
                self.next();
                return Ok(if letter == 'A' {
                    Node::Start
                } else {
                    Node::End
                });
            }
            _ => {}
        }
        let set = match self.escape()? {
            Escape::Class(set) => set,
            Escape::Code(0xd800..=0xdfff) => return Err("half of a surrogate pair".to_owned()),
            Escape::Code(code) => class::of_codes(code, code),
        };
        self.folded(set).map(Node::Class)
    }

    /// Reads a class after its opening bracket.
    pub(super) fn class(&mut self) -> Result<ClassUnicode, String> {
        let is_negated = self.eat("^");
        let mut found = Vec::new();
        let mut is_first = self.dialect == Dialect::Python;
        while !self.eat_end_of_class(is_first) {
            is_first = false;
            self.class_part(&mut found)?;
        }
        let set = self.folded(ClassUnicode::new(found))?;
        Ok(if is_negated { class::negated(set) } else { set })
    }

    /// Reads an item of a class, or a range of two items.
    fn class_part(&mut self, found: &mut Vec<ClassUnicodeRange>) -> Result<(), String> {
        let mut add = |set: ClassUnicode| found.extend_from_slice(set.ranges());
        let first = self.class_item()?;
        // A dash is literal at the class's end and next to a class escape.
        let is_range = self.sees("-") && !self.sees("-]");
        let (Escape::Code(from), true) = (&first, is_range) else {
            add(ranges(first));
            return Ok(());
        };
        self.eat("-");
        match self.class_item()? {
            Escape::Code(to) if *from <= to => add(class::of_codes(*from, to)),
            Escape::Code(_) => return Err("an invalid range in a class".to_owned()),
            last => [ranges(first), class::of(&[('-', '-')]), ranges(last)]
                .into_iter()
                .for_each(add),
        }
        Ok(())
    }

    /// In Python a `]` at the start of a class is a literal.
    fn eat_end_of_class(&mut self, is_first: bool) -> bool {
        !is_first && self.eat("]")
    }

    fn class_item(&mut self) -> Result<Escape, String> {
        let unended = || "an unclosed class".to_owned();
        match self.next().ok_or_else(unended)? {
            '\\' => self.escape(),
            '[' if self.dialect == Dialect::Python && self.sees(":") => self.posix(),
            letter => Ok(Escape::Code(u32::from(letter))),
        }
    }

    /// Parses `[:alpha:]` after its first bracket: a form of Rust's. Without such a class, the bracket is literal.
    fn posix(&mut self) -> Result<Escape, String> {
        let before = self.at;
        self.eat(":");
        let is_negated = self.eat("^");
        let set = self.until(':').and_then(|name| class::posix(&name));
        let Some(set) = set.filter(|_| self.eat("]")) else {
            self.at = before;
            return Ok(Escape::Code(u32::from('[')));
        };
        Ok(Escape::Class(if is_negated {
            class::negated(set)
        } else {
            set
        }))
    }

    /// Reads an escape after its backslash, in a class or outside.
    fn escape(&mut self) -> Result<Escape, String> {
        let letter = self.next().ok_or("a backslash at its end")?;
        if let Some(set) = class::escape(letter, self.dialect) {
            return self.within_range_limit(set).map(Escape::Class);
        }
        let code = match letter {
            'n' => 0x0a,
            'r' => 0x0d,
            't' => 0x09,
            'f' => 0x0c,
            'v' => 0x0b,
            'b' => 0x08,
            'a' if self.dialect == Dialect::Python => 0x07,
            '0' if !self.peek().is_some_and(|next| next.is_ascii_digit()) => 0,
            'c' => self.control()?,
            'x' | 'u' | 'U' => self.coded(letter)?,
            'p' | 'P' => return self.property(letter == 'P'),
            '0'..='9' => return Err("an octal escape".to_owned()),
            letter if letter.is_ascii_alphanumeric() => return Err(unknown(letter)),
            letter => u32::from(letter),
        };
        Ok(Escape::Code(code))
    }

    /// Parses the letter of `\cA`.
    fn control(&mut self) -> Result<u32, String> {
        let letter = self.next().filter(char::is_ascii_alphabetic);
        let letter = letter.ok_or_else(|| unknown('c'))?;
        Ok(u32::from(letter) % 32)
    }

    /// Parses `\x41`, `\u0041`, a UTF-16 surrogate pair or `\u{41}`; in the dialect `Python`, which also takes Rust's
    /// forms, also `\x{41}` and `\U00000041`.
    fn coded(&mut self, sign: char) -> Result<u32, String> {
        let is_python = self.dialect == Dialect::Python;
        let wrong = || unknown(sign);
        if (sign == 'u' || sign == 'x' && is_python) && self.eat("{") {
            let code = self.until('}').and_then(|digits| hexadecimal(&digits));
            return code.ok_or_else(wrong);
        }
        let digits = match sign {
            'x' => 2,
            'u' => 4,
            _ if is_python => 8,
            _ => return Err(wrong()),
        };
        let code = self.digits(digits).ok_or_else(wrong)?;
        if sign == 'u' && (0xd800..0xdc00).contains(&code) {
            let before = self.at;
            let low = self.eat("\\u").then(|| self.digits(4)).flatten();
            match low.filter(|low| (0xdc00..0xe000).contains(low)) {
                Some(low) => return Ok(0x1_0000 + ((code - 0xd800) << 10) + (low - 0xdc00)),
                None => self.at = before,
            }
        }
        Ok(code)
    }

    fn digits(&mut self, count: usize) -> Option<u32> {
        let digits: Option<String> = (0..count).map(|_| self.next()).collect();
        hexadecimal(&digits?)
    }

    /// Parses `\p{Letter}`; in the dialect `Python`, which also takes Rust's forms, also `\pL`.
    fn property(&mut self, is_negated: bool) -> Result<Escape, String> {
        let name = match self.eat("{") {
            true => self.until('}'),
            false if self.dialect == Dialect::Python => self.next().map(String::from),
            false => None,
        };
        let name = name.ok_or_else(|| unknown('p'))?;
        let set = class::property(&name);
        let set = set.ok_or_else(|| format!("the unknown property {name:?}"))?;
        let set = self.within_range_limit(set)?;
        Ok(Escape::Class(if is_negated {
            class::negated(set)
        } else {
            set
        }))
    }
}

fn ranges(item: Escape) -> ClassUnicode {
    match item {
        Escape::Class(set) => set,
        Escape::Code(code) => class::of_codes(code, code),
    }
}

fn unknown(letter: char) -> String {
    format!("the unknown escape \\{letter}")
}

fn hexadecimal(digits: &str) -> Option<u32> {
    let is_digit = |digit: char| digit.is_ascii_hexdigit();
    let code = (!digits.is_empty() && digits.chars().all(is_digit)).then_some(digits)?;
    let code = u32::from_str_radix(code, 16).ok()?;
    (code <= u32::from(char::MAX)).then_some(code)
}
