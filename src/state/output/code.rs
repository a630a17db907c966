//! Blocks of code in the content, in which an object is no call.

/// The content so far, as far as it tells where a call may begin without a tag.
#[derive(Debug)]
pub(super) struct Code {
    is_inside: bool,
    line: Line,
    last: Option<char>,
}

/// The line that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// Nothing but blanks.
    Blank,
    /// A fence, as many of its ticks as came.
    Ticks(u8),
    Text,
}

impl Code {
    pub(super) fn new() -> Self {
        Self {
            is_inside: false,
            line: Line::Blank,
            last: None,
        }
    }

    /// Reads a character of the content. A fence at the beginning of a line begins a block or ends it.
    pub(super) fn read(&mut self, c: char) {
        self.last = Some(c);
        self.line = match (self.line, c) {
            (_, '\n') => Line::Blank,
            (Line::Blank, _) if c.is_whitespace() => Line::Blank,
            (Line::Blank, '`') => Line::Ticks(1),
            (Line::Ticks(2), '`') => {
                self.is_inside = !self.is_inside;
                Line::Text
            }
            (Line::Ticks(ticks), '`') => Line::Ticks(ticks + 1),
            _ => Line::Text,
        };
    }

    /// Goes on after a call.
    pub(super) fn after_call(&mut self) {
        (self.line, self.last) = (Line::Blank, None);
    }

    /// Returns whether a call without a tag may begin with this character: not inside of a block, of a word or of quotes.
    pub(super) fn allows(&self, c: char) -> bool {
        let is_apart = |last: char| {
            last.is_whitespace() || matches!(last, ':' | ';' | '>' | '}' | '.' | '!' | '?' | ')')
        };
        !self.is_inside
            && match c {
                '`' => self.last != Some('`'),
                '{' | '[' | '<' => self.last.is_none_or(is_apart),
                _ => false,
            }
    }
}
