//! The simulated executor's results for the rows of a step.

use std::sync::Arc;

use fastrand::Rng;
use rustc_hash::FxHashMap;
use smallvec::smallvec;

use super::drafts::DraftHistogram;
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

/// Drafts of simulated requests.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatedDrafts {
    /// The most query tokens of a row in a step: the last token and its drafts. At most
    /// [`MAX_ROOM`](souffleur_state::speculation::MAX_ROOM).
    pub room: u32,
    pub guess: Guess,
    pub seed: u64,
}

/// How many drafts decodes have, and how many of them are right.
#[derive(Clone, Debug, PartialEq)]
pub enum Guess {
    /// Each decode has as many drafts as its room and the rest of its output allow. Each token of an output is guessed
    /// with this probability, from 0 to 1.
    Rate(f64),
    /// Each decode has the drafts of a decode of the histogram, which is drawn independently of the others. What exceeds
    /// its room or the rest of its output is cut.
    Measured(Arc<DraftHistogram>),
}

impl SimulatedDrafts {
    /// The random numbers of an output token: the same in each run.
    fn random(&self, seq: SeqId, index: u32) -> Rng {
        let place = (seq.get() << 32) ^ u64::from(index);
        Rng::with_seed(self.seed ^ place.wrapping_mul(MULTIPLIER))
    }

    /// The drafts of a decode from this output token on, at most `most`, and the number of accepted ones.
    fn of_decode(&self, seq: SeqId, first: u32, most: u32) -> (u32, u32) {
        match &self.guess {
            Guess::Rate(rate) => {
                let is_right = |index: &u32| self.random(seq, *index).f64() < *rate;
                let accepted = (first..first + most).take_while(is_right).count();
                (most, accepted as u32)
            }
            Guess::Measured(histogram) => {
                let (drafts, accepted) = histogram.draw(&mut self.random(seq, first));
                (drafts.min(most), accepted.min(most))
            }
        }
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

    /// Tokens that a decode with this room accepts, and its drafts. Both are 0 for a sequence that has ended: drafts that
    /// are accepted end it earlier than planned, and the step skips its row.
    fn decoded(&self, seq: SeqId, room: u32) -> (u32, u32) {
        let Some(drafts) = &self.drafts else {
            return (1, 0);
        };
        let Some(progress) = self.outputs.get(&seq) else {
            return (0, 0);
        };
        let left = progress.max_tokens.saturating_sub(progress.tokens);
        let most = room.min(left).saturating_sub(1);
        let (n_drafts, accepted) = drafts.of_decode(seq, progress.tokens, most);
        (1 + accepted, n_drafts)
    }
}

/// A token that occurs in no prompt and probably in no other output. No prompt of a trace repeats a simulated output.
fn output_token(seq: SeqId) -> u32 {
    PROMPT_VOCAB | (seq.get().wrapping_mul(MULTIPLIER) >> 33) as u32
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
        // The next step was planned before the output ended.
        let work = RowWork::Decode {
            position: 1 + output,
            room: 1,
        };
        let skipped = &rows.results(&plan(Vec::new(), work))[0];
        assert_eq!((skipped.accepted, skipped.tokens.len()), (0, 0));
        assert_eq!(output, max_new_tokens, "no output is longer than it may be");
        assert!(rows.outputs.is_empty());
        found
    }

    fn with_rate(accept_rate: f64) -> Option<SimulatedDrafts> {
        Some(SimulatedDrafts {
            room: 8,
            guess: Guess::Rate(accept_rate),
            seed: 1,
        })
    }

    /// Drafts as in these decodes, a list of `[drafts, accepted, count]`.
    fn measured(decodes: &str) -> Option<SimulatedDrafts> {
        let text = format!(
            r#"{{"schema": "souffleur-bench-taught/1", "cells": [{{"kind": "a", "decodes": {decodes}}}]}}"#
        );
        let histogram = DraftHistogram::parse(Path::new("taught.json"), text.as_bytes(), None);
        let histogram = histogram.expect("it is valid");
        Some(SimulatedDrafts {
            room: 1 + histogram.most_drafts(),
            guess: Guess::Measured(Arc::new(histogram)),
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
    fn drafts_are_as_in_the_histogram_and_within_room_and_output() {
        let always = measured("[[7, 5, 3]]");
        let within_output = [(6, 7), (6, 7), (6, 6), (1, 0)];
        assert_eq!(decodes(always.clone(), 20, 8), within_output);
        assert_eq!(decodes(always, 10, 4), [(4, 3), (4, 3), (1, 0)]);
        let none = measured("[[0, 0, 2]]");
        assert_eq!(decodes(none, 4, 8), [(1, 0); 3]);
        let mixed = measured("[[0, 0, 40], [7, 0, 20], [7, 3, 10], [7, 7, 30]]");
        let found = decodes(mixed.clone(), 20_001, 8);
        let n = found.len() as f64;
        // The means of one decode: 0.6 of them have seven drafts.
        let drafts: u32 = found.iter().map(|(_, drafts)| *drafts).sum();
        let a_step = 20_000.0 / n;
        for (found, expected) in [(a_step, 3.4), (f64::from(drafts) / n, 4.2)] {
            assert!((found / expected - 1.0).abs() < 0.05, "{found} {expected}");
        }
        assert_eq!(decodes(mixed.clone(), 300, 8), decodes(mixed, 300, 8));
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
