//! Tests that the logits of a sequence have the same bits in every batch and for all chunk sizes.

use std::collections::BTreeMap;
use std::ops::Range;

use souffleur_base::ids::{PageId, SeqId, StateSlot};
use souffleur_executor::Executor;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_kernels::cpu::{ISA_VARIABLE, Isa, Numa};
use souffleur_kernels::dtype::{Dtype, Quantization};
use souffleur_state::pool::kv_layout::KvDtype;
use souffleur_state::pool::pages::PageRun;
use souffleur_state::sampling::LogprobWish;
use souffleur_state::step::{StateSave, StateStart, StepOutput, StepPlan};

use crate::common::{
    all_positions, append, decode, fixture, fixtures, greedy, load, options, plan, prefill, start,
    tokens, with_states,
};
use crate::kernel_paths::{is_repeated, repeats_floats};

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::BF16, Dtype::F16];
/// Longer than the tiny models' windows, and than a block of keys.
pub const PROMPT_TOKENS: u32 = 75;
pub const VOCAB: u32 = 288;
const ROW: u32 = 7;

/// The bits of the logits at each position of one sequence.
pub type Bits = BTreeMap<u32, Vec<u32>>;

/// Runs a step and keeps the bits of the logits of the sequence in [`ROW`].
pub fn observe(executor: &mut CpuExecutor, plan: &StepPlan, bits: &mut Bits) -> StepOutput {
    let keep = |seq, position, logits: &[f32]| {
        if seq == SeqId::new(u64::from(ROW)) {
            bits.insert(
                position,
                logits.iter().map(|logit| logit.to_bits()).collect(),
            );
        }
    };
    let mut keep = keep;
    let plan = with_states(executor, plan);
    executor.run_observed(&plan, &mut keep).unwrap()
}

/// Pages for a whole prompt, in an order that depends on `seed`.
fn pages(seed: u32, page_size: u32) -> Vec<u32> {
    let n_pages = PROMPT_TOKENS.div_ceil(page_size) + 8;
    let first = 1 + seed * 100;
    let ascending = first..first + n_pages;
    if seed.is_multiple_of(2) {
        ascending.collect()
    } else {
        ascending.rev().collect()
    }
}

fn chunk(range: Range<u32>) -> souffleur_state::step::StepRow {
    let mut work = prefill(ROW, range.clone(), range.end == PROMPT_TOKENS);
    work.logprobs = all_positions();
    work
}

/// The logits of the prompt alone in its batch, in chunks of `chunk_tokens`.
pub fn alone(executor: &mut CpuExecutor, page_size: u32, chunk_tokens: u32) -> Bits {
    let bits = alone_read_from(executor, page_size, chunk_tokens, 0);
    assert_eq!(bits.len(), PROMPT_TOKENS as usize);
    bits
}

/// Like [`alone`], with logits only from position `first_read` on and at the end: the last layer skips other positions.
pub fn alone_read_from(
    executor: &mut CpuExecutor,
    page_size: u32,
    chunk_tokens: u32,
    first_read: u32,
) -> Bits {
    let mut bits = Bits::new();
    let prompt = tokens(1, PROMPT_TOKENS as usize, VOCAB);
    for first in (0..PROMPT_TOKENS).step_by(chunk_tokens as usize) {
        let mut step = plan(u64::from(first));
        if first == 0 {
            step.starts = vec![start(ROW, &prompt, prompt.len(), &greedy())];
            step.table = vec![append(ROW, pages(3, page_size))];
        }
        let mut work = chunk(first..PROMPT_TOKENS.min(first + chunk_tokens));
        work.logprobs = Some(std::sync::Arc::new(LogprobWish {
            start: Some(first_read),
            ..Default::default()
        }));
        step.rows = vec![work];
        observe(executor, &step, &mut bits);
    }
    let read = PROMPT_TOKENS - first_read;
    assert_eq!(bits.len(), read.max(1) as usize);
    bits
}

