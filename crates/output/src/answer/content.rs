//! Searches for stop strings in an answer's text.

use std::sync::Arc;

use crate::detok::{StopMatcher, StopTable};

#[derive(Debug)]
pub(super) struct ContentStops {
    table: Arc<StopTable>,
    matcher: StopMatcher,
    held: String,
    keeps_stop: bool,
    /// A copy of `matcher` that has also read the engine's held whitespace, and the length of this whitespace in bytes.
    probe: Option<(StopMatcher, usize)>,
}

impl ContentStops {
    pub(super) fn new(table: Arc<StopTable>, keeps_stop: bool) -> Self {
        Self {
            matcher: StopMatcher::new(table.clone()),
            table,
            held: String::new(),
            keeps_stop,
            probe: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns whether a stop string ends in `more`, the whitespace that the engine holds after all text so far. If no
    /// text was pushed since the last call, `more` must begin with the last call's `more`.
    pub(super) fn end_in(&mut self, more: &str) -> bool {
        if more.is_empty() {
            self.probe = None;
            return false;
        }
        self.probe = self.probe.take().filter(|(_, read)| *read <= more.len());
        let (probe, read) = (self.probe).get_or_insert_with(|| (self.matcher.clone(), 0));
        let new = &more[*read..];
        *read = more.len();
        probe.find(new).is_some()
    }

    pub(super) fn push(&mut self, text: &str) -> (String, Option<String>) {
        self.probe = None;
        let before = self.held.len();
        self.held.push_str(text);
        let Some(found) = self.matcher.find(text) else {
            let end = self.held.len() - self.matcher.partial_bytes();
            let held = self.held.split_off(end);
            return (std::mem::replace(&mut self.held, held), None);
        };
        let matched = self.matcher.string(found.index).to_owned();
        let end = before + found.end;
        self.held.truncate(if self.keeps_stop {
            end
        } else {
            end - matched.len()
        });
        (std::mem::take(&mut self.held), Some(matched))
    }

    pub(super) fn flush(&mut self) -> String {
        self.probe = None;
        self.matcher = StopMatcher::new(self.table.clone());
        std::mem::take(&mut self.held)
    }
}
