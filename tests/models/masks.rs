//! Tests of rows whose output follows a grammar, in steps with other rows.

use std::sync::Arc;

use souffleur_base::ids::SeqId;
use souffleur_executor::Executor;
use souffleur_state::grammar::{Allowed, Grammar, GrammarFailure, GrammarProgress, GrammarState};
use souffleur_state::sampling::{LogprobWish, SamplingParams, TokenMask};
use souffleur_state::step::{RowResult, RowVerdict, StepPlan};

use crate::common::{append, decode, greedy, load, options, plan, prefill, start, tokens};
use crate::grammars::HashedGrammar;

pub const VOCAB: u32 = 288;
const PROMPT_TOKENS: u32 = 10;
const STEPS: u64 = 20;
const EOS: u32 = 2;

#[derive(Clone)]
pub struct Row {
    pub row: u32,
    pub grammar: Option<Arc<dyn Grammar>>,
    pub sampling: Arc<SamplingParams>,
}

/// A pseudo-random grammar that never ends an output.
pub fn hashed(seed: u32) -> HashedGrammar {
    HashedGrammar {
        seed,
        vocab_size: VOCAB,
        opening: Vec::new(),
        done_after: usize::MAX,
        fails_after: None,
    }
}

pub fn seeded(seed: u64) -> Arc<SamplingParams> {
    Arc::new(SamplingParams {
        sampling_seed: Some(seed),
        temperature: 1.3,
        top_p: 0.95,
        repetition_penalty: 1.2,
        ..Default::default()
    })
}

/// Rows 1 to 6: without a grammar, with a hashed one, or with one that begins with fixed tokens; greedy, then seeded.
pub fn rows() -> Vec<Row> {
    (1..=6)
        .map(|row| {
            let grammar = |opening: &[u32]| -> Option<Arc<dyn Grammar>> {
                let opening = opening.to_vec();
                Some(Arc::new(HashedGrammar {
                    opening,
                    ..hashed(row)
                }))
            };
            Row {
                row,
                grammar: match row % 3 {
                    0 => None,
                    1 => grammar(&[]),
                    _ => grammar(&[5, 6, 7]),
                },
                sampling: if row > 3 {
                    seeded(u64::from(row))
                } else {
                    greedy()
                },
            }
        })
        .collect()
}

/// Like [`rows`], but the first row's grammar fails after three tokens, and the second row's is done after four.
pub fn rows_that_stop() -> Vec<Row> {
    let mut rows = rows();
    let grammar = |done_after, fails_after| -> Option<Arc<dyn Grammar>> {
        Some(Arc::new(HashedGrammar {
            done_after,
            fails_after,
            ..hashed(9)
        }))
    };
    rows[0].grammar = grammar(usize::MAX, Some(3));
    rows[1].grammar = grammar(4, None);
    rows
}

pub fn prompt(row: u32) -> Vec<u32> {
    tokens(u64::from(row), PROMPT_TOKENS as usize, VOCAB)
}

/// Starts rows that already have these output tokens, and prefills all their tokens.
pub fn prefills(step: u64, rows: &[Row], outputs: &[Vec<u32>]) -> StepPlan {
    let mut first = plan(step);
    for (row, output) in rows.iter().zip(outputs) {
        let all = [prompt(row.row).as_slice(), output].concat();
        let mut begun = start(row.row, &all, PROMPT_TOKENS as usize, &row.sampling);
        begun.grammar = row.grammar.clone();
        first.starts.push(begun);
        first
            .table
            .push(append(row.row, row.row * 100..row.row * 100 + 60));
        first.rows.push(prefill(row.row, 0..all.len() as u32, true));
    }
    first
}

pub fn decodes(step: u64, rows: &[Row], output_tokens: u32) -> StepPlan {
    let mut next = plan(step);
    let position = PROMPT_TOKENS + output_tokens - 1;
    next.rows = rows.iter().map(|row| decode(row.row, position)).collect();
    next
}

/// A prefill of all rows, then decodes.
pub fn plans(rows: &[Row], steps: u64) -> Vec<StepPlan> {
    let first = prefills(0, rows, &vec![Vec::new(); rows.len()]);
    let decodes = (1..steps).map(|step| decodes(step, rows, step as u32));
    std::iter::once(first).chain(decodes).collect()
}

fn run(executor: &mut dyn Executor, plans: &[StepPlan]) -> Vec<Vec<RowResult>> {
    let run = |plan| executor.run(plan).expect("the plan is valid").rows;
    plans.iter().map(run).collect()
}

