//! Counts of drafts that a test's steps accepted and rejected, so that a test without any fails.

use souffleur_state::step::{RowResult, RowWork};

/// Positions of drafts that are counted: requests have at most eight query tokens.
const MAX_DRAFTS: usize = 7;

#[derive(Clone, Copy, Debug, Default)]
pub struct DraftsSeen {
    /// By position: the first draft comes after the last sampled token.
    pub accepted: [usize; MAX_DRAFTS],
    pub rejected: [usize; MAX_DRAFTS],
    /// All sampled tokens, also those of prefills.
    pub sampled: usize,
}

impl DraftsSeen {
    /// Records the result of a row that an executor has computed.
    pub fn take(&mut self, work: &RowWork, result: &RowResult) {
        self.sampled += result.tokens.len();
        let RowWork::Decode { room, .. } = work else {
            return;
        };
        let n_drafts = result.drafts.n_tokens;
        assert!(n_drafts < *room, "{n_drafts} drafts in a room for {room}");
        let n_accepted = result.accepted as usize - 1;
        assert_eq!(n_accepted + 1, result.tokens.len());
        for count in &mut self.accepted[..n_accepted] {
            *count += 1;
        }
        if n_accepted < n_drafts as usize {
            self.rejected[n_accepted] += 1;
        }
    }

    pub fn add(&mut self, other: &Self) {
        let all = self.accepted.iter_mut().chain(&mut self.rejected);
        for (sum, count) in all.zip(other.accepted.iter().chain(&other.rejected)) {
            *sum += count;
        }
        self.sampled += other.sampled;
    }

    /// Asserts that a draft was accepted and one rejected at each position.
    #[track_caller]
    pub fn assert_complete(&self) {
        let mut counts = self.accepted.iter().chain(&self.rejected);
        assert!(counts.all(|count| *count > 0), "{self:?}");
    }
}
