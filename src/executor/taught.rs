//! Outputs that are given in advance, for measurements with random weights.
//!
//! Random weights cost what trained ones cost, but no draft guesses their outputs. An executor with a [`Teacher`]
//! computes and samples as always, then takes the next token of a given text instead of the sampled one (teacher
//! forcing), so drafts are right as often as in that text. Only `souffleur bench --taught` sets a teacher.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;

use souffleur_state::speculation::MAX_ROOM;
use souffleur_state::step::{RowResult, RowStart, RowWork, StepPlan};

/// Knows the output of each prompt, and counts the drafts that were right.
#[derive(Debug, Default)]
pub struct Teacher {
    outputs: FxHashMap<Arc<[u32]>, Arc<[u32]>>,
    /// Follows each output.
    eos_token_id: u32,
    decodes: DecodeTable,
}

/// Numbers of decodes by their drafts and accepted drafts, both below [`MAX_ROOM`].
#[derive(Debug)]
struct DecodeTable(Box<[AtomicU64]>);

/// Decodes of rows that may have drafts, with or without drafts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaughtCounts {
    /// How many decodes have computed this number of drafts, of which this number equalled the output. No count is 0.
    pub decodes: BTreeMap<(u32, u32), u64>,
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
        for (row, result) in plan.rows.iter().zip(results) {
            // A row whose sequence had ended is skipped: it has no tokens.
            let ran = !result.tokens.is_empty();
            if ran && matches!(row.work, RowWork::Decode { room, .. } if room > 1) {
                let accepted = result.tokens.len() - 1;
                self.decodes.note(result.drafts.n_tokens as usize, accepted);
            }
        }
    }

    /// The counts of all steps so far.
    pub fn counts(&self) -> TaughtCounts {
        TaughtCounts {
            decodes: self.decodes.counts(),
        }
    }
}

impl DecodeTable {
    const WIDTH: usize = MAX_ROOM as usize;

    fn note(&self, drafts: usize, accepted: usize) {
        // No row has more drafts than the table has places.
        if let Some(count) = self.0.get(drafts * Self::WIDTH + accepted) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counts(&self) -> BTreeMap<(u32, u32), u64> {
        let counts = self.0.iter().enumerate().map(|(place, count)| {
            let (drafts, accepted) = (place / Self::WIDTH, place % Self::WIDTH);
            let n_decodes = count.load(Ordering::Relaxed);
            ((drafts as u32, accepted as u32), n_decodes)
        });
        counts.filter(|(_, n_decodes)| *n_decodes > 0).collect()
    }
}

impl Default for DecodeTable {
    fn default() -> Self {
        let n_places = Self::WIDTH * Self::WIDTH;
        Self((0..n_places).map(|_| AtomicU64::new(0)).collect())
    }
}

impl TaughtCounts {
    /// The number of decodes: one for each row and step.
    pub fn rows(&self) -> u64 {
        self.decodes.values().sum()
    }

    /// Drafts of all decodes.
    pub fn drafted(&self) -> u64 {
        let decodes = self.decodes.iter();
        decodes.map(|((drafts, _), n)| u64::from(*drafts) * n).sum()
    }

    /// Drafts of all decodes that equalled the output.
    pub fn accepted(&self) -> u64 {
        let decodes = self.decodes.iter();
        decodes
            .map(|((_, accepted), n)| u64::from(*accepted) * n)
            .sum()
    }

    /// Adds the counts of other decodes.
    pub fn add(&mut self, other: &Self) {
        for (decode, n) in &other.decodes {
            *self.decodes.entry(*decode).or_default() += n;
        }
    }

    /// The counts without those of an earlier time.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let later = self.decodes.iter().map(|(decode, n)| {
            let n_before = before.decodes.get(decode).copied().unwrap_or(0);
            (*decode, n - n_before)
        });
        Self {
            decodes: later.filter(|(_, n)| *n > 0).collect(),
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
            decodes: BTreeMap::from([((3, 2), 1)]),
        };
        assert_eq!(before, expected);
        teacher.note(&plan, &results);
        assert_eq!(teacher.counts().since(&before), expected);
    }

    #[test]
    fn decodes_are_counted_by_their_drafts_and_the_accepted_ones() {
        let table = DecodeTable::default();
        let most = MAX_ROOM as usize - 1;
        for (drafts, accepted) in [(0, 0), (most, most), (7, 3), (0, 0)] {
            table.note(drafts, accepted);
        }
        let before = TaughtCounts {
            decodes: table.counts(),
        };
        let all = BTreeMap::from([((0, 0), 2), ((7, 3), 1), ((63, 63), 1)]);
        assert_eq!(before.decodes, all);
        assert_eq!(
            [before.rows(), before.drafted(), before.accepted()],
            [4, 70, 66]
        );
        table.note(7, 3);
        let later = TaughtCounts {
            decodes: table.counts(),
        };
        let mut since = later.since(&before);
        assert_eq!(since.decodes, BTreeMap::from([((7, 3), 1)]));
        since.add(&before);
        assert_eq!(since, later);
    }
}
