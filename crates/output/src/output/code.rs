//! Detects code blocks in the content, where an object is not a call.

/// The parts of the content's state that decide where a call may begin without a tag.
#[derive(Debug)]
pub(super) struct Code {
    is_in_block: bool,
    /// An open fence was dropped together with the call after it.
    is_fence_dropped: bool,
    line: Line,
    /// Number of consecutive backticks.
    ticks: u8,
    last: Option<char>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// Only white space, and backticks that are not a fence yet.
    Blank,
    /// A fence that closes the dropped one unless a language follows.
    MayClose,
    /// A fence at the beginning of the line, which opened a block.
    Fence,
    /// A fence after other text, followed only by characters of a language name.
    LateFence,
    /// A fence after other text and before more text: code up to the next fence or the end of the line.
    Span,
    Text,
}

impl Code {
    pub(super) fn new() -> Self {
        Self {
            is_in_block: false,
            is_fence_dropped: false,
            line: Line::Blank,
            ticks: 0,
            last: None,
        }
    }

    /// Reads a character of the content. A fence at the beginning of a line opens or closes a block. A fence after
    /// other text opens a block if only a language follows it in the line.
    pub(super) fn read(&mut self, c: char) {
        self.last = Some(c);
        if c == '`' {
            self.ticks = self.ticks.saturating_add(1);
            if self.ticks == 3 {
                self.read_fence();
            }
            return;
        }
        let had_ticks = std::mem::take(&mut self.ticks) > 0;
        if self.line == Line::MayClose {
            self.is_fence_dropped = false;
            self.is_in_block = !c.is_whitespace();
            self.line = Line::Fence;
        }
        if self.line == Line::Span && c == '\n' {
            self.is_in_block = false;
        }
        self.line = match self.line {
            _ if c == '\n' => Line::Blank,
            Line::Blank if c.is_whitespace() && !had_ticks => Line::Blank,
            Line::Blank => Line::Text,
            Line::LateFence if !may_name_language(c) => Line::Span,
            line => line,
        };
    }

    fn read_fence(&mut self) {
        match self.line {
            Line::Blank if self.is_fence_dropped => self.line = Line::MayClose,
            Line::Blank => {
                self.is_in_block = !self.is_in_block;
                self.line = if self.is_in_block {
                    Line::Fence
                } else {
                    Line::Text
                };
            }
            Line::Fence | Line::LateFence | Line::Span => {
                self.is_in_block = false;
                self.line = Line::Text;
            }
            Line::Text if !self.is_in_block => {
                self.is_in_block = true;
                self.line = Line::LateFence;
            }
            Line::Text | Line::MayClose => {}
        }
    }

    pub(super) fn after_call(&mut self) {
        self.line = Line::Blank;
        self.ticks = 0;
        self.last = None;
    }

    /// Starts a new line inside a fence that was dropped with the call.
    pub(super) fn after_call_in_fence(&mut self) {
        self.after_call();
        self.is_fence_dropped = true;
    }

    /// Allows a call to begin next, whatever precedes it in its line.
    pub(super) fn allow_next(&mut self) {
        self.last = None;
    }

    /// Returns whether a call without a tag may begin with this character: outside blocks, words and quotes.
    pub(super) fn allows(&self, c: char) -> bool {
        let is_boundary = |last: char| {
            last.is_whitespace() || matches!(last, ':' | ';' | '>' | '}' | '.' | '!' | '?' | ')')
        };
        !self.is_in_block
            && match c {
                '`' => self.last != Some('`'),
                '{' | '[' | '<' => self.last.is_none_or(is_boundary),
                _ => false,
            }
    }
}

/// Whether a character may belong to a fence's language name.
fn may_name_language(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '+' | '#' | '.')
}
