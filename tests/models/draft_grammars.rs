//! Tests that rows whose grammars end or fail among the drafts of a step have the tokens, log probabilities and verdicts of
//! rows without drafts.

use std::sync::Arc;

use souffleur_executor::Executor;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_state::grammar::{Allowed, Grammar, GrammarFailure, GrammarProgress, GrammarState};
use souffleur_state::sampling::{LogprobWish, SamplingParams, TokenLogprobs, TokenMask};
use souffleur_state::step::{RowResult, RowVerdict, RowWork, StepPlan, StepRow};

use crate::common::{append, decode, load, options, plan, prefill, start, tokens};
use crate::kernel_paths::is_repeated;
use crate::masks::VOCAB;
use crate::scripted_drafts::{Script, ScriptedDrafts, Tally};

const PROMPT_TOKENS: u32 = 10;
const OUTPUT: usize = 20;
const ROOM: u32 = 8;
const PAGES: u32 = 60;
/// Outputs end after up to this number of tokens: at each place of the first drafts, and in the step after.
const LONGEST: usize = 11;

/// How a grammar ends an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    /// The mask cannot be computed.
    NoMask,
    /// The mask is empty.
    NoToken,
    /// The next token cannot be taken.
    NoCommit,
}

const ENDS: [End; 4] = [End::Done, End::NoMask, End::NoToken, End::NoCommit];

/// Allows two thirds of the tokens, others after each token.
#[derive(Clone, Copy, Debug)]
struct Ending {
    end: End,
    /// Tokens before the end.
    after: usize,
}

#[derive(Debug)]
struct EndingState {
    grammar: Ending,
    n_tokens: usize,
}

impl Grammar for Ending {
    fn begin(&self) -> Box<dyn GrammarState> {
        Box::new(EndingState {
            grammar: *self,
            n_tokens: 0,
        })
    }
}

impl EndingState {
    fn allows(&self, token: u32) -> bool {
        !(token as usize + self.n_tokens).is_multiple_of(3)
    }

    /// The end, if it is reached.
    fn end(&self) -> Option<End> {
        (self.n_tokens == self.grammar.after).then_some(self.grammar.end)
    }
}

impl GrammarState for EndingState {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<Allowed, GrammarFailure> {
        let end = self.end();
        if end == Some(End::NoMask) {
            return Err(GrammarFailure::TooComplex);
        }
        mask.clear();
        if end != Some(End::NoToken) {
            let allowed = (0..VOCAB).filter(|token| self.allows(*token));
            allowed.for_each(|token| mask.allow(token));
        }
        Ok(Allowed::Masked)
    }

    fn commit(&mut self, token: u32) -> Result<GrammarProgress, GrammarFailure> {
        if !self.allows(token) {
            return Err(GrammarFailure::NoToken);
        }
        if self.end() == Some(End::NoCommit) {
            return Err(GrammarFailure::TooComplex);
        }
        self.n_tokens += 1;
        Ok(match self.end() {
            Some(End::Done) => GrammarProgress::Done,
            _ => GrammarProgress::Open,
        })
    }
}

impl End {
    fn verdict(self) -> RowVerdict {
        match self {
            Self::Done => RowVerdict::GrammarDone,
            Self::NoToken => RowVerdict::GrammarFailed(GrammarFailure::NoToken),
            Self::NoMask | Self::NoCommit => RowVerdict::GrammarFailed(GrammarFailure::TooComplex),
        }
    }
}

/// The tokens of a row that are defined, their log probabilities, and the last verdict.
#[derive(Clone, Debug, Default, PartialEq)]
struct Output {
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    verdict: RowVerdict,
}

impl Output {
    fn take(&mut self, result: RowResult) {
        self.tokens.extend(&result.tokens);
        let logprobs = result.logprobs.unwrap();
        assert_eq!(logprobs.output.len(), result.tokens.len());
        self.logprobs.extend(logprobs.output);
        self.verdict = result.verdict;
        if self.verdict.is_failure() {
            // The verdict is on the last token, which is undefined.
            self.tokens.pop();
            self.logprobs.pop();
        }
    }

    /// The room of the next decode; `None` at the end.
    fn room(&self, most: u32) -> Option<u32> {
        let left = (OUTPUT - self.tokens.len()) as u32;
        (left > 0 && self.verdict == RowVerdict::Open).then_some(most.min(left))
    }
}

