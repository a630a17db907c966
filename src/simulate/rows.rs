//! The simulated executor's results for the rows of a step.

use rustc_hash::FxHashMap;
use smallvec::smallvec;

use super::trace::PROMPT_VOCAB;
use souffleur_base::ids::SeqId;
use souffleur_state::speculation::RowDrafts;
use souffleur_state::step::{RowResult, RowStart, RowVerdict, RowWork, StepPlan, StepRow};

/// 2^64 over the golden ratio: spreads consecutive numbers.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number of prefilled tokens, if the step has only prefills.
pub(super) fn prefill_only_tokens(plan: &StepPlan) -> Option<usize> {
    let tokens = plan.rows.iter().map(|row| match &row.work {
        RowWork::Prefill { positions } => Some(positions.len()),
        RowWork::Decode { .. } => None,
    });
    tokens.sum()
}

/// Drafts of simulated requests: each token of an output is guessed with the same probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedDrafts {
    /// The most query tokens of a row in a step: the last token and its drafts. At most
    /// [`MAX_ROOM`](souffleur_state::speculation::MAX_ROOM).
    pub room: u32,
    /// Share of the output's tokens that a draft guesses, from 0 to 1.
    pub accept_rate: f64,
    pub seed: u64,
}

impl SimulatedDrafts {
    /// Whether the draft of this output token is right: the same in each run.
    fn guesses(&self, seq: SeqId, index: u32) -> bool {
        let place = (seq.get() << 32) ^ u64::from(index);
        let seed = self.seed ^ place.wrapping_mul(MULTIPLIER);
        fastrand::Rng::with_seed(seed).f64() < self.accept_rate
    }
}

/// The simulated executor's rows: how far each output is.
#[derive(Debug, Default)]
pub(super) struct SimulatedRows {
    drafts: Option<SimulatedDrafts>,
    outputs: FxHashMap<SeqId, OutputProgress>,
}

#[derive(Clone, Copy, Debug)]
struct OutputProgress {
    tokens: u32,
    max_tokens: u32,
}

impl SimulatedRows {
    pub(super) fn new(drafts: Option<SimulatedDrafts>) -> Self {
        Self {
            drafts,
            outputs: FxHashMap::default(),
        }
    }

    /// The results of a step's rows, in the plan's order.
    pub(super) fn results(&mut self, plan: &StepPlan) -> Vec<RowResult> {
        if self.drafts.is_some() {
            self.start(&plan.starts);
        }
        plan.rows.iter().map(|row| self.result(row)).collect()
    }

    fn start(&mut self, starts: &[RowStart]) {
        let outputs = starts.iter().map(|start| {
            let progress = OutputProgress {
                tokens: start.tokens.len() as u32 - start.prompt_tokens,
                max_tokens: start.sampling.max_new_tokens,
            };
            (start.seq, progress)
        });
        self.outputs.extend(outputs);
    }

    /// The result of a row whose request continues, with tokens if the row samples.
    fn result(&mut self, row: &StepRow) -> RowResult {
        let (n_tokens, n_drafts) = match (&row.work, row.sample) {
            (_, false) => (0, 0),
            (RowWork::Prefill { .. }, true) => (1, 0),
            (RowWork::Decode { room, .. }, true) => self.decoded(row.seq, *room),
        };
        if let Some(progress) = self.outputs.get_mut(&row.seq) {
            progress.tokens += n_tokens;
            if progress.tokens >= progress.max_tokens {
                self.outputs.remove(&row.seq);
            }
        }
        RowResult {
            seq: row.seq,
            tokens: smallvec![output_token(row.seq); n_tokens as usize],
            accepted: match &row.work {
                RowWork::Prefill { positions } => positions.len() as u32,
                RowWork::Decode { .. } => n_tokens,
            },
            logprobs: None,
            verdict: RowVerdict::Open,
            drafts: RowDrafts {
                n_tokens: n_drafts,
                ..RowDrafts::default()
            },
        }
    }

    /// Tokens that a decode with this room accepts, at least one, and its drafts.
    fn decoded(&self, seq: SeqId, room: u32) -> (u32, u32) {
        let (Some(drafts), Some(progress)) = (&self.drafts, self.outputs.get(&seq)) else {
            return (1, 0);
        };
        let left = progress.max_tokens.saturating_sub(progress.tokens);
        let n_drafts = room.min(left).saturating_sub(1);
        let first = progress.tokens;
        let right = (first..first + n_drafts).take_while(|index| drafts.guesses(seq, *index));
        (1 + right.count() as u32, n_drafts)
    }
}