fn outputs(steps: &[Vec<RowResult>]) -> Vec<Vec<u32>> {
    let output = |row: usize| {
        let sampled = steps.iter().flat_map(|rows| rows[row].tokens.iter());
        sampled.copied().collect()
    };
    (0..steps[0].len()).map(output).collect()
}

fn generate(rows: &[Row]) -> Vec<Vec<u32>> {
    outputs(&run(&mut load("llama", &options()), &plans(rows, STEPS)))
}

fn assert_follows(row: &Row, output: &[u32]) {
    let Some(grammar) = &row.grammar else { return };
    let mut state = grammar.begin();
    for &token in output {
        state.commit(token).expect("the grammar allows the token");
    }
}

#[test]
fn rows_follow_their_grammars_and_change_no_other_row() {
    let rows = rows();
    let together = generate(&rows);
    for (row, output) in rows.iter().zip(&together) {
        assert_eq!(output.len(), STEPS as usize);
        assert_follows(row, output);
        assert_eq!(
            *output,
            generate(std::slice::from_ref(row))[0],
            "row {}",
            row.row
        );
        let mut unconstrained = row.clone();
        unconstrained.grammar = None;
        let is_same = generate(&[unconstrained])[0] == *output;
        assert_eq!(is_same, row.grammar.is_none(), "row {}", row.row);
    }
}

#[test]
fn a_greedy_row_takes_the_likeliest_token_that_is_allowed() {
    let mut rows = rows();
    rows.truncate(3);
    let mut plans = plans(&rows, STEPS);
    let logprobs = Arc::new(LogprobWish {
        top: VOCAB,
        ..Default::default()
    });
    for row in plans.iter_mut().flat_map(|plan| &mut plan.rows) {
        row.logprobs = Some(logprobs.clone());
    }
    let steps = run(&mut load("llama", &options()), &plans);
    for (at, row) in rows.iter().enumerate() {
        let mut state = row.grammar.as_ref().map(|grammar| grammar.begin());
        let mut mask = TokenMask::none(VOCAB as usize);
        for results in &steps {
            let result = &results[at];
            let ranked = &result.logprobs.as_ref().expect("requested").output[0].top;
            let allowed = state.as_mut().map(|state| state.mask(&mut mask));
            let is_allowed = |token: u32| match allowed {
                Some(Ok(Allowed::Masked)) => mask.allows(token),
                _ => true,
            };
            let best = ranked.iter().find(|ranked| is_allowed(ranked.0));
            assert_eq!(best.map(|best| best.0), Some(result.tokens[0]));
            if let Some(state) = &mut state {
                state.commit(result.tokens[0]).expect("allowed");
            }
        }
    }
}

#[test]
fn a_failed_or_finished_grammar_is_reported_for_its_row_only() {
    let rows = rows_that_stop();
    let steps = run(&mut load("llama", &options()), &plans(&rows, 8));
    let too_complex = RowVerdict::GrammarFailed(GrammarFailure::TooComplex);
    for (step, results) in steps.iter().enumerate() {
        let verdicts: Vec<RowVerdict> = results.iter().map(|row| row.verdict).collect();
        let failed = if step >= 3 {
            too_complex
        } else {
            RowVerdict::Open
        };
        let done = if step >= 3 {
            RowVerdict::GrammarDone
        } else {
            RowVerdict::Open
        };
        assert_eq!(verdicts[..2], [failed, done], "step {step}");
        assert!(
            verdicts[2..]
                .iter()
                .all(|verdict| *verdict == RowVerdict::Open)
        );
    }
    let others = generate(&rows[2..]);
    let got = outputs(&steps);
    for (got, alone) in got[2..].iter().zip(&others) {
        assert_eq!(*got, alone[..8]);
    }
}

#[test]
fn a_restarted_row_continues_its_output() {
    let rows = rows();
    let expected = generate(&rows);
    let mut executor = load("llama", &options());
    run(&mut executor, &plans(&rows, 7));
    // The first four rows start again with their outputs so far, while the others continue.
    let so_far: Vec<Vec<u32>> = expected.iter().map(|output| output[..7].to_vec()).collect();
    let mut again = prefills(7, &rows[..4], &so_far[..4]);
    again.rows.extend(decodes(7, &rows[4..], 7).rows);
    let mut steps = vec![executor.run(&again).expect("the plan is valid").rows];
    let rest: Vec<StepPlan> = (8..STEPS)
        .map(|step| decodes(step, &rows, step as u32))
        .collect();
    steps.extend(run(&mut executor, &rest));
    for (got, expected) in outputs(&steps).iter().zip(&expected) {
        assert_eq!(*got, expected[7..]);
    }
}

