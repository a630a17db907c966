//! Strings.

use crate::state::output::escape::{Dialect, Read, Unescape, write_json_char};

/// Reads a string after its opening quote and writes its inside as that of a JSON string.
#[derive(Debug)]
pub(super) struct TextReader {
    quote: char,
    at: At,
    /// The decoder of escapes; `None` in a raw string.
    unescape: Option<Unescape>,
    decoded: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// One quote was read.
    Opening,
    /// Two quotes were read: an empty string, or the start of three quotes.
    MaybeTriple,
    Single,
    /// After a backslash in a raw string that ends with one quote, or with three.
    RawSingle,
    RawTriple,
    /// In a string that ends with three quotes, of which so many were read.
    Triple(u8),
}

/// The place of a character in a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextStep {
    More,
    /// It was the last quote.
    End,
    /// The string, which is empty, ended before it.
    EndBefore,
}

impl TextReader {
    /// Begins a string with its quote and what stands before the quote (`r`, `f`, nothing).
    pub(super) fn new(quote: char, prefix: &str) -> Self {
        let is_raw = prefix.contains(['r', 'R']);
        Self {
            quote,
            at: At::Opening,
            unescape: (!is_raw).then(|| Unescape::new(Dialect::Python)),
            decoded: String::new(),
        }
    }

    /// Returns whether a word can stand before a quote.
    pub(super) fn is_prefix(word: &str) -> bool {
        let letters = "rRbBuUfF";
        (1..=2).contains(&word.len()) && word.chars().all(|c| letters.contains(c))
    }

    pub(super) fn read(&mut self, c: char, to: &mut String) -> TextStep {
        match self.at {
            At::Opening if c == self.quote => self.at = At::MaybeTriple,
            At::MaybeTriple if c == self.quote => self.at = At::Triple(0),
            At::MaybeTriple => return TextStep::EndBefore,
            At::Opening => {
                self.at = At::Single;
                return self.read(c, to);
            }
            At::RawSingle => self.raw(c, At::Single, to),
            At::RawTriple => self.raw(c, At::Triple(0), to),
            At::Single | At::Triple(_) => return self.read_inside(c, to),
        }
        TextStep::More
    }

    fn read_inside(&mut self, c: char, to: &mut String) -> TextStep {
        loop {
            let is_plain = self.unescape.as_ref().is_none_or(Unescape::is_plain);
            match self.at {
                _ if !is_plain || c != self.quote => {}
                At::Triple(quotes @ 0..=1) => {
                    self.at = At::Triple(quotes + 1);
                    return TextStep::More;
                }
                _ => {
                    self.finish(to);
                    return TextStep::End;
                }
            }
            if let At::Triple(quotes @ 1..) = self.at {
                self.at = At::Triple(0);
                for _ in 0..quotes {
                    self.take(self.quote, to);
                }
            }
            if self.take(c, to) == Read::Taken {
                return TextStep::More;
            }
        }
    }

    /// Reads a character of the inside.
    fn take(&mut self, c: char, to: &mut String) -> Read {
        let Some(unescape) = &mut self.unescape else {
            write_json_char(c, to);
            self.at = match (c, self.at) {
                ('\\', At::Single) => At::RawSingle,
                ('\\', At::Triple(_)) => At::RawTriple,
                (_, at) => at,
            };
            return Read::Taken;
        };
        let read = unescape.read(c, &mut self.decoded);
        self.flush(to);
        read
    }

    fn raw(&mut self, c: char, at: At, to: &mut String) {
        write_json_char(c, to);
        self.at = at;
    }

    fn finish(&mut self, to: &mut String) {
        if let Some(unescape) = &mut self.unescape {
            unescape.finish(&mut self.decoded);
        }
        self.flush(to);
    }

    fn flush(&mut self, to: &mut String) {
        self.decoded.chars().for_each(|c| write_json_char(c, to));
        self.decoded.clear();
    }
}
