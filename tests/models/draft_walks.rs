//! Tests that decodes with drafts sample the tokens and log probabilities of decodes without.

use std::sync::{Arc, Mutex};

use souffleur_base::error::StepError;
use souffleur_executor::Executor;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_executor::speculation::{MakeProposer, Speculation};
use souffleur_state::sampling::{LogprobWish, SamplingParams, TokenLogprobs};
use souffleur_state::speculation::{DraftSource, Proposal, Proposer};
use souffleur_state::step::{RowResult, RowStart, RowVerdict, RowWork, StepPlan};

use crate::common::{append, decode, greedy, load, options, plan, prefill, start, tokens};
use crate::masks::{VOCAB, hashed, seeded};

const PROMPT_TOKENS: u32 = 10;
const OUTPUT_TOKENS: usize = 40;
const EOS: u32 = 2;
/// With eight query tokens each, more than the rows of logits that are computed at once.
const ROWS: u32 = 18;
const PAGES: u32 = 80;

/// The tokens of each row without drafts, by number of the row.
type Truth = Arc<Mutex<Vec<Vec<u32>>>>;

/// Proposes the right token at this percentage of positions, otherwise another one.
struct Script {
    truth: Truth,
    percent: u64,
}

struct RowScript {
    truth: Vec<u32>,
    known: usize,
    percent: u64,
}

impl MakeProposer for Script {
    fn make(&self, start: &RowStart) -> Option<Box<dyn Proposer>> {
        let truth = self.truth.lock().unwrap();
        Some(Box::new(RowScript {
            truth: truth.get(start.row.index())?.clone(),
            known: 0,
            percent: self.percent,
        }))
    }
}

impl Proposer for RowScript {
    fn extend(&mut self, tokens: &[u32]) {
        self.known += tokens.len();
    }

    fn propose(&mut self, max: usize, drafts: &mut Vec<u32>) -> Proposal {
        let end = self.truth.len().min(self.known + max);
        let range = self.known.min(end)..end;
        let n_tokens = range.len();
        drafts.extend(range.map(|at| {
            let is_right = (at as u64 * 7919 + self.known as u64 * 31) % 100 < self.percent;
            (self.truth[at] + u32::from(!is_right)) % VOCAB
        }));
        Proposal {
            n_tokens,
            source: DraftSource::Prediction,
            matched: 3,
        }
    }
}

/// Greedy, seeded, with penalties, a bias, a minimum of tokens before EOS, and with a grammar.
fn sampling_of(row: u32) -> SamplingParams {
    let plain = |base: Arc<SamplingParams>| (*base).clone();
    let base = match row % 6 {
        0 => plain(greedy()),
        1 => plain(seeded(u64::from(row))),
        2 => SamplingParams {
            frequency_penalty: 0.7,
            presence_penalty: 0.3,
            ..plain(greedy())
        },
        3 => SamplingParams {
            sampling_seed: Some(5),
            min_new_tokens: 9,
            stop_token_ids: (0..60).collect(),
            ..Default::default()
        },
        4 => SamplingParams {
            sampling_seed: Some(6),
            logit_bias: [(7, 3.0), (9, -2.0)].into(),
            ..Default::default()
        },
        _ => SamplingParams {
            sampling_seed: Some(7),
            ..Default::default()
        },
    };
    SamplingParams {
        max_new_tokens: OUTPUT_TOKENS as u32,
        speculative_num_draft_tokens: Some(8),
        ..base
    }
}

