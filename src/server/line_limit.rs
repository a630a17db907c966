//! Ends an output at the end of a line, as llama.cpp's `t_max_predict_ms` and `n_indent` do: at the first newline after
//! some time, or before a line that is indented less than a given width.
//!
//! The engine knows no lines. So the server looks for the place in the text that arrives, cuts it there, and drops the
//! engine's request, which cancels it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use souffleur_request::{Delta, Event, FinishReason, Finished, Timings};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LineLimit {
    /// Counts from the first token on.
    pub(super) after: Option<Duration>,
    /// Spaces and tabs that each line but the first must begin with; an empty line has none.
    pub(super) indent: usize,
}

/// A limit, and the state of one output.
pub(super) struct LineEnd {
    limit: LineLimit,
    opened: Instant,
    first_token: Option<Instant>,
    /// Spaces and tabs so far at the beginning of the current line; `None` in the first line, and after other
    /// characters.
    indent: Option<usize>,
}

impl LineLimit {
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl LineEnd {
    pub(super) fn new(limit: LineLimit, opened: Instant) -> Self {
        Self {
            limit,
            opened,
            first_token: None,
            indent: None,
        }
    }

    /// Turns the event with the end of the last line into the terminal event.
    pub(super) fn apply(&mut self, event: Event, now: Instant) -> Event {
        match event {
            Event::Delta(mut delta) => {
                if !delta.tokens.is_empty() {
                    self.first_token.get_or_insert(now);
                }
                let Some(kept) = self.end_in(&delta.text, now) else {
                    return Event::Delta(delta);
                };
                delta.text.truncate(kept);
                Event::Finished(Box::new(self.finished(delta, now)))
            }
            Event::Finished(mut finished) => {
                if let Some(kept) = self.end_in(&finished.delta.text, now) {
                    finished.delta.text.truncate(kept);
                    finished.reason = length_of(&finished.delta);
                }
                Event::Finished(finished)
            }
            other => other,
        }
    }

    /// The number of bytes of new text that belong to the output; `None` if it does not end in this text.
    fn end_in(&mut self, text: &str, now: Instant) -> Option<usize> {
        let is_late = match (self.limit.after, self.first_token) {
            (Some(after), Some(first)) => now.saturating_duration_since(first) > after,
            _ => false,
        };
        for (at, character) in text.char_indices() {
            match (character, self.indent) {
                (' ' | '\t', Some(width)) => self.indent = Some(width + 1),
                (_, Some(width)) if width < self.limit.indent => return Some(at),
                ('\n', _) if is_late => return Some(at + 1),
                ('\n', _) => self.indent = Some(0),
                _ => self.indent = None,
            }
        }
        None
    }

    fn finished(&self, delta: Delta, now: Instant) -> Finished {
        Finished {
            reason: length_of(&delta),
            delta,
            e2e_latency_s: now.saturating_duration_since(self.opened).as_secs_f64(),
            timings: Some(Timings {
                queued: self.opened,
                admitted: None,
                first_token: self.first_token,
                ended: now,
            }),
            prompt: Arc::default(),
            embedding: None,
            accept_histogram: Arc::default(),
        }
    }
}

fn length_of(delta: &Delta) -> FinishReason {
    FinishReason::Length {
        max_new_tokens: delta.usage.completion_tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(text: &str) -> Event {
        Event::Delta(Delta {
            text: text.to_owned(),
            tokens: vec![7],
            ..Delta::default()
        })
    }

    /// The text of an output that arrives in `parts`, one of them each second, and whether it was ended.
    fn output(limit: LineLimit, parts: &[&str]) -> (String, bool) {
        let opened = Instant::now();
        let mut end = LineEnd::new(limit, opened);
        let mut text = String::new();
        for (second, part) in (0..).zip(parts) {
            match end.apply(delta(part), opened + Duration::from_secs(second)) {
                Event::Delta(delta) => text.push_str(&delta.text),
                Event::Finished(finished) => return (text + &finished.delta.text, true),
                other => panic!("{other:?}"),
            }
        }
        (text, false)
    }

    #[test]
    fn the_first_newline_after_the_time_ends_the_output() {
        let limit = |seconds| LineLimit {
            after: Some(Duration::from_secs(seconds)),
            indent: 0,
        };
        let parts = ["a\n", "b\n", "c", "d\ne\n", "f"];
        assert_eq!(output(limit(2), &parts), ("a\nb\ncd\n".to_owned(), true));
        assert_eq!(output(limit(1), &parts[..3]), ("a\nb\nc".to_owned(), false));
        assert_eq!(output(limit(9), &parts), (parts.concat(), false));
    }

    #[test]
    fn a_line_of_less_indentation_ends_the_output() {
        let limit = |indent| LineLimit {
            after: None,
            indent,
        };
        let parts = ["a\n ", "\tb", "\n  c d\n", " e"];
        assert_eq!(
            output(limit(2), &parts),
            ("a\n \tb\n  c d\n ".to_owned(), true)
        );
        assert_eq!(output(limit(1), &parts), (parts.concat(), false));
        assert_eq!(output(limit(1), &["a\n\n b"]), ("a\n".to_owned(), true));
        assert_eq!(output(limit(0), &["a\n\nb"]), ("a\n\nb".to_owned(), false));
        assert_eq!(
            output(limit(4), &["a b\n    c"]),
            ("a b\n    c".to_owned(), false)
        );
    }

    #[test]
    fn the_last_event_is_cut_too() {
        let now = Instant::now();
        let mut end = LineEnd::new(
            LineLimit {
                after: None,
                indent: 1,
            },
            now,
        );
        let Event::Delta(last) = delta("a\nb") else {
            panic!("a delta")
        };
        let mut finished = end.finished(last, now);
        finished.reason = FinishReason::StopToken(2);
        match end.apply(Event::Finished(Box::new(finished)), now) {
            Event::Finished(finished) => {
                assert_eq!(finished.delta.text, "a\n");
                assert_eq!(finished.reason.as_str(), "length");
            }
            other => panic!("{other:?}"),
        }
    }
}