#[test]
fn a_row_follows_the_grammar_of_its_current_sequence() {
    let rows = rows();
    let mut executor = load("llama", &options());
    run(&mut executor, &plans(&rows, 5));
    // Each row gets the grammar of the next row.
    let mut others = rows.clone();
    for (row, other) in others.iter_mut().zip(rows.iter().cycle().skip(1)) {
        row.grammar = other.grammar.clone();
    }
    let expected = generate(&others);
    let mut next = plans(&others, STEPS);
    for plan in &mut next {
        let seq = |row: u32| SeqId::new(u64::from(row) + 100);
        plan.starts
            .iter_mut()
            .for_each(|start| start.seq = seq(start.row.get()));
        plan.rows
            .iter_mut()
            .for_each(|row| row.seq = seq(row.row.get()));
    }
    assert_eq!(outputs(&run(&mut executor, &next)), expected);
}

/// Always allows the same set of tokens.
#[derive(Debug)]
struct Always(TokenMask);

#[derive(Debug)]
struct AlwaysState(TokenMask);

impl Always {
    fn grammar(tokens: impl IntoIterator<Item = u32>) -> Option<Arc<dyn Grammar>> {
        let mut mask = TokenMask::none(VOCAB as usize);
        tokens.into_iter().for_each(|token| mask.allow(token));
        Some(Arc::new(Self(mask)))
    }
}

impl Grammar for Always {
    fn begin(&self) -> Box<dyn GrammarState> {
        Box::new(AlwaysState(self.0.clone()))
    }
}

impl GrammarState for AlwaysState {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<Allowed, GrammarFailure> {
        mask.set_words(self.0.words());
        Ok(Allowed::Masked)
    }

    fn commit(&mut self, token: u32) -> Result<GrammarProgress, GrammarFailure> {
        if self.0.allows(token) {
            Ok(GrammarProgress::Open)
        } else {
            Err(GrammarFailure::NoToken)
        }
    }
}

#[test]
fn a_mask_that_allows_all_changes_no_bit() {
    let request = Some(Arc::new(LogprobWish::default()));
    let bits = |grammar: Option<Arc<dyn Grammar>>| {
        let mut rows = rows();
        rows.iter_mut()
            .for_each(|row| row.grammar = grammar.clone());
        let mut plans = plans(&rows, STEPS);
        let works = plans.iter_mut().flat_map(|plan| &mut plan.rows);
        works.for_each(|row| row.logprobs = request.clone());
        let steps = run(&mut load("llama", &options()), &plans);
        let bit = |row: &RowResult| {
            let logprobs = row.logprobs.as_ref().expect("requested");
            logprobs.output[0].logprob.map(f32::to_bits)
        };
        let logprobs: Vec<Option<u32>> = steps.iter().flatten().map(bit).collect();
        (outputs(&steps), logprobs)
    };
    assert_eq!(bits(Always::grammar(0..VOCAB)), bits(None));
}

#[test]
fn an_output_ends_before_its_minimum_length_only_if_no_other_token_is_allowed() {
    let mut options = options();
    options.eos_token_ids = [EOS].into();
    let sampling = |temperature| {
        Arc::new(SamplingParams {
            temperature,
            min_new_tokens: 6,
            logit_bias: [(EOS, 50.0)].into(),
            ..Default::default()
        })
    };
    let allowed: [&[u32]; 4] = [&[EOS], &[EOS, 9], &[7, 8, EOS], &[3]];
    let rows: Vec<Row> = (1..)
        .zip(allowed)
        .map(|(row, allowed)| Row {
            row,
            grammar: Always::grammar(allowed.iter().copied()),
            sampling: sampling(if row == 3 { 1.0 } else { 0.0 }),
        })
        .collect();
    let got = outputs(&run(&mut load("llama", &options), &plans(&rows, 8)));
    assert_eq!(got[0], [EOS; 8]);
    assert_eq!(got[1], [9, 9, 9, 9, 9, 9, EOS, EOS]);
    let (short, rest) = got[2].split_at(6);
    assert!(
        short.iter().all(|token| [7, 8].contains(token)),
        "{short:?}"
    );
    assert_eq!(rest, [EOS; 2]);
    assert_eq!(got[3], [3; 8]);
}