fn has_grammar(row: u32) -> bool {
    row % 6 == 5
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Output {
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    verdict: RowVerdict,
}

#[derive(Default)]
struct Run {
    outputs: Vec<Output>,
    drafted: usize,
    accepted: usize,
    steps: usize,
}

impl Run {
    fn take(&mut self, row: usize, result: &RowResult) {
        let output = &mut self.outputs[row];
        output.tokens.extend(&result.tokens);
        output.verdict = result.verdict;
        if let Some(logprobs) = &result.logprobs {
            assert_eq!(logprobs.output.len(), result.tokens.len());
            output.logprobs.extend(logprobs.output.iter().cloned());
        }
        let accepted = result.tokens.len() - 1;
        assert!(accepted <= result.drafts.n_tokens as usize);
        self.drafted += result.drafts.n_tokens as usize;
        self.accepted += accepted;
    }

    fn has_ended(&self, row: u32) -> bool {
        let output = &self.outputs[row as usize];
        let last = output.tokens.last();
        let ends = |token: &u32| sampling_of(row).ends_at(*token, &[EOS]);
        output.tokens.len() >= OUTPUT_TOKENS
            || output.verdict != RowVerdict::Open
            || last.is_some_and(ends)
    }
}

fn wish(row: u32) -> Option<Arc<LogprobWish>> {
    let wish = LogprobWish {
        top: 2,
        ..Default::default()
    };
    (row % 2 == 1).then(|| Arc::new(wish))
}

fn opening() -> StepPlan {
    let mut step = plan(0);
    for row in 1..=ROWS {
        let prompt = tokens(u64::from(row), PROMPT_TOKENS as usize, VOCAB);
        let sampling = Arc::new(sampling_of(row));
        let mut begin = start(row, &prompt, prompt.len(), &sampling);
        if has_grammar(row) {
            begin.grammar = Some(Arc::new(hashed(row)));
        }
        step.starts.push(begin);
        step.table
            .push(append(row, 1 + row * PAGES..1 + (row + 1) * PAGES));
        let mut work = prefill(row, 0..PROMPT_TOKENS, true);
        work.logprobs = wish(row);
        step.rows.push(work);
    }
    step
}

/// Decodes all rows to their ends. `room` has a row's room in a step. Half of the plans know the lowest position only.
fn run(executor: &mut CpuExecutor, room: &dyn Fn(u32, u32) -> u32) -> Run {
    let mut run = Run {
        outputs: vec![Output::default(); ROWS as usize + 1],
        ..Default::default()
    };
    let mut rows: Vec<u32> = (1..=ROWS).collect();
    let mut step = opening();
    let mut lowest = vec![0; ROWS as usize + 1];
    for turn in 1.. {
        let results = executor.run(&step).unwrap().rows;
        for (row, result) in rows.iter().zip(&results) {
            run.take(*row as usize, result);
        }
        rows.retain(|row| !run.has_ended(*row));
        if rows.is_empty() {
            break;
        }
        run.steps += 1;
        step = plan(u64::from(turn));
        for &row in &rows {
            let known = PROMPT_TOKENS + run.outputs[row as usize].tokens.len() as u32;
            let position = match lowest[row as usize] {
                lowest if lowest > 0 && turn % 2 == 0 => lowest,
                _ => known - 1,
            };
            lowest[row as usize] = known;
            let room = room(row, turn);
            let mut work = decode(row, position);
            work.work = RowWork::Decode { position, room };
            work.logprobs = wish(row);
            step.rows.push(work);
        }
    }
    run
}

fn executor(model: &str, truth: &Truth, percent: u64, threads: usize) -> CpuExecutor {
    let proposers = Arc::new(Script {
        truth: truth.clone(),
        percent,
    });
    let options = CpuOptions {
        threads,
        eos_token_ids: [EOS].into(),
        speculation: Some(Speculation {
            proposers,
            is_controlled: false,
        }),
        ..options()
    };
    load(model, &options)
}

#[test]
fn decodes_with_drafts_sample_what_decodes_without_sample() {
    for (model, threads) in [("llama", 2), ("gpt-oss", 1)] {
        let truth = Truth::default();
        let plain = run(&mut executor(model, &truth, 0, threads), &|_, _| 1);
        assert_eq!(plain.drafted, 0);
        let all = plain.outputs.iter().map(|output| output.tokens.clone());
        *truth.lock().unwrap() = all.collect();
        for percent in [0, 70, 100] {
            let mut executor = executor(model, &truth, percent, threads);
            let drafted = run(&mut executor, &|row, turn| 1 + (row + turn) % 8);
            assert_eq!(drafted.outputs, plain.outputs, "{model}, {percent} %");
            let rejected = drafted.drafted - drafted.accepted;
            assert_eq!(drafted.accepted > 0, percent > 0, "{model}, {percent} %");
            assert_eq!(rejected > 0, percent < 100, "{model}, {percent} %");
            assert!(percent == 0 || drafted.steps < plain.steps);
        }
    }
}

#[test]
fn rooms_and_positions_outside_the_limits_are_refused() {
    let truth = Truth::default();
    let mut executor = executor("llama", &truth, 0, 1);
    executor.run(&opening()).unwrap();
    for (position, room, expected) in [
        (PROMPT_TOKENS, 0, "room for 0 query tokens"),
        (PROMPT_TOKENS, 65, "room for 65 query tokens"),
        (PROMPT_TOKENS - 1, 2, "a decode is at position 9"),
        (PROMPT_TOKENS + 1, 2, "11"),
    ] {
        let mut step = plan(1);
        let mut work = decode(1, position);
        work.work = RowWork::Decode { position, room };
        step.rows.push(work);
        let Err(StepError::Rejected(reason)) = executor.run(&step) else {
            panic!("room {room} at position {position} is not refused");
        };
        assert!(reason.contains(expected), "{reason}");
    }
}