/// A token that occurs in no prompt and probably in no other output. No prompt of a trace repeats a simulated output.
fn output_token(seq: SeqId) -> u32 {
    PROMPT_VOCAB | (seq.get().wrapping_mul(MULTIPLIER) >> 33) as u32
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use souffleur_base::ids::{RowId, StepId};
    use souffleur_state::pool::pages::PageRun;
    use souffleur_state::sampling::SamplingParams;

    const SEQ: SeqId = SeqId::new(3);

    fn start(max_new_tokens: u32) -> RowStart {
        let sampling = SamplingParams {
            max_new_tokens,
            ..SamplingParams::default()
        };
        RowStart {
            row: RowId::new(1),
            seq: SEQ,
            tokens: [7, 8].into(),
            prompt_tokens: 2,
            sampling: Arc::new(sampling),
            grammar: None,
            vectors: None,
            images: None,
            pooling: None,
            draft_texts: Default::default(),
            prefix: PageRun::empty(),
            state: None,
        }
    }

    fn plan(starts: Vec<RowStart>, work: RowWork) -> StepPlan {
        let row = StepRow {
            row: RowId::new(1),
            seq: SEQ,
            work,
            sample: true,
            logprobs: None,
            saves: Default::default(),
        };
        StepPlan {
            step: StepId::new(1),
            starts,
            table: Vec::new(),
            rows: vec![row],
            copies: None,
            vision: None,
        }
    }

    /// The tokens and drafts of each decode of an output, after the prefill's token.
    fn decodes(drafts: Option<SimulatedDrafts>, max_new_tokens: u32, room: u32) -> Vec<(u32, u32)> {
        let mut rows = SimulatedRows::new(drafts);
        let prefill = RowWork::Prefill { positions: 0..2 };
        let first = rows.results(&plan(vec![start(max_new_tokens)], prefill));
        assert_eq!((first[0].accepted, first[0].tokens.len()), (2, 1));
        let (mut output, mut found) = (1, Vec::new());
        while output < max_new_tokens {
            let work = RowWork::Decode {
                position: 1 + output,
                room: room.min(max_new_tokens - output),
            };
            let results = rows.results(&plan(Vec::new(), work));
            assert_eq!(results[0].tokens.len(), results[0].accepted as usize);
            output += results[0].accepted;
            found.push((results[0].accepted, results[0].drafts.n_tokens));
        }
        assert_eq!(output, max_new_tokens, "no output is longer than it may be");
        assert!(rows.outputs.is_empty());
        found
    }

    fn with_rate(accept_rate: f64) -> Option<SimulatedDrafts> {
        Some(SimulatedDrafts {
            room: 8,
            accept_rate,
            seed: 1,
        })
    }

    #[test]
    fn drafts_are_accepted_at_the_rate_and_within_the_output() {
        assert_eq!(decodes(with_rate(1.0), 18, 8), [(8, 7), (8, 7), (1, 0)]);
        assert_eq!(decodes(with_rate(0.0), 4, 8), [(1, 2), (1, 1), (1, 0)]);
        let (rate, room) = (0.7_f64, 8);
        let found = decodes(with_rate(rate), 20_001, room);
        let a_step = 20_000.0 / found.len() as f64;
        let expected = (1.0 - rate.powi(8)) / (1.0 - rate);
        assert!(
            (a_step / expected - 1.0).abs() < 0.03,
            "{a_step} {expected}"
        );
        assert_eq!(
            decodes(with_rate(rate), 300, room),
            decodes(with_rate(rate), 300, room)
        );
    }

    #[test]
    fn without_drafts_a_decode_gives_one_token() {
        let mut rows = SimulatedRows::new(None);
        let work = RowWork::Decode {
            position: 5,
            room: 1,
        };
        let results = rows.results(&plan(vec![start(9)], work));
        assert_eq!((results[0].accepted, results[0].tokens.len()), (1, 1));
        assert_eq!(results[0].drafts, RowDrafts::default());
        assert!(rows.outputs.is_empty());
    }
}
