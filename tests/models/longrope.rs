//! Tests that a sequence's maximum length, and not its batch, selects the short or long frequencies of LongRoPE.

use std::sync::Arc;

use souffleur_base::ids::SeqId;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_kernels::dtype::Dtype;
use souffleur_state::sampling::SamplingParams;

use crate::common::{
    all_positions, append, decode, greedy, load, options, plan, prefill, start, tokens,
};

/// The original context of the fixture.
const ORIGINAL: u32 = 32;
const PROMPT_TOKENS: u32 = 20;
const VOCAB: u32 = 288;

fn executor() -> CpuExecutor {
    let options = CpuOptions {
        dtype: Some(Dtype::BF16),
        ..options()
    };
    load("phi3-longrope", &options)
}

fn at_most(max_new_tokens: u32) -> Arc<SamplingParams> {
    Arc::new(SamplingParams {
        max_new_tokens,
        ..(*greedy()).clone()
    })
}

/// The bits of the logits of each row. All rows run together: the prompt in chunks, then four decoded tokens.
fn bits(rows: &[(u32, u32)], chunk: u32) -> Vec<Vec<Vec<u32>>> {
    let mut executor = executor();
    let prompt = tokens(3, PROMPT_TOKENS as usize, VOCAB);
    let mut seen = vec![Vec::new(); rows.len()];
    let mut keep = |seq: SeqId, _: u32, logits: &[f32]| {
        let is_row = |(row, _): &(u32, u32)| SeqId::new(u64::from(*row)) == seq;
        let index = rows.iter().position(is_row).unwrap();
        let bits: Vec<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
        seen[index].push(bits);
    };
    let mut number = 0;
    for first in (0..PROMPT_TOKENS).step_by(chunk as usize) {
        let end = PROMPT_TOKENS.min(first + chunk);
        let mut step = plan(number);
        for (row, max_new_tokens) in rows {
            if first == 0 {
                let sampling = at_most(*max_new_tokens);
                step.starts
                    .push(start(*row, &prompt, prompt.len(), &sampling));
                step.table.push(append(*row, row * 100..row * 100 + 40));
            }
            let mut work = prefill(*row, first..end, end == PROMPT_TOKENS);
            work.logprobs = all_positions();
            step.rows.push(work);
        }
        executor.run_observed(&step, &mut keep).unwrap();
        number += 1;
    }
    for position in PROMPT_TOKENS..PROMPT_TOKENS + 4 {
        let mut step = plan(number);
        step.rows = rows.iter().map(|(row, _)| decode(*row, position)).collect();
        executor.run_observed(&step, &mut keep).unwrap();
        number += 1;
    }
    seen
}

#[test]
fn the_maximum_length_decides_and_other_rows_do_not() {
    let short = bits(&[(1, ORIGINAL - PROMPT_TOKENS)], PROMPT_TOKENS);
    let long = bits(&[(1, ORIGINAL - PROMPT_TOKENS + 1)], PROMPT_TOKENS);
    assert_eq!(short[0][0], long[0][0], "position 0 is not rotated");
    assert_ne!(short[0][1], long[0][1]);
    assert_eq!(short, bits(&[(1, 4)], 7), "a shorter output");
    assert_eq!(long, bits(&[(1, 200)], 3), "a longer output");
    for chunk in [1, 6, PROMPT_TOKENS] {
        let rows = [(3, 200), (1, 4), (4, 13), (2, 12)];
        let got = bits(&rows, chunk);
        for (index, expected) in [(0, &long), (1, &short), (2, &long), (3, &short)] {
            assert!(got[index] == expected[0], "row {index}, chunks of {chunk}");
        }
    }
}
