//! Tests that chunks, saves and restores change no bit of recurrent states, and that contradictory plans are refused.

use std::sync::Arc;

use souffleur_base::error::StepError;
use souffleur_base::ids::{PageId, StateSlot};
use souffleur_executor::Executor;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_kernels::dtype::Dtype;
use souffleur_state::pool::pages::PageRun;
use souffleur_state::step::{RowStart, StateSave, StateStart, StepPlan, StepRow};

use crate::common::{append, decode, greedy, load, options, plan, prefill, start, tokens};
use crate::kernel_paths::repeats_floats;

const MODELS: [&str; 8] = [
    "lfm2",
    "lfm2-bias",
    "lfm2-moe",
    "lfm2-moe-plain",
    "qwen3-5",
    "qwen3-5-interval",
    "qwen3-5-moe",
    "qwen3-next",
];
/// Models without states whose attention or feed-forward blocks differ from a dense model's.
const OTHERS: [&str; 4] = ["deepseek-v2", "glm4-moe-lite", "gpt-oss", "qwen3-moe"];
const TOKENS: u32 = 130;
const ROW: u32 = 3;

fn with(dtype: Dtype, threads: usize) -> CpuOptions {
    CpuOptions {
        dtype: Some(dtype),
        threads,
        n_state_slots: 200,
        ..options()
    }
}

fn prompt() -> Vec<u32> {
    tokens(9, TOKENS as usize, 288)
}

fn slot(number: u32) -> StateSlot {
    StateSlot::new(number)
}

/// `from` is the number of cached pages, and the slot of the state that follows them.
fn row_start(tokens: &[u32], live: u32, from: Option<(u32, u32)>) -> RowStart {
    let mut row_start = start(ROW, tokens, tokens.len(), &greedy());
    row_start.state = Some(StateStart {
        live: slot(live),
        from: from.map(|(_, from)| slot(from)),
    });
    if let Some((cached, _)) = from {
        row_start.prefix = first_pages(cached);
    }
    row_start
}

fn first_pages(n: u32) -> PageRun {
    let pages: Arc<[PageId]> = (1..=n).map(PageId::new).collect();
    let mut run = PageRun::empty();
    run.push(&pages, 0..n);
    run
}

fn saves(work: &mut StepRow, saves: impl IntoIterator<Item = (u32, u32)>) {
    let saves = saves.into_iter().map(|(position, number)| StateSave {
        position,
        slot: slot(number),
    });
    work.saves = saves.collect();
}

fn logits(executor: &mut CpuExecutor, step: &StepPlan) -> Vec<u32> {
    let mut bits = Vec::new();
    let mut keep = |_, _, logits: &[f32]| bits = logits.iter().map(|x| x.to_bits()).collect();
    executor.run_observed(step, &mut keep).unwrap();
    bits
}

/// The bits of the logits at the end of the prompt, whose chunks end at `cuts`, and at eight decoded tokens.
fn run(executor: &mut CpuExecutor, cuts: &[u32]) -> Vec<Vec<u32>> {
    run_from(executor, row_start(&prompt(), 1, None), cuts)
}

/// Like `run`, for a row that begins with `row_start`. The first page depends on the cuts, so that pages hold keys and
/// values of other tokens until they are written.
fn run_from(executor: &mut CpuExecutor, row_start: RowStart, cuts: &[u32]) -> Vec<Vec<u32>> {
    let first_page = 1 + cuts.iter().sum::<u32>() % 97;
    let mut step = plan(0);
    step.starts = vec![row_start];
    step.table = vec![append(ROW, first_page..first_page + 199)];
    let ends = cuts.iter().copied().chain([TOKENS]);
    let mut first = 0;
    let mut bits = Vec::new();
    for end in ends {
        step.rows = vec![prefill(ROW, first..end, end == TOKENS)];
        bits = logits(executor, &step);
        step.starts.clear();
        step.table.clear();
        first = end;
    }
    let mut all = vec![bits];
    for n in 0..8 {
        step.rows = vec![decode(ROW, TOKENS + n)];
        all.push(logits(executor, &step));
    }
    all
}

