//! Drops the newlines at both ends of reasoning, and a label before the reasoning.

#[derive(Debug)]
pub(super) struct Thinking {
    held_newlines: usize,
    /// Only newlines so far.
    is_blank: bool,
    /// The expected label, and the number of its bytes read so far; `None` after the label or other text.
    label: Option<(&'static str, usize)>,
}

impl Thinking {
    pub(super) fn new(label: &'static str) -> Self {
        Self {
            held_newlines: 0,
            is_blank: true,
            label: (!label.is_empty()).then_some((label, 0)),
        }
    }

    pub(super) fn is_blank(&self) -> bool {
        self.is_blank
    }

    pub(super) fn read(&mut self, c: char, text: &mut String) {
        let Some((label, n)) = self.label else {
            self.read_thought(c, text);
            return;
        };
        if label[n..].starts_with(c) {
            let n = n + c.len_utf8();
            self.label = (n < label.len()).then_some((label, n));
            return;
        }
        // The text only began like the label.
        self.label = None;
        label[..n].chars().for_each(|c| self.read_thought(c, text));
        self.read_thought(c, text);
    }

    fn read_thought(&mut self, c: char, text: &mut String) {
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
