//! Metrics of the message log.

use metrics::{Counter, counter};

use super::DeathMetrics;

/// The writer's name in the death metric.
const WRITER: &str = "recorder";
const ERRORS: &str = "souffleur_record_errors_total";

pub(super) const COUNTERS: [(&str, &str); 1] =
    [(ERRORS, "Disk errors that ended the message log.")];

pub struct RecordMetrics {
    deaths: DeathMetrics,
    errors: Counter,
}

impl RecordMetrics {
    pub fn register() -> Self {
        Self {
            deaths: DeathMetrics::register(&[WRITER]),
            errors: counter!(ERRORS),
        }
    }

    /// Counts a panic of the writer.
    pub fn died(&self) {
        self.deaths.died(WRITER);
    }

    /// Counts an error of the disk, which ends the log.
    pub fn failed(&self) {
        self.errors.increment(1);
    }
}