#[test]
fn every_cut_in_two_gives_the_same_bits() {
    if repeats_floats() {
        return;
    }
    for name in MODELS {
        for dtype in [Dtype::F32, Dtype::BF16] {
            let mut executor = load(name, &with(dtype, 2));
            let whole = run(&mut executor, &[]);
            for cut in 1..TOKENS {
                let got = run(&mut executor, &[cut]);
                assert!(got == whole, "{name}, {dtype:?}, cut at {cut}");
            }
            for size in [1, 7, 64] {
                let cuts: Vec<u32> = (size..TOKENS).step_by(size as usize).collect();
                let got = run(&mut executor, &cuts);
                assert!(got == whole, "{name}, {dtype:?}, in chunks of {size}");
            }
        }
    }
}

#[test]
fn every_cut_gives_the_same_bits_in_models_without_states() {
    if repeats_floats() {
        return;
    }
    let row_start = || start(ROW, &prompt(), TOKENS as usize, &greedy());
    for name in OTHERS {
        let options = CpuOptions {
            n_state_slots: 0,
            ..with(Dtype::BF16, 2)
        };
        let mut executor = load(name, &options);
        let whole = run_from(&mut executor, row_start(), &[]);
        for cut in 1..TOKENS {
            let got = run_from(&mut executor, row_start(), &[cut]);
            assert!(got == whole, "{name}, cut at {cut}");
        }
        for threads in 1..=8 {
            let options = CpuOptions {
                threads,
                ..options.clone()
            };
            let got = run_from(&mut load(name, &options), row_start(), &[50]);
            assert!(got == whole, "{name}, {threads} threads");
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for name in MODELS {
        let alone = run(&mut load(name, &with(Dtype::BF16, 1)), &[]);
        for threads in 2..=8 {
            let got = run(&mut load(name, &with(Dtype::BF16, threads)), &[50]);
            assert!(got == alone, "{name}, {threads} threads");
        }
    }
}

#[test]
fn a_state_saved_within_a_prompt_continues_as_the_row_did() {
    for name in MODELS {
        let mut executor = load(name, &with(Dtype::BF16, 2));
        let prompt = prompt();
        let whole = run(&mut executor, &[]);
        let mut step = plan(0);
        step.starts = vec![row_start(&prompt, 1, None)];
        step.table = vec![append(ROW, 1..200)];
        let mut work = prefill(ROW, 0..TOKENS, true);
        saves(
            &mut work,
            (1..=TOKENS).map(|position| (position, 10 + position)),
        );
        step.rows = vec![work];
        assert!(
            logits(&mut executor, &step) == whole[0],
            "{name}, all saved"
        );
        for cached in 1..TOKENS {
            let mut step = plan(0);
            step.starts = vec![row_start(&prompt, 2, Some((cached, 10 + cached)))];
            step.table = vec![append(ROW, 300..500)];
            step.rows = vec![prefill(ROW, cached..TOKENS, true)];
            let got = logits(&mut executor, &step);
            assert!(got == whole[0], "{name}, from the state after {cached}");
        }
    }
}

#[test]
fn a_prompt_continues_from_a_state_at_the_end_of_any_page() {
    for name in MODELS {
        let single = run(&mut load(name, &with(Dtype::BF16, 2)), &[]);
        for page_size in [4, 16] {
            let options = CpuOptions {
                page_size: page_size as usize,
                ..with(Dtype::BF16, 2)
            };
            let mut executor = load(name, &options);
            let about = format!("{name}, pages of {page_size}");
            assert!(run(&mut executor, &[50]) == single, "{about}");
            let prompt = prompt();
            let mut step = plan(0);
            step.starts = vec![row_start(&prompt, 1, None)];
            step.table = vec![append(ROW, 1..60)];
            let mut work = prefill(ROW, 0..TOKENS, true);
            let pages = 1..=TOKENS / page_size;
            saves(&mut work, pages.clone().map(|n| (n * page_size, 10 + n)));
            step.rows = vec![work];
            assert!(logits(&mut executor, &step) == single[0], "{about}");
            for n in pages {
                let cached = n * page_size;
                let mut start = row_start(&prompt, 2, None);
                start.prefix = first_pages(n);
                start.state = Some(StateStart {
                    live: slot(2),
                    from: Some(slot(10 + n)),
                });
                let mut step = plan(0);
                step.starts = vec![start];
                step.table = vec![append(ROW, 100..160)];
                step.rows = vec![prefill(ROW, cached..TOKENS, true)];
                let got = logits(&mut executor, &step);
                assert!(got == single[0], "{about}, from {cached} tokens");
                let mut step = plan(1);
                step.rows = vec![decode(ROW, TOKENS)];
                let got = logits(&mut executor, &step);
                assert!(got == single[1], "{about}, decoded after {cached} tokens");
            }
        }
    }
}

/// Random cuts in ascending order, by a seed.
fn random_cuts(seed: u32) -> Vec<u32> {
    let mut state = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as u32
    };
    let wanted = 2 + next() % 12;
    let mut cuts: Vec<u32> = (0..wanted).map(|_| 1 + next() % (TOKENS - 1)).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

#[test]
fn any_cuts_give_the_same_bits() {
    for name in MODELS {
        for page_size in [1, 16] {
            let options = CpuOptions {
                page_size,
                ..with(Dtype::BF16, 2)
            };
            let mut executor = load(name, &options);
            let whole = run(&mut executor, &[]);
            for seed in 1..=8 {
                let cuts = random_cuts(seed);
                let got = run(&mut executor, &cuts);
                assert!(
                    got == whole,
                    "{name}, pages of {page_size}, cut at {cuts:?}"
                );
            }
        }
    }
}

#[test]
fn states_after_decodes_are_saved_and_reused_slots_begin_with_zeros() {
    for name in MODELS {
        let mut executor = load(name, &with(Dtype::F32, 1));
        let prompt = prompt();
        let mut step = plan(0);
        step.starts = vec![row_start(&prompt, 1, None)];
        step.table = vec![append(ROW, 1..200)];
        step.rows = vec![prefill(ROW, 0..TOKENS, true)];
        let first = executor.run(&step).unwrap().rows[0].tokens[0];
        let mut step = plan(1);
        let mut work = decode(ROW, TOKENS);
        saves(&mut work, [(TOKENS + 1, 20)]);
        step.rows = vec![work];
        let second = executor.run(&step).unwrap().rows[0].tokens[0];
        step.rows = vec![decode(ROW, TOKENS + 1)];
        let expected = logits(&mut executor, &step);
        let sequence: Vec<u32> = prompt.iter().copied().chain([first, second]).collect();
        let mut step = plan(3);
        step.starts = vec![row_start(&sequence, 2, Some((TOKENS + 1, 20)))];
        step.table = vec![append(ROW, 300..500)];
        step.rows = vec![prefill(ROW, TOKENS + 1..TOKENS + 2, true)];
        assert!(
            logits(&mut executor, &step) == expected,
            "{name}, from the copy"
        );
        let again = run(&mut executor, &[]);
        assert!(run(&mut executor, &[]) == again, "{name}, reused slot");
    }
}

type Edit = fn(&mut StepPlan, &[u32]);

/// A part of the expected error, and a change that contradicts the rest of the plan.
const CONTRADICTIONS: [(&str, Edit); 15] = [
    ("states are 1 to 200", |step, prompt| {
        step.starts[0] = row_start(prompt, 201, None)
    }),
    ("states are 1 to 200", |step, prompt| {
        step.starts[0] = row_start(prompt, 0, None)
    }),
    ("states are 1 to 200", |step, _| {
        saves(&mut step.rows[0], [(64, 0)])
    }),
    ("without a state", |step, _| step.starts[0].state = None),
    ("without cached pages", |step, _| {
        step.starts[0].state = Some(StateStart {
            live: slot(1),
            from: Some(slot(2)),
        });
    }),
    ("without the state that follows them", |step, prompt| {
        step.starts[0] = row_start(prompt, 1, Some((10, 2)));
        step.starts[0].state = Some(StateStart {
            live: slot(1),
            from: None,
        });
    }),
    ("read and written", |step, prompt| {
        step.starts[0] = row_start(prompt, 1, Some((10, 4)));
        let mut work = prefill(ROW, 10..100, false);
        saves(&mut work, [(64, 4)]);
        step.rows = vec![work];
    }),
    ("read and written", |step, prompt| {
        step.starts[0] = row_start(prompt, 1, Some((10, 1)));
        step.rows = vec![prefill(ROW, 10..100, false)];
    }),
    ("written twice", |step, _| {
        saves(&mut step.rows[0], [(64, 4), (65, 4)])
    }),
    ("written twice", |step, _| {
        saves(&mut step.rows[0], [(64, 1)])
    }),
    ("written twice", |step, prompt| {
        step.starts.push(start_of(9, prompt, 1, None))
    }),
    ("expected more than 0", |step, _| {
        saves(&mut step.rows[0], [(0, 4)])
    }),
    ("at most 100", |step, _| {
        saves(&mut step.rows[0], [(101, 4)])
    }),
    ("expected more than 64", |step, _| {
        saves(&mut step.rows[0], [(64, 4), (64, 5)])
    }),
    ("computes each position once", |step, prompt| {
        step.starts[0] = row_start(prompt, 1, Some((10, 2)));
        step.rows = vec![prefill(ROW, 5..100, false)];
    }),
];

fn start_of(row: u32, tokens: &[u32], live: u32, from: Option<(u32, u32)>) -> RowStart {
    let mut row_start = row_start(tokens, live, from);
    row_start.row = souffleur_base::ids::RowId::new(row);
    row_start
}

#[test]
fn contradictions_are_refused_before_anything_is_written() {
    let mut executor = load("lfm2", &with(Dtype::F32, 1));
    let prompt = prompt();
    let good = || {
        let mut step = plan(0);
        step.starts = vec![row_start(&prompt, 1, None)];
        step.table = vec![append(ROW, 1..200)];
        let mut work = prefill(ROW, 0..100, false);
        saves(&mut work, [(64, 4), (100, 5)]);
        step.rows = vec![work];
        step
    };
    for (reason, breaks) in CONTRADICTIONS {
        let mut step = good();
        breaks(&mut step, &prompt);
        match executor.run(&step) {
            Err(StepError::Rejected(text)) => assert!(text.contains(reason), "{text}"),
            other => panic!("{reason}: {other:?}"),
        }
    }
    let mut shared = good();
    let from = Some((10, 2));
    shared.starts = vec![row_start(&prompt, 1, from), start_of(9, &prompt, 3, from)];
    shared.rows = Vec::new();
    executor.run(&shared).unwrap();
    executor.run(&good()).unwrap();
    // A chunk that is partly computed already.
    let mut again = plan(2);
    again.rows = vec![prefill(ROW, 99..130, true)];
    assert!(matches!(executor.run(&again), Err(StepError::Rejected(_))));
    again.rows = vec![prefill(ROW, 100..130, true)];
    executor.run(&again).unwrap();
    let mut dense = load("llama", &options());
    let mut step = plan(0);
    step.starts = vec![row_start(&prompt, 1, None)];
    let text = dense.run(&step).unwrap_err().to_string();
    assert!(text.contains("no layer of the model keeps"), "{text}");
}
