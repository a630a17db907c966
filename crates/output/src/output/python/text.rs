//! Translates Python strings to JSON.

use crate::output::escape::{Dialect, Read, Unescape, write_json_char};

/// Parses a string after its opening quote, and writes it as the inside of a JSON string.
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
    /// After one quote.
    Opening,
    /// After two quotes: an empty string, or the start of three quotes.
    MaybeTriple,
    Single,
    /// After a backslash in a raw string with one quote at each end.
    RawSingle,
    /// After a backslash in a raw string with three quotes at each end.
    RawTriple,
    /// In a triple-quoted string, after this many closing quotes.
    Triple(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextStep {
    More,
    /// Consumed as the last quote.
    End,
    /// Not consumed: the empty string ended before it.
    EndBefore,
}

impl TextReader {
    pub(super) fn new(quote: char, prefix: &str) -> Self {
        let is_raw = prefix.contains(['r', 'R']);
        Self {
            quote,
            at: At::Opening,
            unescape: (!is_raw).then(|| Unescape::new(Dialect::Python)),
            decoded: String::new(),
        }
    }

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
            At::RawSingle => self.write_raw(c, At::Single, to),
            At::RawTriple => self.write_raw(c, At::Triple(0), to),
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
                    self.write(self.quote, to);
                }
            }
            if self.write(c, to) == Read::Taken {
                return TextStep::More;
            }
        }
    }

    fn write(&mut self, c: char, to: &mut String) -> Read {
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

    fn write_raw(&mut self, c: char, at: At, to: &mut String) {
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
