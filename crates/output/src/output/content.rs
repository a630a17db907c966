//! Decides which whitespace of content is emitted, and when.

/// Upper bound of held whitespace in bytes; longer whitespace is text.
const MAX_HELD_SPACES: usize = 1 << 16;

/// A stretch of content: from the start of the output, the end of reasoning or the end of a call to the next call.
#[derive(Debug)]
pub(super) struct Content {
    after: After,
    /// Whitespace not emitted yet: any whitespace at the start, later only newlines.
    held: String,
    is_blank: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Start,
    Reasoning,
    Call,
}

impl Content {
    pub(super) fn new(after: After) -> Self {
        Self {
            after,
            held: String::new(),
            is_blank: true,
        }
    }

    pub(super) fn is_blank(&self) -> bool {
        self.is_blank
    }

    /// Returns whether only whitespace followed the last call.
    pub(super) fn is_after_call(&self) -> bool {
        self.is_blank && self.after == After::Call
    }

    /// Returns whether only whitespace followed the start of the output or the end of reasoning.
    pub(super) fn is_start(&self) -> bool {
        self.is_blank && self.after != After::Call
    }

    pub(super) fn read(&mut self, c: char, text: &mut String) {
        let is_held = if self.is_blank {
            c.is_whitespace()
        } else {
            c == '\n'
        };
        if !is_held {
            self.is_blank = false;
            text.push_str(&self.held);
            self.held.clear();
            text.push(c);
            return;
        }
        let is_dropped = self.after == After::Reasoning && c == '\n';
        if !(is_dropped && self.is_blank && self.held.is_empty()) {
            self.held.push(c);
        }
        if self.held.len() > MAX_HELD_SPACES {
            self.is_blank = false;
            text.push_str(&self.held);
            self.held.clear();
        }
    }

    /// Drops the whitespace before a call or before reasoning.
    pub(super) fn drop_held(&mut self) {
        self.held.clear();
    }

    /// Drops the whitespace before an end tag, unless there is other text.
    pub(super) fn drop_blank(&mut self) {
        if self.is_blank {
            self.held.clear();
        }
    }

    /// Returns the whitespace that is emitted if the output ends here.
    pub(super) fn held(&self) -> &str {
        if self.is_blank && self.after == After::Call {
            ""
        } else {
            &self.held
        }
    }

    /// Takes the whitespace that is emitted at the end of the output.
    pub(super) fn finish(&mut self) -> String {
        let held = self.held().to_owned();
        self.held.clear();
        held
    }
}
