//! Tests of constrained decoding on the GPU: in batches with unconstrained rows, with steps launched ahead and graphs.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use crossbeam_channel::{Sender, bounded};
use futures_util::future::join_all;
use serde_json::json;
use souffleur_base::ids::SeqId;
use souffleur_config::EngineConfig;
use souffleur_engine::Generation;
use souffleur_executor::Executor;
use souffleur_executor::cpu::CpuExecutor;
use souffleur_request::{Event, GenerateRequest, Prompt};
use souffleur_state::grammar::{Constraint, JsonWhitespace};
use souffleur_state::step::{PIPELINE_DEPTH, RowVerdict, StepOutput, StepPlan};

use crate::common::{cpu_options, fixture, load, options};
use crate::gpu;
use crate::masks::{Row, decodes, plans, prefills, rows, rows_that_stop};
use crate::setups::{F32_PAGES_OF_1_GRAPHS, F32_PAGES_OF_16, Setup, start_on_cpu};
use crate::world::{Outcome, World, collect};

const REQUESTS: u32 = 12;
/// Requests that are sent first and have the longest outputs, one unconstrained and one with a regular expression. The
/// second is admitted while the first runs, without pages reserved for the remaining output of the first.
const GROWING: [u32; 2] = [0, 2];
const GROWING_TOKENS: u32 = 100;
/// A pool size in tokens that suffices for either growing request, but not for both at once.
const TIGHT_POOL_TOKENS: usize = 144;
/// Token ids of prompts are less than this.
const PROMPT_VOCAB: u32 = 700;
/// The id of the second sequence in a row is the row's number plus this.
const SECOND_SEQ: u64 = 100;

fn launch_ahead(plans: &[StepPlan]) -> Vec<StepOutput> {
    let mut executor = load("llama", &options());
    let (mut outputs, mut under_way) = (Vec::new(), VecDeque::new());
    for plan in plans {
        executor.launch(plan).expect("the plan is valid");
        under_way.push_back(plan.step);
        if under_way.len() == PIPELINE_DEPTH {
            outputs.push(executor.finish().expect("the step ends"));
            assert_eq!(
                outputs.last().map(|output| output.step),
                under_way.pop_front()
            );
        }
    }
    outputs.extend(
        under_way
            .iter()
            .map(|_| executor.finish().expect("the step ends")),
    );
    outputs
}

fn check(plans: &[StepPlan]) -> Vec<StepOutput> {
    let cpu = CpuExecutor::load(&fixture("llama"), &cpu_options(), &mut |_, _| {});
    let mut cpu = cpu.expect("the model loads");
    let got = launch_ahead(plans);
    for (plan, got) in plans.iter().zip(&got) {
        let expected = cpu.run(plan).expect("the plan is valid");
        for (got, expected) in got.rows.iter().zip(&expected.rows) {
            let what = (plan.step, got.seq);
            assert_eq!(got.seq, expected.seq);
            assert_eq!(got.verdict, expected.verdict, "{what:?}");
            assert_eq!(got.tokens, expected.tokens, "{what:?}");
        }
    }
    got
}

#[test]
fn steps_with_masks_are_launched_ahead_too() {
    check(&plans(&rows(), 20));
}

#[test]
fn graph_steps_alternate_with_masked_steps() {
    let rows = rows();
    let (unconstrained, constrained): (Vec<Row>, Vec<Row>) =
        rows.iter().cloned().partition(|row| row.grammar.is_none());
    let mut all = vec![prefills(0, &rows, &vec![Vec::new(); rows.len()])];
    let mut n_tokens = 1;
    for step in 1..24 {
        let mut next = decodes(step, &unconstrained, step as u32);
        if step % 3 == 0 {
            next.rows.extend(decodes(step, &constrained, n_tokens).rows);
            n_tokens += 1;
        }
        all.push(next);
    }
    check(&all);
}

#[test]
fn a_row_is_reused_while_its_last_token_is_in_flight() {
    let first = rows();
    // Rows without a grammar get one; rows with a grammar get another one or none.
    let mut second = first.clone();
    for (row, other) in second.iter_mut().zip(first.iter().cycle().skip(1)) {
        row.grammar = other.grammar.clone();
    }
    let mut all = plans(&first, 5);
    for mut next in plans(&second, 12) {
        next.step = souffleur_base::ids::StepId::new(next.step.get() + 5);
        let seq = |row: souffleur_base::ids::RowId| SeqId::new(u64::from(row.get()) + SECOND_SEQ);
        next.starts
            .iter_mut()
            .for_each(|start| start.seq = seq(start.row));
        next.rows.iter_mut().for_each(|row| row.seq = seq(row.row));
        all.push(next);
    }
    let outputs = check(&all);
    let verdicts = outputs.iter().flat_map(|output| &output.rows);
    assert!(
        verdicts
            .map(|row| row.verdict)
            .all(|verdict| verdict == RowVerdict::Open)
    );
}

