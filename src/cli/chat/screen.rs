//! Displays a conversation: answers on stdout, reasoning dimmed and only on a terminal, notes on stderr.

use std::io::{self, IsTerminal, Stdout, Write};

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

pub struct Screen {
    out: Stdout,
    is_terminal: bool,
    has_colours: bool,
    is_thinking: bool,
    is_closed: bool,
}

impl Screen {
    pub fn new() -> Self {
        let out = io::stdout();
        let is_terminal = out.is_terminal();
        let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            out,
            is_terminal,
            has_colours: is_terminal && !forbidden,
            is_thinking: false,
            is_closed: false,
        }
    }

    /// True once stdout is closed, for example by the reader of a pipe.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub fn text(&mut self, text: &str) {
        self.end_thought();
        self.put_model_text(text);
    }

    /// Shows reasoning on a terminal only: in a file, it would look like a part of the answer.
    pub fn thought(&mut self, text: &str) {
        if !self.is_terminal {
            return;
        }
        if !self.is_thinking && self.has_colours {
            self.put(DIM);
        }
        self.is_thinking = true;
        self.put_model_text(text);
    }

    pub fn end_answer(&mut self) {
        self.end_thought();
        self.put("\n");
    }

    pub fn note(&mut self, text: &str) {
        let mut stderr = io::stderr();
        let _ = if self.has_colours && stderr.is_terminal() {
            writeln!(stderr, "{DIM}[{text}]{PLAIN}")
        } else {
            writeln!(stderr, "[{text}]")
        };
    }

    fn end_thought(&mut self) {
        if !std::mem::take(&mut self.is_thinking) {
            return;
        }
        if self.has_colours {
            self.put(PLAIN);
        }
        self.put("\n");
    }

    /// Prints a model's text, without control characters on a terminal.
    fn put_model_text(&mut self, text: &str) {
        if self.is_terminal {
            self.put(&without_controls(text))
        } else {
            self.put(text)
        }
    }

    fn put(&mut self, text: &str) {
        let put = self.out.write_all(text.as_bytes());
        let is_closed = put.and_then(|()| self.out.flush()).is_err();
        self.is_closed |= is_closed;
    }
}

fn without_controls(text: &str) -> String {
    let is_shown = |c: &char| !c.is_control() || ['\n', '\t'].contains(c);
    text.chars().filter(is_shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_text_has_no_control_characters() {
        let text = "a\x1b[2Jb\r\u{9b}31m\x07\tc\né\u{7f}";
        assert_eq!(without_controls(text), "a[2Jb31m\tc\né");
    }
}
