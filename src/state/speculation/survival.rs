//! How likely drafts are accepted, from counts of those that were.
//!
//! The counts belong to a source and to the length of the match that the draft came from. The positions of drafts share
//! them: counts by position would stay at their first guess where no drafts were tried. They are halved as they age.

use super::{DraftSource, Proposal};

/// The longest matches of the buckets but the last.
const MATCH_BOUNDS: [usize; 7] = [1, 2, 3, 4, 8, 16, 32];
/// The first guess of each bucket, which has the weight of [`PRIOR_TRIALS`].
const PRIORS: [f32; 8] = [0.6, 0.35, 0.45, 0.55, 0.7, 0.8, 0.9, 0.95];
const PRIOR_TRIALS: f32 = 2.0;
/// Trials after which a bucket's counts are halved.
const MAX_TRIALS: f32 = 128.0;
/// Predicted drafts of a row with which its first ones are mixed, and after which its counts are halved.
const ROW_TRIALS: f32 = 2.0;
const MAX_ROW_TRIALS: f32 = 24.0;
/// No draft is certain.
const MAX_PROBABILITY: f32 = 0.99;

/// The probabilities of all sources and lengths.
#[derive(Clone, Debug, Default)]
pub struct Survival {
    counts: [[Count; PRIORS.len()]; DraftSource::ALL.len()],
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    trials: f32,
    accepted: f32,
}

impl Survival {
    /// The probability that a draft of a proposal is accepted if those before it are.
    pub fn of(&self, proposal: &Proposal) -> f32 {
        let (source, bucket) = place(proposal);
        let count = self.counts[source][bucket];
        let accepted = count.accepted + PRIORS[bucket] * PRIOR_TRIALS;
        (accepted / (count.trials + PRIOR_TRIALS)).min(MAX_PROBABILITY)
    }

    /// Counts the drafts that a step has computed. The first rejected one ends the trials. Each counts `weight` times.
    pub fn note(&mut self, proposal: &Proposal, drafted: usize, accepted: usize, weight: f32) {
        let accepted = accepted.min(drafted);
        let trials = accepted + usize::from(accepted < drafted);
        let (source, bucket) = place(proposal);
        let count = &mut self.counts[source][bucket];
        count.trials += trials as f32 * weight;
        count.accepted += accepted as f32 * weight;
        if count.trials >= MAX_TRIALS {
            count.trials /= 2.0;
            count.accepted /= 2.0;
        }
    }
}

/// A row's accepted drafts, compared with the counts of all rows: a text that repeats itself badly among good ones
/// loses its drafts after a few steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowYield {
    predicted: f32,
    accepted: f32,
}

impl RowYield {
    /// The factor of the row's probabilities.
    pub fn factor(&self) -> f32 {
        let factor = (self.accepted + ROW_TRIALS) / (self.predicted + ROW_TRIALS);
        factor.min(1.0)
    }

    /// Counts the drafts of a step, each of which was accepted with this probability if those before it were.
    pub fn note(&mut self, probability: f32, (drafted, accepted): (usize, usize), weight: f32) {
        let accepted = accepted.min(drafted);
        let trials = accepted + usize::from(accepted < drafted);
        self.predicted += trials as f32 * probability * weight;
        self.accepted += accepted as f32 * weight;
        if self.predicted >= MAX_ROW_TRIALS {
            self.predicted /= 2.0;
            self.accepted /= 2.0;
        }
    }
}

/// The indices of a proposal's source and bucket.
fn place(proposal: &Proposal) -> (usize, usize) {
    let source = match proposal.source {
        DraftSource::OwnText => 0,
        DraftSource::Prediction => 1,
        DraftSource::Grammar => 2,
    };
    let bucket = MATCH_BOUNDS.partition_point(|bound| *bound < proposal.matched);
    (source, bucket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposal(matched: usize) -> Proposal {
        Proposal {
            n_tokens: 7,
            source: DraftSource::OwnText,
            matched,
        }
    }

    #[test]
    fn a_row_whose_drafts_fail_loses_its_probability_and_gets_it_back() {
        let mut row = RowYield::default();
        assert_eq!(row.factor(), 1.0);
        for _ in 0..40 {
            row.note(0.9, (7, 0), 1.0);
        }
        assert!(row.factor() < 0.15, "{row:?}");
        for _ in 0..4 {
            row.note(0.9, (1, 1), 4.0);
        }
        assert!(row.factor() > 0.5, "{row:?}");
    }

    #[test]
    fn longer_matches_begin_with_higher_probabilities() {
        let survival = Survival::default();
        let lengths = [2, 3, 4, 8, 16, 32, 64];
        let found = lengths.map(|matched| survival.of(&proposal(matched)));
        assert!(found.is_sorted(), "{found:?}");
        assert_eq!(survival.of(&proposal(5)), survival.of(&proposal(8)));
    }

    #[test]
    fn probabilities_follow_the_counts_and_forget() {
        let mut survival = Survival::default();
        for _ in 0..1000 {
            survival.note(&proposal(3), 7, 3, 1.0);
        }
        let found = survival.of(&proposal(3));
        assert!((found - 0.75).abs() < 0.02, "{found}");
        assert!(survival.of(&proposal(4)) < 0.6);
        for _ in 0..1000 {
            survival.note(&proposal(3), 7, 0, 1.0);
        }
        assert!(survival.of(&proposal(3)) < 0.03);
        survival.note(&proposal(3), 0, 0, 1.0);
        for _ in 0..60 {
            survival.note(&proposal(3), 7, 7, 1.0);
        }
        let found = survival.of(&proposal(3));
        assert!(found > 0.9 && found <= MAX_PROBABILITY, "{found}");
    }
}
