//! Metrics of speculation, recorded by the Scheduler.

use std::cell::Cell;

use metrics::{Counter, Gauge, Label, counter, gauge};

use souffleur_state::scheduler::draft_counts::DraftCounts;
use souffleur_state::speculation::DraftSource;

/// The gauges are updated after this number of verified rows. SGLang updates them after 40 steps.
const WINDOW_ROWS: u64 = 64;

pub(super) struct DraftMetrics {
    verify_calls: Counter,
    /// In the order of [`DraftSource::ALL`].
    drafted: [Counter; DraftSource::ALL.len()],
    accepted: [Counter; DraftSource::ALL.len()],
    accept_length: Gauge,
    accept_rate: Gauge,
    room: Gauge,
    counted: Cell<DraftCounts>,
    /// The counts when the gauges were last updated.
    shown: Cell<DraftCounts>,
    last: Cell<DraftRates>,
}

/// The yield of the last drafts; zeros before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DraftRates {
    /// Tokens of a verified row, including the one that needs no draft.
    pub accept_length: f64,
    /// The accepted part of the drafts.
    pub accept_rate: f64,
}

impl DraftMetrics {
    pub(super) fn register(labels: &[Label]) -> Self {
        let by_source = |name: &'static str| {
            DraftSource::ALL.map(|source| counter!(name, "source" => name_of(source)))
        };
        Self {
            verify_calls: counter!("sglang:spec_verify_calls_total", labels.to_vec()),
            drafted: by_source("souffleur_spec_draft_tokens_total"),
            accepted: by_source("souffleur_spec_accepted_tokens_total"),
            accept_length: gauge!("sglang:spec_accept_length", labels.to_vec()),
            accept_rate: gauge!("sglang:spec_accept_rate", labels.to_vec()),
            room: gauge!("sglang:spec_num_draft_tokens", labels.to_vec()),
            counted: Cell::default(),
            shown: Cell::default(),
            last: Cell::default(),
        }
    }

    pub(super) fn record_room(&self, room: u32) {
        self.room.set(f64::from(room));
    }

    /// Shows no yield, for a replica that has stopped.
    pub(super) fn clear(&self) {
        self.accept_length.set(0.0);
        self.accept_rate.set(0.0);
        self.last.set(DraftRates::default());
    }

    /// Records the counts after a step.
    pub(super) fn record(&self, counts: &DraftCounts) {
        let before = self.counted.replace(*counts);
        if before == *counts {
            return;
        }
        let new = counts.since(&before);
        self.verify_calls.increment(new.verified);
        for (counters, tokens) in [(&self.drafted, new.drafted), (&self.accepted, new.accepted)] {
            for (counter, tokens) in counters.iter().zip(tokens) {
                counter.increment(tokens);
            }
        }
        if counts.since(&self.shown.get()).verified >= WINDOW_ROWS {
            self.show();
        }
    }

    /// Shows the yield of a last, short window.
    pub(super) fn went_idle(&self) {
        if self.counted.get().since(&self.shown.get()).verified > 0 {
            self.show();
        }
    }

    pub(super) fn last(&self) -> DraftRates {
        self.last.get()
    }

    fn show(&self) {
        let counts = self.counted.get();
        let window = counts.since(&self.shown.replace(counts));
        let rates = DraftRates {
            accept_length: window.accept_length(),
            accept_rate: window.accept_rate(),
        };
        self.accept_length.set(rates.accept_length);
        self.accept_rate.set(rates.accept_rate);
        self.last.set(rates);
    }
}

fn name_of(source: DraftSource) -> &'static str {
    match source {
        DraftSource::OwnText => "own_text",
        DraftSource::Prediction => "prediction",
        DraftSource::Grammar => "grammar",
    }
}
