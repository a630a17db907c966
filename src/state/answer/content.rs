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
}

impl ContentStops {
    pub(super) fn new(table: Arc<StopTable>, keeps_stop: bool) -> Self {
        Self {
            matcher: StopMatcher::new(table.clone()),
            table,
            held: String::new(),
            keeps_stop,
        }
    }

    /// Adds text. Returns what is final, and the stop string that ends it, if one does.
    pub(super) fn push(&mut self, text: &str) -> (String, Option<String>) {
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
        self.matcher = StopMatcher::new(self.table.clone());
        std::mem::take(&mut self.held)
    }
}