/// The logits of the prompt in chunks of 16, with fifteen other rows: some decode, some prefill chunks of other sizes.
pub fn among_others(executor: &mut CpuExecutor) -> Bits {
    let mut bits = Bits::new();
    let others: Vec<u32> = (1..=16).filter(|row| *row != ROW).collect();
    let mut opening = plan(0);
    for &row in &others {
        let prompt = tokens(u64::from(row) + 100, 40 + row as usize, VOCAB);
        opening
            .starts
            .push(start(row, &prompt, prompt.len(), &greedy()));
        opening
            .table
            .push(append(row, 1000 + row * 150..1150 + row * 150));
        let n_tokens = prompt.len() as u32;
        opening.rows.push(if row.is_multiple_of(2) {
            prefill(row, 0..n_tokens, true)
        } else {
            prefill(row, 0..3, false)
        });
    }
    executor.run(&with_states(executor, &opening)).unwrap();
    let prompt = tokens(1, PROMPT_TOKENS as usize, VOCAB);
    for (turn, first) in (0..PROMPT_TOKENS).step_by(16).enumerate() {
        let mut step = plan(turn as u64 + 1);
        if turn == 0 {
            step.starts = vec![start(ROW, &prompt, prompt.len(), &greedy())];
            step.table = vec![append(ROW, pages(3, 1))];
        }
        for &row in &others {
            let (turn, n_tokens) = (turn as u32, 40 + row);
            step.rows.push(if row.is_multiple_of(2) {
                decode(row, n_tokens + turn)
            } else {
                prefill(row, 3 + turn * 5..8 + turn * 5, false)
            });
        }
        step.rows
            .insert(turn * 3, chunk(first..PROMPT_TOKENS.min(first + 16)));
        observe(executor, &step, &mut bits);
    }
    bits
}

/// The logits of the prompt after a prefix of `cached` tokens that another row has computed.
pub fn after_prefix(executor: &mut CpuExecutor, page_size: u32, cached: u32) -> Bits {
    let mut bits = Bits::new();
    let prompt = tokens(1, PROMPT_TOKENS as usize, VOCAB);
    let first_pages = pages(4, page_size);
    let mut step = plan(0);
    step.starts = vec![start(2, &prompt, prompt.len(), &greedy())];
    step.table = vec![append(2, first_pages.iter().copied())];
    step.rows = vec![prefill(2, 0..PROMPT_TOKENS, true)];
    let saved = StateSlot::new(40);
    if executor.keeps_states() {
        step.rows[0].saves.push(StateSave {
            position: cached,
            slot: saved,
        });
    }
    executor.run(&with_states(executor, &step)).unwrap();
    let mut step = plan(1);
    let mut started = start(ROW, &prompt, prompt.len(), &greedy());
    let prefix: std::sync::Arc<[PageId]> = first_pages.iter().copied().map(PageId::new).collect();
    let mut run = PageRun::empty();
    run.push(&prefix, 0..cached / page_size);
    started.prefix = run;
    started.state = executor.keeps_states().then_some(StateStart {
        live: StateSlot::new(41),
        from: Some(saved),
    });
    step.starts = vec![started];
    step.table = vec![append(ROW, pages(9, page_size))];
    step.rows = vec![chunk(cached..PROMPT_TOKENS)];
    observe(executor, &step, &mut bits);
    assert_eq!(bits.len(), (PROMPT_TOKENS - cached) as usize);
    bits
}

pub fn assert_same(got: &Bits, expected: &Bits, what: &str) {
    for (position, bits) in got {
        assert!(
            bits == &expected[position],
            "{what}: logits differ at position {position}"
        );
    }
}

/// All fixtures, or only the quantised ones if another run of this binary tests the same float kernels.
fn uncovered_fixtures() -> Vec<String> {
    let is_quantised = |name: &String| {
        let config = std::fs::read_to_string(fixture(name).join("config.json")).unwrap();
        config.contains("quantization_config")
    };
    let needed = |name: &String| !repeats_floats() || is_quantised(name);
    fixtures().into_iter().filter(needed).collect()
}

struct Model {
    name: String,
    options: CpuOptions,
    executor: CpuExecutor,
    /// The logits of the prompt in one chunk.
    expected: Bits,
}

impl Model {
    fn assert_same(&self, got: &Bits, what: &str) {
        let (name, dtype) = (&self.name, self.options.dtype);
        assert_same(got, &self.expected, &format!("{name}, {dtype:?}, {what}"));
    }
}

