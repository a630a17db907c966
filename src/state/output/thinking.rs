//! The newlines at both ends of reasoning, which are dropped.

/// One stretch of reasoning.
#[derive(Debug)]
pub(super) struct Thinking {
    /// Newlines that have not gone out.
    held_newlines: usize,
    /// Nothing but newlines came so far.
    is_blank: bool,
}

impl Thinking {
    pub(super) fn new() -> Self {
        Self {
            held_newlines: 0,
            is_blank: true,
        }
    }

    pub(super) fn is_blank(&self) -> bool {
        self.is_blank
    }

    /// Reads a character and appends to `text` what goes out.
    pub(super) fn read(&mut self, c: char, text: &mut String) {
        match c {
            '\n' if self.is_blank => {}
            '\n' => self.held_newlines += 1,
            _ => {
                self.is_blank = false;
                text.extend(std::iter::repeat_n('\n', self.held_newlines));
                self.held_newlines = 0;
                text.push(c);
            }
        }
    }
}
