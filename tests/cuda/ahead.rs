//! Tests of steps launched before the previous step's output is read: tokens, graphs, memory and faults.

use std::collections::VecDeque;
use std::sync::Arc;

use souffleur_base::error::StepError;
use souffleur_cusim::{Device, Fault};
use souffleur_executor::cpu::CpuExecutor;
use souffleur_executor::{Executor, Launch};
use souffleur_state::sampling::LogprobWish;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::step::{StepOutput, StepPlan};

use crate::common::{
    append, cpu_options, decode, fixture, greedy, load, options, plan, prefill, start, tokens,
};
use crate::setups::load_on;

const OUT_OF_MEMORY: i32 = 2;
const LAUNCH_OUT_OF_RESOURCES: i32 = 701;
const ILLEGAL_ADDRESS: i32 = 700;
const STEPS: u64 = 20;

/// Prefills of rows 1 to 4, then decodes of all of them.
fn plans() -> Vec<StepPlan> {
    let seeded = Arc::new(SamplingParams {
        sampling_seed: Some(11),
        temperature: 1.3,
        top_p: 0.9,
        repetition_penalty: 1.2,
        ..Default::default()
    });
    let mut first = plan(0);
    for row in 1..=4 {
        let sampling = if row % 2 == 0 {
            seeded.clone()
        } else {
            greedy()
        };
        let prompt = tokens(u64::from(row), 10 + row as usize, 288);
        first
            .starts
            .push(start(row, &prompt, prompt.len(), &sampling));
        first
            .table
            .push(append(row, row * 100..row * 100 + 12 + row));
        first.rows.push(prefill(row, 0..10 + row, true));
    }
    let mut plans = vec![first];
    for step in 1..STEPS {
        let mut next = plan(step);
        for row in 1..=4u32 {
            let position = 9 + row + step as u32;
            next.table.push(append(row, [row * 100 + 50 + step as u32]));
            next.rows.push(decode(row, position));
        }
        plans.push(next);
    }
    plans
}

fn sampled(outputs: &[StepOutput]) -> Vec<Vec<u32>> {
    let tokens = |output: &StepOutput| {
        let rows = output
            .rows
            .iter()
            .flat_map(|row| row.tokens.iter().copied());
        rows.collect()
    };
    outputs.iter().map(tokens).collect()
}

fn run(executor: &mut dyn Executor, plans: &[StepPlan]) -> Vec<StepOutput> {
    plans
        .iter()
        .map(|plan| executor.run(plan).unwrap())
        .collect()
}

fn on_the_cpu(plans: &[StepPlan]) -> Vec<StepOutput> {
    let executor = CpuExecutor::load(&fixture("llama"), &cpu_options(), &mut |_, _| {});
    run(&mut executor.unwrap(), plans)
}

#[test]
fn a_step_is_launched_before_the_previous_output_is_read() {
    let plans = plans();
    let expected = sampled(&on_the_cpu(&plans));
    let mut executor = load("llama", &options());
    let (mut outputs, mut under_way) = (Vec::new(), VecDeque::new());
    for plan in &plans {
        let launched = executor.launch(plan).unwrap();
        assert!(matches!(launched, Launch::UnderWay));
        under_way.push_back(plan.step);
        if under_way.len() == 2 {
            let output = executor.finish().unwrap();
            assert_eq!(Some(output.step), under_way.pop_front());
            outputs.push(output);
        }
    }
    while !executor.is_finished() {}
    outputs.push(executor.finish().unwrap());
    assert_eq!(sampled(&outputs), expected);
    assert!(matches!(executor.finish(), Err(StepError::Lost(_))));
}

#[test]
fn warm_decodes_launch_graphs_and_allocate_nothing() {
    const ORDINAL: usize = 1;
    let device = Device::new(ORDINAL);
    let plans = plans();
    let mut executor = load_on(ORDINAL, &fixture("llama"), &options());
    run(&mut executor, &plans[..3]);
    let before = device.counts();
    run(&mut executor, &plans[3..]);
    let after = device.counts();
    assert_eq!(after.n_allocations, before.n_allocations);
    assert_eq!(after.used_bytes, before.used_bytes);
    let n_steps = STEPS - 3;
    assert_eq!(after.n_graph_launches - before.n_graph_launches, n_steps);
    // In addition to the graph, a step launches only the edit of the page table.
    assert_eq!(after.n_launches - before.n_launches, n_steps);
}

