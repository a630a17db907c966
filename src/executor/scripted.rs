//! An executor that answers prompts by a script, for tests that need certain outputs, such as tool calls.
//!
//! In all else it works like the [fake executor](crate::fake): it checks the K/V of its rows, and a retracted row
//! resumes where it stopped. Log probabilities are made up but deterministic; the chosen token is the most likely one.

use crate::fake::{FakeDrafts, FakeExecutor, FakeOptions};
pub use crate::script::Script;
use crate::vision::EncodedImage;
use crate::{DeviceLost, Executor};
use souffleur_base::error::StepError;
use souffleur_state::step::{StepOutput, StepPlan};

pub struct ScriptedExecutor {
    inner: FakeExecutor,
}

impl ScriptedExecutor {
    /// An executor with an empty pool. The script's tokens must be in the vocabulary of the options.
    pub fn new(options: FakeOptions, script: Script) -> Self {
        Self {
            inner: FakeExecutor::with_script(options, script),
        }
    }
}

impl ScriptedExecutor {
    /// As [`FakeExecutor::with_drafts`].
    pub fn with_drafts(self, drafts: FakeDrafts) -> Self {
        Self {
            inner: self.inner.with_drafts(drafts),
        }
    }

    /// As [`FakeExecutor::with_tower`].
    pub fn with_tower(self, hidden_size: usize) -> Self {
        Self {
            inner: self.inner.with_tower(hidden_size),
        }
    }
}

impl Executor for ScriptedExecutor {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.inner.run(plan)
    }

    fn take_encoded(&mut self) -> Vec<EncodedImage> {
        self.inner.take_encoded()
    }

    fn forget_unwanted(&mut self) {
        self.inner.forget_unwanted();
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.inner.reset()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use smallvec::smallvec;

    use super::*;
    use souffleur_base::ids::{PageId, RowId, SeqId, StepId};
    use souffleur_state::pool::pages::PageRun;
    use souffleur_state::sampling::{LogprobWish, SamplingParams};
    use souffleur_state::step::{RowResult, RowStart, RowWork, StepRow, TableDelta};

    const EOS: u32 = 9;
    const ROW: RowId = RowId::new(1);
    const SEQ: SeqId = SeqId::new(1);

    /// Answers with the prompt in reverse.
    fn executor() -> ScriptedExecutor {
        let options = FakeOptions {
            page_size: 1,
            n_pages: 32,
            vocab_size: 10,
            verify: true,
            n_states: 0,
            hidden_size: 6,
            faults: Vec::new(),
        };
        let answers = |prompt: &[u32]| prompt.iter().rev().copied().collect();
        ScriptedExecutor::new(options, Script::new(EOS, answers))
    }

    fn run(executor: &mut ScriptedExecutor, plan: StepPlan) -> RowResult {
        let mut output = executor.run(&plan).expect("the plan is sound");
        output.rows.pop().expect("the row has a result")
    }

    /// Starts the row with prompt and output, and returns the next result.
    fn start(executor: &mut ScriptedExecutor, tokens: &[u32], prompt_tokens: u32) -> RowResult {
        let n_tokens = tokens.len() as u32;
        let start = RowStart {
            row: ROW,
            seq: SEQ,
            tokens: tokens.into(),
            prompt_tokens,
            sampling: Arc::new(SamplingParams::default()),
            grammar: None,
            vectors: None,
            images: None,
            pooling: None,
            prefix: PageRun::default(),
            state: None,
            draft_texts: Default::default(),
        };
        let pages = (1..=n_tokens).map(PageId::new).collect();
        let work = RowWork::Prefill {
            positions: 0..n_tokens,
        };
        run(executor, plan(vec![start], pages, work))
    }

    fn decode(executor: &mut ScriptedExecutor, position: u32) -> u32 {
        let pages = smallvec![PageId::new(position + 1)];
        let work = RowWork::Decode { position, room: 1 };
        run(executor, plan(Vec::new(), pages, work)).tokens[0]
    }

    fn plan(
        starts: Vec<RowStart>,
        pages: smallvec::SmallVec<[PageId; 2]>,
        work: RowWork,
    ) -> StepPlan {
        let wish = LogprobWish {
            start: Some(0),
            top: 2,
            token_ids: [4].into(),
        };
        StepPlan {
            step: StepId::new(1),
            starts,
            table: vec![TableDelta::Append { row: ROW, pages }],
            rows: vec![StepRow {
                row: ROW,
                seq: SEQ,
                work,
                sample: true,
                logprobs: Some(Arc::new(wish)),
                saves: smallvec![],
            }],
            copies: None,
            vision: None,
        }
    }

    #[test]
    fn a_row_outputs_its_answer_and_then_eos() {
        let mut executor = executor();
        let first = start(&mut executor, &[3, 5], 2).tokens[0];
        let rest: Vec<u32> = (2..5)
            .map(|position| decode(&mut executor, position))
            .collect();
        assert_eq!((first, rest), (5, vec![3, EOS, EOS]));
    }

    #[test]
    fn a_retracted_row_continues_after_its_output() {
        let mut executor = executor();
        let next = start(&mut executor, &[3, 5, 5], 2).tokens[0];
        assert_eq!((next, decode(&mut executor, 3)), (3, EOS));
    }

    #[test]
    fn the_chosen_token_is_the_most_likely_one() {
        let scores = start(&mut executor(), &[3, 5, 7], 3).logprobs;
        let again = start(&mut executor(), &[3, 5, 7], 3).logprobs;
        assert_eq!(scores, again);
        let scores = scores.expect("log probabilities were requested");
        let prompt: Vec<u32> = scores.input.iter().map(|entry| entry.token).collect();
        assert_eq!(prompt, [5, 7]);
        let sampled = &scores.output[0];
        assert_eq!((sampled.token, sampled.top.len()), (7, 2));
        assert_eq!(sampled.logprob, Some(sampled.top[0].1));
        assert_eq!((sampled.top[0].0, sampled.chosen[0].0), (7, 4));
        assert!(sampled.logprob.is_some_and(|logprob| logprob < 0.0));
    }
}
