//! Counts of drafts over a scheduler's life, by their sources.

use crate::speculation::{DraftSource, RowDrafts};

const N_SOURCES: usize = DraftSource::ALL.len();

/// Drafts of decodes whose rows may have some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Rows of decodes, each of which gives one token in addition to its accepted drafts.
    pub verified: u64,
    /// Drafts that steps have computed, in the order of [`DraftSource::ALL`].
    pub drafted: [u64; N_SOURCES],
    /// Drafts that equalled the output's tokens, in the same order.
    pub accepted: [u64; N_SOURCES],
}

impl DraftCounts {
    /// Counts a row of a decode.
    pub(super) fn add(&mut self, drafts: RowDrafts, accepted: usize) {
        self.verified += 1;
        let source = DraftSource::ALL
            .iter()
            .position(|source| *source == drafts.source);
        if let Some(at) = source {
            self.drafted[at] += u64::from(drafts.n_tokens);
            self.accepted[at] += (accepted as u64).min(u64::from(drafts.n_tokens));
        }
    }

    /// What was counted after `before`.
    pub fn since(&self, before: &Self) -> Self {
        let difference = |now: &[u64; N_SOURCES], before: &[u64; N_SOURCES]| {
            std::array::from_fn(|at| now[at].saturating_sub(before[at]))
        };
        Self {
            verified: self.verified.saturating_sub(before.verified),
            drafted: difference(&self.drafted, &before.drafted),
            accepted: difference(&self.accepted, &before.accepted),
        }
    }

    /// Tokens of a verified row, including the one that needs no draft; 0 without rows.
    pub fn accept_length(&self) -> f64 {
        let accepted: u64 = self.accepted.iter().sum();
        ratio(self.verified + accepted, self.verified)
    }

    /// The accepted part of the drafts; 0 without drafts.
    pub fn accept_rate(&self) -> f64 {
        ratio(self.accepted.iter().sum(), self.drafted.iter().sum())
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole > 0 {
        part as f64 / whole as f64
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_are_counted_by_their_source() {
        let mut counts = DraftCounts::default();
        assert_eq!((counts.accept_length(), counts.accept_rate()), (0.0, 0.0));
        let drafts = |n_tokens, source| RowDrafts { n_tokens, source };
        counts.add(drafts(0, DraftSource::OwnText), 0);
        let before = counts;
        counts.add(drafts(7, DraftSource::Prediction), 5);
        counts.add(drafts(3, DraftSource::Grammar), 0);
        let expected = DraftCounts {
            verified: 3,
            drafted: [0, 7, 3],
            accepted: [0, 5, 0],
        };
        assert_eq!(counts, expected);
        assert_eq!(counts.since(&before).verified, 2);
        assert_eq!(counts.since(&before).drafted, [0, 7, 3]);
        assert_eq!(counts.accept_rate(), 0.5);
        assert_eq!(counts.accept_length(), 8.0 / 3.0);
    }
}