fn for_each_model(check: impl Fn(&mut Model)) {
    for name in uncovered_fixtures() {
        for dtype in DTYPES {
            let options = CpuOptions {
                dtype: Some(dtype),
                ..options()
            };
            let mut executor = load(&name, &options);
            let expected = alone(&mut executor, 1, PROMPT_TOKENS);
            check(&mut Model {
                name: name.clone(),
                options,
                executor,
                expected,
            });
        }
    }
}

#[test]
fn chunk_size_does_not_change_a_bit() {
    for_each_model(|model| {
        for chunk_tokens in [1, 3, 16, 17] {
            let got = alone(&mut model.executor, 1, chunk_tokens);
            model.assert_same(&got, &format!("chunks of {chunk_tokens}"));
        }
    });
}

#[test]
fn fifteen_other_sequences_do_not_change_a_bit() {
    for_each_model(|model| {
        let got = among_others(&mut model.executor);
        assert_eq!(got.len(), PROMPT_TOKENS as usize);
        model.assert_same(&got, "among others");
    });
}

#[test]
fn requesting_fewer_logits_does_not_change_a_bit() {
    for_each_model(|model| {
        for (chunk_tokens, first_read) in
            [(PROMPT_TOKENS, PROMPT_TOKENS), (75, 70), (20, 38), (16, 74)]
        {
            let got = alone_read_from(&mut model.executor, 1, chunk_tokens, first_read);
            let what = format!("chunks of {chunk_tokens} read from {first_read}");
            model.assert_same(&got, &what);
        }
    });
}

#[test]
fn page_size_threads_and_cached_prefix_do_not_change_a_bit() {
    for_each_model(|model| {
        for (page_size, threads) in [(1, 2), (16, 1), (16, 2), (64, 3)] {
            let options = CpuOptions {
                page_size,
                threads,
                ..model.options.clone()
            };
            let mut executor = load(&model.name, &options);
            let what = format!("page size {page_size}, {threads} threads");
            let page_size = page_size as u32;
            model.assert_same(&alone(&mut executor, page_size, 20), &what);
            let got = after_prefix(&mut executor, page_size, 64);
            model.assert_same(&got, &format!("{what}, after a prefix"));
        }
    });
}

/// Checks the prompt alone and among others, and decoded tokens, on each number of NUMA nodes.
fn check_nodes(name: &str, options: &CpuOptions, node_counts: &[usize]) {
    let expected = alone(&mut load(name, options), 1, PROMPT_TOKENS);
    for &nodes in node_counts {
        let (quantization, kv) = (options.quantization, options.kv_dtype);
        let what = format!("{name}, {quantization:?}, K/V {kv:?}, {nodes} nodes");
        let on_nodes = CpuOptions {
            // Three nodes have different numbers of threads.
            threads: nodes.next_multiple_of(2),
            numa: Numa::Simulated(nodes),
            ..options.clone()
        };
        let mut executor = load(name, &on_nodes);
        assert_same(&alone(&mut executor, 1, PROMPT_TOKENS), &expected, &what);
        assert_same(&alone(&mut executor, 1, 7), &expected, &what);
        let got = among_others(&mut executor);
        assert_same(&got, &expected, &format!("{what}, among others"));
        check_retraction(&mut executor, &what);
    }
}

#[test]
fn numa_nodes_do_not_change_a_bit() {
    // Nodes divide the outputs of matrices, for every kernel path in the same way.
    if is_repeated() {
        return;
    }
    let in_bf16 = CpuOptions {
        dtype: Some(Dtype::BF16),
        ..options()
    };
    for name in uncovered_fixtures() {
        check_nodes(&name, &in_bf16, &[2, 3, 4]);
    }
    for name in [
        "llama",
        "qwen3-moe",
        "gpt-oss",
        "deepseek-v3",
        "gemma4",
        "lfm2",
        "qwen3-5",
    ] {
        for quantization in [Quantization::Int8, Quantization::Int4] {
            let options = CpuOptions {
                quantization: Some(quantization),
                kv_dtype: Some(KvDtype::Int8),
                ..in_bf16.clone()
            };
            check_nodes(name, &options, &[2, 4]);
        }
    }
}

