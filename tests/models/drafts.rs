//! Tests that decodes with drafts, right and wrong ones, have the tokens, log probabilities and logits of decodes without
//! drafts, bit for bit, on each kernel path.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use souffleur_base::ids::SeqId;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_kernels::cpu::{ISA_VARIABLE, Isa};
use souffleur_kernels::dtype::{Dtype, Quantization};
use souffleur_state::pool::kv_layout::KvDtype;
use souffleur_state::sampling::{LogprobWish, SamplingParams, TokenLogprobs};
use souffleur_state::step::{RowWork, StepPlan, StepRow};

use crate::common::{
    append, decode, fixture, fixtures, load_from, options, plan, prefill, start, tokens,
    with_states,
};
use crate::invariance::VOCAB;
use crate::kernel_paths::repeats_floats;
use crate::kv_int8::MODELS as WITH_INT8;
use crate::scripted_drafts::{Script, ScriptedDrafts, Tally};

const ROWS: u32 = 5;
const ROOM: u32 = 8;
const OUTPUT: usize = 28;
const PAGES: u32 = 100;

const SCRIPTS: [Script; 7] = [
    Script::Random(0.7),
    Script::Random(0.95),
    Script::WrongAt(6),
    Script::Random(0.3),
    Script::Random(1.0),
    Script::WrongAt(1),
    Script::Random(0.0),
];

/// The output of one row.
#[derive(Default)]
struct Output {
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    /// The bits of the logits by position.
    logits: BTreeMap<u32, Vec<u32>>,
}

fn prompt(row: u32) -> Vec<u32> {
    tokens(u64::from(row) + 40, 9 + 7 * row as usize, VOCAB)
}

/// Greedy and random sampling in turn, with penalties.
fn sampling(row: u32) -> Arc<SamplingParams> {
    let mut sampling = SamplingParams {
        sampling_seed: Some(u64::from(row)),
        max_new_tokens: OUTPUT as u32,
        ignore_eos: true,
        speculative_num_draft_tokens: Some(ROOM),
        ..Default::default()
    };
    match row % 2 {
        0 => sampling.temperature = 0.0,
        _ => {
            sampling.top_p = 0.95;
            sampling.repetition_penalty = 1.1;
            sampling.frequency_penalty = 0.3;
        }
    }
    Arc::new(sampling)
}

fn opening(rows: std::ops::Range<u32>, page_size: u32) -> StepPlan {
    let mut step = plan(0);
    for row in rows {
        let prompt = prompt(row);
        let n_tokens = prompt.len() as u32;
        step.starts
            .push(start(row, &prompt, prompt.len(), &sampling(row)));
        let first = 1 + row * PAGES;
        let pages = (n_tokens + OUTPUT as u32 + ROOM).div_ceil(page_size);
        step.table.push(append(row, first..first + pages));
        step.rows
            .push(with_logprobs(prefill(row, 0..n_tokens, true)));
    }
    step
}

/// Wishes the log probabilities of the output.
fn with_logprobs(mut work: StepRow) -> StepRow {
    work.logprobs = Some(Arc::new(LogprobWish {
        top: 3,
        ..Default::default()
    }));
    work
}

/// Runs rows together until each has its whole output; each decode has room for `room` query tokens.
fn run(
    executor: &mut CpuExecutor,
    rows: std::ops::Range<u32>,
    (room, page_size): (u32, u32),
    tally: &Tally,
) -> Vec<Output> {
    let first = rows.start;
    let mut outputs: Vec<Output> = rows.clone().map(|_| Output::default()).collect();
    let mut step = opening(rows.clone(), page_size);
    let mut number = 0;
    while !step.rows.is_empty() {
        let mut keep = |seq: SeqId, position: u32, logits: &[f32]| {
            let index = seq.get() as usize - first as usize;
            let bits = logits.iter().map(|logit| logit.to_bits()).collect();
            // A later step overwrites the logits after a rejected draft.
            outputs[index].logits.insert(position, bits);
        };
        let stated = with_states(executor, &step);
        let results = executor.run_observed(&stated, &mut keep).unwrap().rows;
        for result in results {
            tally.add(&result);
            let output = &mut outputs[result.seq.get() as usize - first as usize];
            output.tokens.extend(&result.tokens);
            let logprobs = result.logprobs.unwrap();
            assert_eq!(logprobs.output.len(), result.tokens.len());
            output.logprobs.extend(logprobs.output);
        }
        number += 1;
        step = plan(number);
        for row in rows.clone() {
            let known = outputs[(row - first) as usize].tokens.len();
            if known < OUTPUT {
                let mut work = decode(row, (prompt(row).len() + known) as u32 - 1);
                if let RowWork::Decode { room: of_row, .. } = &mut work.work {
                    *of_row = room.min((OUTPUT - known) as u32);
                }
                step.rows.push(with_logprobs(work));
            }
        }
    }
    for (output, row) in outputs.iter_mut().zip(rows) {
        // Logits after a draft that the last step rejected belong to no token.
        let read = prompt(row).len() + OUTPUT - 1;
        output
            .logits
            .retain(|position, _| (*position as usize) < read);
    }
    outputs
}

