//! Outputs that are given in advance, for measurements with random weights.
//!
//! Random weights cost what trained ones cost, but no draft guesses their outputs. An executor with a [`Teacher`]
//! computes and samples as always, then takes the next token of a given text instead of the sampled one (teacher
//! forcing), so drafts are right as often as in that text. Only `souffleur bench --taught` sets a teacher.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;

use souffleur_state::step::{RowResult, RowStart, RowWork, StepPlan};

/// Knows the output of each prompt, and counts the drafts that were right.
#[derive(Debug, Default)]
pub struct Teacher {
    outputs: FxHashMap<Arc<[u32]>, Arc<[u32]>>,
    /// Follows each output.
    eos_token_id: u32,
    rows: AtomicU64,
    drafted: AtomicU64,
    accepted: AtomicU64,
}

/// Rows of decodes that may have drafts, the drafts that they have computed, and those that equalled the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaughtCounts {
    pub rows: u64,
    pub drafted: u64,
    pub accepted: u64,
}

impl Teacher {
    /// A teacher of pairs of prompt and output.
    pub fn new(
        texts: impl IntoIterator<Item = (Arc<[u32]>, Arc<[u32]>)>,
        eos_token_id: u32,
    ) -> Self {
        Self {
            outputs: texts.into_iter().collect(),
            eos_token_id,
            ..Self::default()
        }
    }

    /// The rest of the output of a row that starts; `None` for an unknown prompt, whose output is sampled.
    pub fn lesson(&self, start: &RowStart) -> Option<Lesson> {
        let (prompt, output) = start.tokens.split_at(start.prompt_tokens as usize);
        Some(Lesson {
            output: self.outputs.get(prompt)?.clone(),
            next: output.len(),
            eos_token_id: self.eos_token_id,
        })
    }

    /// Counts the drafts of a step. `results` has one result for each row of the plan.
    pub fn note(&self, plan: &StepPlan, results: &[RowResult]) {
        let mut counts = TaughtCounts::default();
        for (row, result) in plan.rows.iter().zip(results) {
            // A row whose sequence had ended is skipped: it has no tokens.
            let ran = !result.tokens.is_empty();
            if ran && matches!(row.work, RowWork::Decode { room, .. } if room > 1) {
                counts.rows += 1;
                counts.drafted += u64::from(result.drafts.n_tokens);
                counts.accepted += (result.tokens.len() - 1) as u64;
            }
        }
        self.rows.fetch_add(counts.rows, Ordering::Relaxed);
        self.drafted.fetch_add(counts.drafted, Ordering::Relaxed);
        self.accepted.fetch_add(counts.accepted, Ordering::Relaxed);
    }

    /// The counts of all steps so far.
    pub fn counts(&self) -> TaughtCounts {
        TaughtCounts {
            rows: self.rows.load(Ordering::Relaxed),
            drafted: self.drafted.load(Ordering::Relaxed),
            accepted: self.accepted.load(Ordering::Relaxed),
        }
    }
}

impl TaughtCounts {
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            rows: self.rows - before.rows,
            drafted: self.drafted - before.drafted,
            accepted: self.accepted - before.accepted,
        }
    }
}

/// The output of one row, from its next token on.
#[derive(Clone, Debug)]
pub struct Lesson {
    output: Arc<[u32]>,
    next: usize,
    eos_token_id: u32,
}

impl Lesson {
    /// The token to record instead of the sampled one. Each call moves to the next token; after the output's end it is
    /// the end-of-text token.
    pub fn take(&mut self) -> u32 {
        let token = self.output.get(self.next);
        self.next += 1;
        token.copied().unwrap_or(self.eos_token_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use souffleur_base::ids::{RowId, SeqId, StepId};
    use souffleur_state::pool::pages::PageRun;
    use souffleur_state::speculation::{DraftSource, RowDrafts};
    use souffleur_state::step::{RowVerdict, StepRow};

    fn start(tokens: &[u32], prompt_tokens: u32) -> RowStart {
        RowStart {
            row: RowId::new(1),
            seq: SeqId::new(1),
            tokens: tokens.into(),
            prompt_tokens,
            sampling: Arc::default(),
            grammar: None,
            vectors: None,
            images: None,
            pooling: None,
            draft_texts: Default::default(),
            prefix: PageRun::empty(),
            state: None,
        }
    }

    fn row(work: RowWork) -> StepRow {
        StepRow {
            row: RowId::new(1),
            seq: SeqId::new(1),
            work,
            sample: true,
            logprobs: None,
            saves: Default::default(),
        }
    }

    fn result(tokens: &[u32], drafted: u32) -> RowResult {
        RowResult {
            seq: SeqId::new(1),
            tokens: tokens.iter().copied().collect(),
            accepted: tokens.len() as u32,
            logprobs: None,
            verdict: RowVerdict::Open,
            drafts: RowDrafts {
                n_tokens: drafted,
                source: DraftSource::OwnText,
            },
        }
    }

    #[test]
    fn a_row_is_taught_from_its_place_in_the_output_on() {
        let teacher = Teacher::new([([1, 2].into(), [5, 6, 7].into())], 9);
        let mut whole = teacher.lesson(&start(&[1, 2], 2)).expect("it is known");
        assert_eq!([0; 5].map(|_: u32| whole.take()), [5, 6, 7, 9, 9]);
        let mut resumed = teacher.lesson(&start(&[1, 2, 5, 6], 2)).expect("known");
        assert_eq!([resumed.take(), resumed.take()], [7, 9]);
        assert!(teacher.lesson(&start(&[1, 2, 5], 3)).is_none());
    }

    #[test]
    fn rows_that_are_skipped_or_have_no_room_for_drafts_are_not_counted() {
        let teacher = Teacher::new([], 0);
        let decode = |room| row(RowWork::Decode { position: 7, room });
        let plan = StepPlan {
            step: StepId::new(1),
            starts: Vec::new(),
            table: Vec::new(),
            rows: vec![
                decode(1),
                decode(4),
                row(RowWork::Prefill { positions: 0..3 }),
                decode(4),
            ],
            copies: None,
            vision: None,
        };
        let results = [
            result(&[1], 0),
            result(&[1, 2, 3], 3),
            result(&[4], 0),
            result(&[], 0),
        ];
        teacher.note(&plan, &results);
        let before = teacher.counts();
        let expected = TaughtCounts {
            rows: 1,
            drafted: 3,
            accepted: 2,
        };
        assert_eq!(before, expected);
        teacher.note(&plan, &results);
        assert_eq!(teacher.counts().since(before), expected);
    }
}