#[test]
fn dropping_the_executor_frees_all_allocations() {
    const ORDINAL: usize = 2;
    let device = Device::new(ORDINAL);
    let mut executor = load_on(ORDINAL, &fixture("llama"), &options());
    executor.launch(&plans()[0]).unwrap();
    drop(executor);
    assert_eq!(device.counts().n_allocations_held, 0);
}

#[test]
fn a_refused_launch_loses_the_step_and_not_the_device() {
    const ORDINAL: usize = 3;
    let device = Device::new(ORDINAL);
    let plans = plans();
    let expected = sampled(&on_the_cpu(&plans));
    let mut executor = load_on(ORDINAL, &fixture("llama"), &options());
    run(&mut executor, &plans[..2]);
    device.plan(Fault::Launch(LAUNCH_OUT_OF_RESOURCES), 2);
    let error = executor.run(&plans[2]).unwrap_err();
    assert!(matches!(&error, StepError::Lost(_)), "{error}");
    assert!(error.to_string().contains("701"), "{error}");
    // All steps run again, from the prompts on.
    assert_eq!(sampled(&run(&mut executor, &plans)), expected);
}

/// A decode that is launched after its prompt's step was refused has no token to continue from.
#[test]
fn a_step_after_a_lost_one_is_lost_and_computes_nothing() {
    const ORDINAL: usize = 24;
    let device = Device::new(ORDINAL);
    let plans = plans();
    let expected = sampled(&on_the_cpu(&plans));
    let mut executor = load_on(ORDINAL, &fixture("llama"), &options());
    for fault in [
        Fault::Copy(OUT_OF_MEMORY),
        Fault::Launch(LAUNCH_OUT_OF_RESOURCES),
    ] {
        device.plan(fault, 1);
        let error = executor.launch(&plans[0]).unwrap_err();
        assert!(matches!(&error, StepError::Lost(_)), "{error}");
        let before = device.counts();
        let error = executor.launch(&plans[1]).unwrap_err();
        assert!(matches!(&error, StepError::Lost(_)), "{error}");
        let after = device.counts();
        assert_eq!(after.n_launches, before.n_launches);
        assert_eq!(after.n_graph_launches, before.n_graph_launches);
    }
    assert_eq!(sampled(&run(&mut executor, &plans)), expected);
}

#[test]
fn a_step_without_memory_for_its_token_counts_is_rejected_and_changes_no_other() {
    const ORDINAL: usize = 6;
    let device = Device::new(ORDINAL);
    let plans = plans();
    let expected = sampled(&on_the_cpu(&plans));
    let mut executor = load_on(ORDINAL, &fixture("llama"), &options());
    let mut outputs = run(&mut executor, &plans[..5]);
    let penalized = Arc::new(SamplingParams {
        repetition_penalty: 1.2,
        ..Default::default()
    });
    let mut memory_hungry = plan(99);
    for row in 10..30 {
        let start = start(row, &[1, 2, 3], 3, &penalized);
        memory_hungry.starts.push(start);
        memory_hungry
            .table
            .push(append(row, row * 100..row * 100 + 4));
        memory_hungry.rows.push(prefill(row, 0..3, true));
    }
    device.plan(Fault::Allocation, 1);
    let error = executor.run(&memory_hungry).unwrap_err();
    assert!(matches!(&error, StepError::Rejected(_)), "{error}");
    assert!(error.to_string().contains("memory"), "{error}");
    outputs.extend(run(&mut executor, &plans[5..10]));
    // Once there is memory, all rows fit, and the earlier rows continue with newly recorded graphs.
    let n_sampled = executor.run(&memory_hungry).unwrap().rows.len();
    assert_eq!(n_sampled, 20);
    outputs.extend(run(&mut executor, &plans[10..]));
    assert_eq!(sampled(&outputs), expected);
}