/// Compares all rows in one batch, with drafts, with each row alone and without drafts.
pub fn check_drafts(path: &Path, options: &CpuOptions, script: Script, what: &str) -> Tally {
    let page_size = options.page_size as u32;
    let mut plain = load_from(path, options);
    let drafts = ScriptedDrafts::new(script, 7, VOCAB);
    let none = Tally::default();
    let mut expected = Vec::new();
    for row in 1..=ROWS {
        let alone = run(&mut plain, row..row + 1, (1, page_size), &none);
        drafts.learn(&prompt(row), u64::from(row), &alone[0].tokens);
        expected.extend(alone);
    }
    assert_eq!(none.totals(), (0, 0), "{what}: drafts without room");
    let mut speculating = load_from(
        path,
        &CpuOptions {
            speculation: Some(drafts.speculation()),
            ..options.clone()
        },
    );
    let tally = Tally::default();
    let got = run(&mut speculating, 1..ROWS + 1, (ROOM, page_size), &tally);
    for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let what = format!("{what}, {script:?}, row {index}");
        assert_eq!(got.tokens, expected.tokens, "{what}");
        assert_eq!(got.logprobs, expected.logprobs, "{what}");
        let positions = |output: &Output| output.logits.keys().copied().collect::<Vec<u32>>();
        assert_eq!(positions(got), positions(expected), "{what}");
        for (position, bits) in &got.logits {
            assert!(
                bits == &expected.logits[position],
                "{what}: logits differ at position {position}"
            );
        }
    }
    let (accepted, rejected) = tally.totals();
    let has_right = !matches!(script, Script::Random(0.0) | Script::WrongAt(0));
    assert_eq!(
        accepted > 0,
        has_right,
        "{what}, {script:?}: accepted drafts"
    );
    let has_wrong = !matches!(script, Script::Random(1.0));
    assert_eq!(
        rejected > 0,
        has_wrong,
        "{what}, {script:?}: rejected drafts"
    );
    tally
}

#[test]
fn drafts_change_no_bit_in_any_model() {
    if repeats_floats() {
        return;
    }
    let all = Tally::default();
    for (index, name) in fixtures().into_iter().enumerate() {
        let has_int8 = index % 2 == 1 && WITH_INT8.contains(&name.as_str());
        let options = CpuOptions {
            dtype: Some([Dtype::BF16, Dtype::F32, Dtype::F16][index % 3]),
            kv_dtype: has_int8.then_some(KvDtype::Int8),
            page_size: [1, 16][index % 2],
            threads: 1 + index % 2,
            ..options()
        };
        let script = SCRIPTS[index % SCRIPTS.len()];
        all.merge(&check_drafts(&fixture(&name), &options, script, &name));
    }
    all.assert_both_at_each(ROOM as usize - 1, "all models");
}

#[test]
fn drafts_change_no_bit_for_any_instruction_set() {
    // If the instruction set is forced, another run of this test checks all of them.
    if std::env::var_os(ISA_VARIABLE).is_some() {
        return;
    }
    for isa in Isa::available() {
        let names = ["qwen3", "qwen3-moe", "deepseek-v3", "gpt-oss", "qwen3-5"];
        for (index, name) in names.into_iter().enumerate() {
            for quantization in [None, Some(Quantization::Int8), Some(Quantization::Int4)] {
                let options = CpuOptions {
                    dtype: Some(Dtype::BF16),
                    kv_dtype: index.is_multiple_of(2).then_some(KvDtype::Int8),
                    quantization,
                    isa: Some(isa),
                    threads: 2,
                    ..options()
                };
                let what = format!("{name}, {quantization:?}, {}", isa.name());
                check_drafts(&fixture(name), &options, Script::Random(0.8), &what);
            }
        }
    }
}
