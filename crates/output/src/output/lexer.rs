//! Splits streamed input into characters and tags. The beginning of a tag waits for more input.

use std::collections::VecDeque;
use std::sync::Arc;

use super::format::OutputFormats;
use super::markers::Markers;
use super::syntax::{Tag, TagSet};

/// The smallest unit of the input.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    Char(char),
    Token(u8),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Lexeme {
    Char(char),
    Tag(FoundTag),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FoundTag {
    pub(super) tag: Tag,
    /// The tag as text, for places where tags have no meaning.
    pub(super) text: &'static str,
    pub(super) is_token: bool,
}

/// Whether more input can come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    Open,
    Ended,
}

/// Unread input, and the tags to recognise in its text.
#[derive(Debug)]
pub(super) struct Lexer {
    markers: Arc<Markers>,
    /// Tags that are not tokens, each with its first character.
    text_tags: Vec<(char, Tag, &'static str)>,
    items: VecDeque<Item>,
}

/// The comparison of a tag with the next items.
enum Match {
    /// Equal to this many items.
    Whole(usize),
    /// The items end before the tag does.
    Partial,
    No,
}

impl Lexer {
    pub(super) fn new(formats: OutputFormats, markers: Arc<Markers>) -> Self {
        let text_tags = formats.tags().filter(|(_, text)| !markers.has(text));
        let text_tags = text_tags.filter_map(|(tag, text)| Some((text.chars().next()?, tag, text)));
        Self {
            text_tags: text_tags.collect(),
            items: VecDeque::new(),
            markers,
        }
    }

    pub(super) fn push_char(&mut self, c: char) {
        self.items.push_back(Item::Char(c));
    }

    pub(super) fn push_token(&mut self, token: u32) {
        let index = self.markers.index_of(token);
        let index = index.and_then(|index| u8::try_from(index).ok());
        self.items.extend(index.map(Item::Token));
    }

    pub(super) fn tag_of(&self, token: u32) -> Option<Tag> {
        let index = self.markers.index_of(token)?;
        self.markers.at(index).map(|marker| marker.tag)
    }

    /// Puts items back before the unread ones.
    pub(super) fn put_back(&mut self, items: &[Item]) {
        for &item in items.iter().rev() {
            self.items.push_front(item);
        }
    }

    pub(super) fn clear(&mut self) {
        self.items.clear();
    }

    /// Returns the next lexeme and its number of items; `None` if it depends on more input.
    pub(super) fn peek(&self, enabled: TagSet, input: Input) -> Option<(Lexeme, usize)> {
        let first = match *self.items.front()? {
            Item::Token(index) => return Some((self.token(index), 1)),
            Item::Char(c) => c,
        };
        for &(start, tag, text) in &self.text_tags {
            if start != first || !enabled.has(tag) {
                continue;
            }
            let is_token = false;
            let found = FoundTag {
                tag,
                text,
                is_token,
            };
            match self.compare(text) {
                Match::Whole(n_items) => return Some((Lexeme::Tag(found), n_items)),
                Match::Partial if input == Input::Open => return None,
                Match::Partial | Match::No => {}
            }
        }
        Some((Lexeme::Char(first), 1))
    }

    pub(super) fn take(&mut self, n_items: usize, to: impl FnMut(Item)) {
        let n_items = n_items.min(self.items.len());
        self.items.drain(..n_items).for_each(to);
    }

    pub(super) fn append_text(&self, item: Item, to: &mut String) {
        match item {
            Item::Char(c) => to.push(c),
            Item::Token(index) => to.push_str(self.visible_text(index)),
        }
    }

    fn token(&self, index: u8) -> Lexeme {
        match self.markers.at(index.into()) {
            Some(marker) => Lexeme::Tag(FoundTag {
                tag: marker.tag,
                text: marker.visible_text(),
                is_token: true,
            }),
            None => Lexeme::Char(char::REPLACEMENT_CHARACTER),
        }
    }

    fn visible_text(&self, index: u8) -> &'static str {
        let marker = self.markers.at(index.into());
        marker.map_or("", |marker| marker.visible_text())
    }

    fn compare(&self, text: &str) -> Match {
        let mut items = self.items.iter();
        let mut n_items = 0;
        for expected in text.chars() {
            n_items += 1;
            match items.next() {
                None => return Match::Partial,
                Some(Item::Char(c)) if *c == expected => {}
                Some(_) => return Match::No,
            }
        }
        Match::Whole(n_items)
    }
}