#[test]
fn decoding_gives_the_same_bits_as_prefilling_the_same_tokens() {
    for name in uncovered_fixtures() {
        for dtype in DTYPES {
            let options = CpuOptions {
                dtype: Some(dtype),
                ..options()
            };
            check_retraction(&mut load(&name, &options), &format!("{name}, {dtype:?}"));
        }
    }
}

/// Decodes after a prompt of 20 tokens and compares with prefills of the output, at once and in parts.
pub fn check_retraction(executor: &mut CpuExecutor, what: &str) {
    let prompt = tokens(5, 20, VOCAB);
    let mut decoded = Bits::new();
    let mut sequence = prompt.clone();
    let mut step = plan(0);
    step.starts = vec![start(ROW, &prompt, prompt.len(), &greedy())];
    step.table = vec![append(ROW, 1..100)];
    step.rows = vec![prefill(ROW, 0..20, true)];
    for n in 0..30 {
        let mut keep = |_, position, logits: &[f32]| {
            decoded.insert(
                position,
                logits.iter().map(|logit| logit.to_bits()).collect(),
            );
        };
        let stated = with_states(executor, &step);
        let output = executor.run_observed(&stated, &mut keep).unwrap();
        sequence.extend(&output.rows[0].tokens);
        step = plan(n + 1);
        step.rows = vec![decode(ROW, 20 + n as u32)];
    }
    // As after a retraction: prompt and output are prefilled together.
    let mut step = plan(100);
    step.starts = vec![start(ROW, &sequence, prompt.len(), &greedy())];
    step.table = vec![append(ROW, (200..300).rev())];
    let mut again = Bits::new();
    for (first, end) in [(0, 33), (33, 34), (34, 50)] {
        step.rows = vec![prefill(ROW, first..end, end as usize == sequence.len())];
        observe(executor, &step, &mut again);
        step.starts.clear();
        step.table.clear();
    }
    let mut whole = Bits::new();
    executor
        .score(&sequence, 512, &mut |position, logits| {
            whole.insert(
                position as u32,
                logits.iter().map(|logit| logit.to_bits()).collect(),
            );
        })
        .unwrap();
    assert_same(&decoded, &whole, &format!("{what}, decode against prefill"));
    assert_same(&again, &whole, &format!("{what}, after a retraction"));
}

#[test]
fn every_instruction_set_is_invariant() {
    // If the instruction set is forced, another run of this test checks all of them.
    if std::env::var_os(ISA_VARIABLE).is_some() {
        return;
    }
    for isa in Isa::available() {
        let variants =
            [None, Some(Quantization::Int8), Some(Quantization::Int4)].map(|quantization| {
                [
                    "llama",
                    "qwen3",
                    "mistral",
                    "qwen3-moe",
                    "deepseek-v2-grouped",
                    "deepseek-v3",
                    "gpt-oss",
                    "gemma2",
                    "gemma3",
                    "gemma4",
                    "gemma4-experts",
                    "lfm2",
                    "qwen3-5",
                    "granite",
                    "olmo2",
                    "phi3-longrope",
                    "ministral3",
                ]
                .map(|name| (name, quantization))
            });
        for (name, quantization) in variants.into_iter().flatten() {
            let options = CpuOptions {
                dtype: Some(Dtype::BF16),
                quantization,
                isa: Some(isa),
                threads: 2,
                ..options()
            };
            let mut executor = load(name, &options);
            let expected = alone(&mut executor, 1, PROMPT_TOKENS);
            let got = alone(&mut executor, 1, 7);
            assert_same(
                &got,
                &expected,
                &format!("{name}, {quantization:?}, {}, chunks of 7", isa.name()),
            );
            let got = among_others(&mut executor);
            assert_same(
                &got,
                &expected,
                &format!("{name}, {quantization:?}, {}, among others", isa.name()),
            );
            let got = alone_read_from(&mut executor, 1, 20, 70);
            assert_same(
                &got,
                &expected,
                &format!("{name}, {quantization:?}, {}, read from 70", isa.name()),
            );
        }
    }
}