fn prompt(row: u32) -> Vec<u32> {
    tokens(u64::from(row) + 70, PROMPT_TOKENS as usize, VOCAB)
}

/// Greedy and random sampling in turn.
fn sampling(row: u32) -> Arc<SamplingParams> {
    Arc::new(SamplingParams {
        sampling_seed: Some(u64::from(row)),
        temperature: if row.is_multiple_of(2) { 0.0 } else { 1.2 },
        frequency_penalty: 0.3,
        max_new_tokens: OUTPUT as u32,
        ignore_eos: true,
        speculative_num_draft_tokens: Some(ROOM),
        ..Default::default()
    })
}

fn with_logprobs(mut work: StepRow) -> StepRow {
    work.logprobs = Some(Arc::new(LogprobWish {
        top: 2,
        ..Default::default()
    }));
    work
}

/// Starts the rows from 1 on, each with its grammar.
fn opening(grammars: &[Ending]) -> StepPlan {
    let mut step = plan(0);
    for (row, grammar) in (1..).zip(grammars) {
        let prompt = prompt(row);
        let mut begun = start(row, &prompt, prompt.len(), &sampling(row));
        begun.grammar = Some(Arc::new(*grammar));
        step.starts.push(begun);
        let first = row * PAGES;
        step.table.push(append(row, first..first + PAGES));
        step.rows
            .push(with_logprobs(prefill(row, 0..PROMPT_TOKENS, true)));
    }
    step
}

/// Runs the rows together until all have ended.
fn run(executor: &mut CpuExecutor, grammars: &[Ending], room: u32, tally: &Tally) -> Vec<Output> {
    let mut outputs = vec![Output::default(); grammars.len()];
    let mut step = opening(grammars);
    let mut number = 0;
    while !step.rows.is_empty() {
        for result in executor.run(&step).unwrap().rows {
            tally.add(&result);
            outputs[result.seq.get() as usize - 1].take(result);
        }
        number += 1;
        step = plan(number);
        for (row, output) in (1..).zip(&outputs) {
            if let Some(room) = output.room(room) {
                let position = PROMPT_TOKENS + output.tokens.len() as u32 - 1;
                let mut work = decode(row, position);
                work.work = RowWork::Decode { position, room };
                step.rows.push(with_logprobs(work));
            }
        }
    }
    outputs
}

/// Two rows for each end, greedy and random.
fn grammars(after: usize) -> Vec<Ending> {
    let ends = ENDS.into_iter().flat_map(|end| [end; 2]);
    ends.map(|end| Ending { end, after }).collect()
}

#[test]
fn grammars_end_and_fail_at_the_same_token_with_drafts() {
    if is_repeated() {
        return;
    }
    let all = Tally::default();
    let mut plain = load("llama", &options());
    let none = Tally::default();
    let endless = run(&mut plain, &grammars(usize::MAX), 1, &none);
    for script in [Script::Random(1.0), Script::Random(0.8), Script::WrongAt(2)] {
        let drafts = ScriptedDrafts::new(script, 11, VOCAB);
        for (row, output) in (1..).zip(&endless) {
            assert_eq!(output.tokens.len(), OUTPUT);
            // Drafts continue beyond the end.
            drafts.learn(&prompt(row), u64::from(row), &output.tokens);
        }
        let options = CpuOptions {
            speculation: Some(drafts.speculation()),
            ..options()
        };
        let mut speculating = load("llama", &options);
        for after in 1..=LONGEST {
            let grammars = grammars(after);
            let expected = run(&mut plain, &grammars, 1, &none);
            let got = run(&mut speculating, &grammars, ROOM, &all);
            for (index, grammar) in grammars.iter().enumerate() {
                let what = format!("{script:?}, {grammar:?}, row {}", index + 1);
                let expected = &expected[index];
                assert_eq!(&got[index], expected, "{what}");
                assert_eq!(expected.verdict, grammar.end.verdict(), "{what}");
                assert_eq!(expected.tokens, endless[index].tokens[..after], "{what}");
            }
        }
    }
    assert_eq!(none.totals(), (0, 0), "drafts without room");
    all.assert_both_at_each(3, "grammars that end");
    let (accepted, rejected) = all.totals();
    assert!(accepted > 100 && rejected > 100, "{accepted}, {rejected}");
}
