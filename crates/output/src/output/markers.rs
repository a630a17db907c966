//! The markers of output formats that are single tokens of the vocabulary.

use super::format::OutputFormats;
use super::syntax::Tag;

/// The markers of the output formats that are single tokens. Other markers are recognised in the text.
#[derive(Clone, Debug, Default)]
pub struct Markers {
    tokens: Vec<MarkerToken>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct MarkerToken {
    id: u32,
    pub(super) tag: Tag,
    text: &'static str,
    is_hidden: bool,
}

impl Markers {
    /// Looks up the formats' markers with `find`, which returns the id of an added token by its text.
    pub fn new(formats: OutputFormats, find: impl Fn(&str) -> Option<u32>) -> Self {
        let token = |(tag, text)| {
            let id = find(text)?;
            Some(MarkerToken {
                id,
                tag,
                text,
                is_hidden: false,
            })
        };
        Self {
            tokens: formats.tags().filter_map(token).collect(),
        }
    }

    /// Hides the tokens for which `is_hidden` is true, as requests that skip special tokens do: where these tokens are
    /// not recognised, they have no text.
    #[must_use]
    pub fn hiding(mut self, is_hidden: impl Fn(u32) -> bool) -> Self {
        for token in &mut self.tokens {
            token.is_hidden = is_hidden(token.id);
        }
        self
    }

    /// Returns whether the engine takes the token by id instead of as text.
    pub fn is_marker(&self, token: u32) -> bool {
        self.tokens.iter().any(|marker| marker.id == token)
    }

    pub(super) fn index_of(&self, token: u32) -> Option<usize> {
        self.tokens.iter().position(|marker| marker.id == token)
    }

    pub(super) fn at(&self, index: usize) -> Option<MarkerToken> {
        self.tokens.get(index).copied()
    }

    pub(super) fn has(&self, text: &str) -> bool {
        self.tokens.iter().any(|marker| marker.text == text)
    }
}

impl MarkerToken {
    /// Returns the token's text for places where tokens have no meaning.
    pub(super) fn visible_text(self) -> &'static str {
        if self.is_hidden { "" } else { self.text }
    }
}