#[test]
fn finished_and_failed_rows_disturb_no_step_in_flight() {
    let rows = rows_that_stop();
    check(&plans(&rows, 8));
}

fn agents() -> PathBuf {
    gpu::repository().join("tests/fixtures/qwen3-agents")
}

fn config(setup: &Setup) -> EngineConfig {
    EngineConfig {
        skip_tokenizer_init: false,
        ..setup.config(&agents())
    }
}

/// Every third request is unconstrained, every third follows a JSON schema, and every third a regular expression.
fn request(index: u32) -> GenerateRequest {
    let prompt = (0..4 + index).map(|at| (at * 31 + index * 57 + 7) % PROMPT_VOCAB);
    let mut request = GenerateRequest::new(Prompt::Tokens(prompt.collect()));
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "minLength": 3},
        "b": {"type": "array", "items": {"type": "integer"}, "minItems": 2}}, "required": ["a", "b"]});
    let constraint = match index % 3 {
        0 => None,
        1 => Some(Constraint::JsonSchema {
            schema: Arc::new(schema),
            whitespace: JsonWhitespace::default(),
            is_strict: true,
        }),
        _ => Some(Constraint::Regex("[a-z]{2,9}( [a-z]{2,9}){3,200}".into())),
    };
    request.constraint = constraint.map(Arc::new);
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = 20 + 5 * (index % 4);
    sampling.min_new_tokens = sampling.max_new_tokens / 2;
    if GROWING.contains(&index) {
        sampling.max_new_tokens = GROWING_TOKENS;
        sampling.min_new_tokens = GROWING_TOKENS;
    }
    sampling.sampling_seed = Some(u64::from(index));
    if index.is_multiple_of(2) {
        sampling.temperature = 0.0;
    }
    request
}

/// Sends all requests, the growing ones first, then drops `open`, which starts the first step. Returns the outcomes by
/// index, and the number of retractions.
async fn all_at_once(world: World, open: Option<Sender<()>>) -> (Vec<Outcome>, u64) {
    let mut sent: Vec<(u32, Generation)> = Vec::new();
    let others = (0..REQUESTS).filter(|index| !GROWING.contains(index));
    for index in GROWING.into_iter().chain(others) {
        sent.push((index, world.generate(request(index))));
        if open.is_some() {
            world
                .until(|stats| {
                    stats.running_requests >= 1
                        && stats.running_requests + stats.waiting_requests == sent.len()
                })
                .await;
        }
    }
    drop(open);
    sent.sort_by_key(|(index, _)| *index);
    let outcomes = join_all(sent.into_iter().map(|(_, generation)| collect(generation))).await;
    let stats = world.assert_no_leaks().await;
    world.stop().await;
    (outcomes, stats.retractions)
}

fn results(outcomes: &[Outcome]) -> Vec<(&[u32], String)> {
    let reason = |outcome: &Outcome| match &outcome.end {
        Event::Finished(end) => format!("{:?}", end.reason),
        other => panic!("ended with {other:?}"),
    };
    outcomes
        .iter()
        .map(|outcome| (outcome.tokens.as_slice(), reason(outcome)))
        .collect()
}

#[tokio::test]
async fn constrained_outputs_equal_the_cpus() {
    let cpu = start_on_cpu(config(&F32_PAGES_OF_16));
    let (expected, _) = all_at_once(cpu, None).await;
    for setup in [F32_PAGES_OF_1_GRAPHS, F32_PAGES_OF_16] {
        let large = config(&setup);
        let tight = EngineConfig {
            max_total_tokens: Some(TIGHT_POOL_TOKENS),
            // Prompts are admitted at once, however slow the machine is.
            max_prefill_step_ms: 0,
            schedule_conservativeness: 0.01,
            ..config(&setup)
        };
        for (config, is_tight) in [(large, false), (tight, true)] {
            let (open, gate) = bounded(0);
            let world = setup.start_gated_on_gpu(gate, config);
            let (got, retractions) = all_at_once(world, Some(open)).await;
            assert_eq!(results(&got), results(&expected), "{setup:?}");
            assert_eq!(retractions > 0, is_tight, "{setup:?}");
        }
    }
}
