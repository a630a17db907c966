//! Skips rows whose output has ended, in steps that were planned before the end was known.
//!
//! A step is planned while the previous one runs, so it also decodes sequences that end in the previous one. The
//! executor records the starts and results of rows here, and skips ended rows before a step begins; the results of
//! skipped rows have no token and `accepted` 0.
//!
//! Ends by a token, a grammar or an error appear in the results; the Scheduler reports all other ends. Prefills are
//! never skipped, since the radix tree may already have their K/V. A GPU receives a step before the previous one has
//! ended, so a row on a GPU decodes once more after its last token.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use souffleur_base::ids::{RowId, SeqId};
use souffleur_state::sampling::SamplingParams;
use souffleur_state::step::{PIPELINE_DEPTH, RowResult, RowStart, RowVerdict, RowWork, StepPlan};

pub struct EndedRows {
    eos_token_ids: Arc<[u32]>,
    sequences: FxHashMap<SeqId, TrackedSequence>,
    rows: FxHashMap<RowId, SeqId>,
    /// Number of upcoming steps that may have been planned before the latest end of a sequence was known.
    n_suspect: usize,
}

struct TrackedSequence {
    row: RowId,
    sampling: Arc<SamplingParams>,
    has_ended: bool,
}

/// The indices and sequences of rows that were removed from a step, in ascending order.
#[derive(Debug, Default)]
pub struct SkippedRows(SmallVec<[(usize, SeqId); 4]>);

impl EndedRows {
    /// `eos_token_ids` end the output of each request that does not ignore EOS.
    pub fn new(eos_token_ids: Arc<[u32]>) -> Self {
        Self {
            eos_token_ids,
            sequences: FxHashMap::default(),
            rows: FxHashMap::default(),
            n_suspect: 0,
        }
    }

    pub fn start(&mut self, starts: &[RowStart]) {
        for start in starts {
            if let Some(before) = self.rows.insert(start.row, start.seq) {
                self.forget(before, start.row);
            }
            let tracked = TrackedSequence {
                row: start.row,
                sampling: start.sampling.clone(),
                has_ended: false,
            };
            self.sequences.insert(start.seq, tracked);
        }
    }

    /// Forgets the former sequence of a row, unless that sequence is in another row now.
    fn forget(&mut self, seq: SeqId, row: RowId) {
        if self.sequences.get(&seq).is_some_and(|had| had.row == row) {
            self.sequences.remove(&seq);
        }
    }

    /// Records that a sequence has ended for a reason that is not in a step's result: a stop string, a cancellation.
    pub fn end(&mut self, seq: SeqId) {
        if let Some(tracked) = self.sequences.get_mut(&seq) {
            tracked.has_ended = true;
            self.n_suspect = PIPELINE_DEPTH;
        }
    }

    /// Records the sequences that end with these results: by a token, by their grammar, or by an error.
    pub fn note(&mut self, results: &[RowResult]) {
        for result in results {
            if self.ends(result) {
                self.end(result.seq);
            }
        }
    }

    fn ends(&self, result: &RowResult) -> bool {
        if result.verdict != RowVerdict::Open {
            return true;
        }
        let Some(tracked) = self.sequences.get(&result.seq) else {
            return false;
        };
        let ends = |token: &u32| tracked.sampling.ends_at(*token, &self.eos_token_ids);
        result.tokens.iter().any(ends)
    }

    /// Removes decode rows of ended sequences from a step, but no prefill rows: their K/V may be cached already.
    pub fn skip(&mut self, plan: &mut StepPlan) -> SkippedRows {
        let mut skipped = SkippedRows::default();
        let Some(left) = self.n_suspect.checked_sub(1) else {
            return skipped;
        };
        self.n_suspect = left;
        let sequences = &self.sequences;
        let mut place = 0;
        plan.rows.retain(|row| {
            let is_decode = matches!(row.work, RowWork::Decode { .. });
            let tracked = sequences.get(&row.seq);
            let has_ended = tracked.is_some_and(|tracked| tracked.has_ended);
            if is_decode && has_ended {
                skipped.0.push((place, row.seq));
            }
            place += 1;
            !(is_decode && has_ended)
        });
        skipped
    }
}

impl SkippedRows {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Inserts results without tokens for the skipped rows.
    pub fn put_back(self, results: &mut Vec<RowResult>) {
        for (place, seq) in self.0 {
            let result = RowResult {
                seq,
                tokens: SmallVec::new(),
                accepted: 0,
                logprobs: None,
                verdict: RowVerdict::Open,
                drafts: Default::default(),
            };
            results.insert(place, result);
        }
    }
}