#[test]
fn a_lost_context_ends_the_executor() {
    const ORDINAL: usize = 4;
    let device = Device::new(ORDINAL);
    let plans = plans();
    let mut executor = load_on(ORDINAL, &fixture("llama"), &options());
    run(&mut executor, &plans[..2]);
    device.plan(Fault::Kernel(ILLEGAL_ADDRESS), 3);
    executor.launch(&plans[2]).unwrap();
    // The fault may not have been noticed yet.
    let next = executor.launch(&plans[3]);
    let error = executor.finish().unwrap_err();
    assert!(matches!(&error, StepError::Lost(_)), "{error}");
    if next.is_ok() {
        let error = executor.finish().unwrap_err();
        assert!(matches!(&error, StepError::Lost(_)), "{error}");
    }
    // A later step finds the same, and no reset renews the context.
    for _ in 0..2 {
        let error = executor.launch(&plans[0]).unwrap_err();
        assert!(matches!(&error, StepError::Lost(_)), "{error}");
        let lost = executor.reset().unwrap_err().to_string();
        for text in [error.to_string(), lost] {
            assert!(text.contains("the GPU's context is lost"), "{text}");
        }
    }
    device.reset();
}

#[test]
fn a_reset_executor_forgets_steps_in_flight_and_runs_all_steps_again() {
    let plans = plans();
    let expected = sampled(&on_the_cpu(&plans));
    let mut executor = load("llama", &options());
    run(&mut executor, &plans[..3]);
    executor.launch(&plans[3]).unwrap();
    executor.launch(&plans[4]).unwrap();
    executor.reset().unwrap();
    let error = executor.finish().unwrap_err();
    assert!(matches!(&error, StepError::Lost(_)), "{error}");
    let error = executor.launch(&plans[5]).unwrap_err();
    assert!(matches!(&error, StepError::Lost(_)), "{error}");
    assert_eq!(sampled(&run(&mut executor, &plans)), expected);
}

#[test]
fn log_probabilities_are_close_to_the_cpus_for_any_number_of_ranked_tokens() {
    let logprobs = |top| {
        Some(Arc::new(LogprobWish {
            start: Some(2),
            top,
            token_ids: [5, 9].into(),
        }))
    };
    let mut plans = plans();
    plans.truncate(3);
    for plan in &mut plans {
        // Numbers of ranked tokens: more than the kernels rank, exactly as many, few, none.
        for (row, top) in plan.rows.iter_mut().zip([100, 64, 3, 0]) {
            row.logprobs = logprobs(top);
        }
    }
    let expected = on_the_cpu(&plans);
    let outputs = run(&mut load("llama", &options()), &plans);
    let rows = |outputs: &[StepOutput]| -> Vec<_> {
        let rows = outputs.iter().flat_map(|output| output.rows.clone());
        rows.map(|row| (row.tokens, *row.logprobs.unwrap()))
            .collect()
    };
    let pairs = rows(&outputs).into_iter().zip(rows(&expected));
    for ((tokens, got), (expected_tokens, expected)) in pairs {
        assert_eq!(tokens, expected_tokens);
        assert_eq!(got.input.len(), expected.input.len());
        let got = got.input.iter().chain(&got.output);
        let expected = expected.input.iter().chain(&expected.output);
        for (got, expected) in got.zip(expected) {
            assert_eq!(got.token, expected.token);
            let close = |a: f32, b: f32| assert!((a - b).abs() < 2e-4, "{a} {b}");
            close(got.logprob.unwrap(), expected.logprob.unwrap());
            assert_eq!(got.top.len(), expected.top.len());
            for (a, b) in got.top.iter().zip(&expected.top) {
                close(a.1, b.1);
            }
            assert_eq!(got.chosen.len(), expected.chosen.len());
            for (a, b) in got.chosen.iter().zip(&expected.chosen) {
                assert_eq!(a.0, b.0);
                close(a.1, b.1);
            }
        }
    }
}
