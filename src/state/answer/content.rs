//! Stop strings in the text of an answer.

use std::sync::Arc;

use crate::state::detok::{StopMatcher, StopTable};

/// The search for stop strings in a text, and the end of that text that may be the start of one.
#[derive(Debug)]
pub(super) struct ContentStops {
    table: Arc<StopTable>,
    matcher: StopMatcher,
    held: String,
    keeps_stop: bool,
    /// The search as it goes on in whitespace that may still be dropped, and how many bytes of it were read.
    ahead: Option<(StopMatcher, usize)>,
}

impl ContentStops {
    pub(super) fn new(table: Arc<StopTable>, keeps_stop: bool) -> Self {
        Self {
            matcher: StopMatcher::new(table.clone()),
            table,
            held: String::new(),
            keeps_stop,
            ahead: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns whether a stop string ends in `more`, whitespace that is held after all text so far. Text that was held at the last
    /// call begins it, unless text has come since.
    pub(super) fn end_in(&mut self, more: &str) -> bool {
        if more.is_empty() {
            self.ahead = None;
            return false;
        }
        self.ahead = self.ahead.take().filter(|(_, read)| *read <= more.len());
        let (ahead, read) = (self.ahead).get_or_insert_with(|| (self.matcher.clone(), 0));
        let new = &more[*read..];
        *read = more.len();
        ahead.find(new).is_some()
    }

    /// Adds text. Returns what is final, and the stop string that ends it, if one does.
    pub(super) fn push(&mut self, text: &str) -> (String, Option<String>) {
        self.ahead = None;
        let before = self.held.len();
        self.held.push_str(text);
        let Some(found) = self.matcher.find(text) else {
            let end = self.held.len() - self.matcher.partial_bytes();
            let held = self.held.split_off(end);
            return (std::mem::replace(&mut self.held, held), None);
        };
        let matched = self.matcher.string(found.index).to_owned();
        let end = before + found.end;
        self.held.truncate(match self.keeps_stop {
            true => end,
            false => end - matched.len(),
        });
        (std::mem::take(&mut self.held), Some(matched))
    }

    /// Gives out what was held, and begins anew.
    pub(super) fn flush(&mut self) -> String {
        self.ahead = None;
        self.matcher = StopMatcher::new(self.table.clone());
        std::mem::take(&mut self.held)
    }
}
