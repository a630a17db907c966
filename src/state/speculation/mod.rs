//! Speculation by drafts: cheap guesses of a row's next tokens, which one step verifies (prompt lookup decoding).
//!
//! A decode with `room` for `k` query tokens feeds the last sampled token and at most `k - 1` drafts. The step samples
//! at each position as plain decoding would, and accepts tokens as long as they equal the drafts, so the output does
//! not depend on the drafts.

mod controller;
mod costs;
mod match_finder;
mod proposer;
mod survival;

use std::sync::Arc;

pub use controller::{Candidate, Controller};
pub use match_finder::{MIN_MATCH, Match, MatchFinder};
pub use proposer::{TextLimits, TextProposer};
pub use survival::RowYield;

/// The most query tokens of a row in a step.
pub const MAX_ROOM: u32 = 64;

/// A text in which the tokens that follow a row's last tokens may be found, in addition to the row's prompt and output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftText {
    pub source: DraftSource,
    pub tokens: Arc<[u32]>,
}

/// Where drafts come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DraftSource {
    /// The row's prompt and output.
    #[default]
    OwnText,
    /// The `prediction` of the request.
    Prediction,
    /// Property names, enum values and tags that the row's grammar dictates.
    Grammar,
}

impl DraftSource {
    pub const ALL: [Self; 3] = [Self::OwnText, Self::Prediction, Self::Grammar];
}

/// Proposes the next tokens of one row.
///
/// Proposals cost time only: a wrong one changes no output.
pub trait Proposer: Send + Sync {
    /// Appends sampled tokens to the row's text.
    fn extend(&mut self, tokens: &[u32]);

    /// Appends at most `max` tokens to `drafts`, which may follow the row's text.
    fn propose(&mut self, max: usize, drafts: &mut Vec<u32>) -> Proposal;
}

/// The drafts that a [`Proposer`] has appended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proposal {
    pub n_tokens: usize,
    pub source: DraftSource,
    /// Number of the row's last tokens that precede the drafts in their source, too.
    pub matched: usize,
}

/// The drafts of a row in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowDrafts {
    /// Number of drafts that the step has computed, accepted or not.
    pub n_tokens: u32,
    pub source: DraftSource,
}
