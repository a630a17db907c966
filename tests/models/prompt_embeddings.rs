//! Tests that prompt embeddings give bitwise the same logits as the tokens that they embed.

use std::sync::Arc;

use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_kernels::dtype::Dtype;
use souffleur_request::PromptVectors;
use souffleur_state::sampling::SamplingParams;

use crate::common::{
    all_positions, append, decode, fixture, fixtures, load, options, plan, prefill, start, tokens,
};
use crate::embeddings::embeddings;
use crate::invariance::{Bits, observe};

const ROW: u32 = 7;
/// A row with a prompt of tokens, in the same steps.
const OTHER: u32 = 3;
const PROMPT_TOKENS: u32 = 41;
const CHUNK: u32 = 17;
const DECODES: u32 = 4;
const VOCAB: u32 = 288;

/// Parameters with a frequency penalty, which counts tokens of the output and ignores the prompt.
fn sampling() -> Arc<SamplingParams> {
    Arc::new(SamplingParams {
        temperature: 0.0,
        frequency_penalty: 1.5,
        ..SamplingParams::default()
    })
}

/// The logits' bits of a chunked prompt and of tokens decoded after it, with another row that prefills and decodes.
fn run(executor: &mut CpuExecutor, embeds: Option<&Arc<PromptVectors>>) -> (Bits, Vec<u32>) {
    let (mut bits, mut output) = (Bits::new(), Vec::new());
    let mut prompt = tokens(1, PROMPT_TOKENS as usize, VOCAB);
    if embeds.is_some() {
        // Placeholder tokens, which the executor ignores.
        prompt.fill(0);
    }
    let chunks = (0..PROMPT_TOKENS).step_by(CHUNK as usize);
    let chunks = chunks.map(|first| {
        let end = PROMPT_TOKENS.min(first + CHUNK);
        let mut work = prefill(ROW, first..end, end == PROMPT_TOKENS);
        work.logprobs = all_positions();
        work
    });
    let decodes = (0..DECODES).map(|at| decode(ROW, PROMPT_TOKENS + at));
    for (turn, work) in (0..).zip(chunks.chain(decodes)) {
        let mut step = plan(turn);
        if turn == 0 {
            let mut begun = start(ROW, &prompt, prompt.len(), &sampling());
            begun.vectors = embeds.cloned();
            let other = tokens(9, 20, VOCAB);
            step.starts = vec![start(OTHER, &other, other.len(), &sampling()), begun];
            step.table = vec![append(ROW, (1..100).rev()), append(OTHER, 200..300)];
        }
        let other = match turn {
            0 => prefill(OTHER, 0..20, true),
            _ => decode(OTHER, 19 + turn as u32),
        };
        step.rows = vec![other, work];
        output.extend(observe(executor, &step, &mut bits).rows[1].tokens.iter());
    }
    (bits, output)
}

#[test]
fn embeddings_of_tokens_give_the_same_bits_as_the_tokens() {
    let prompt = tokens(1, PROMPT_TOKENS as usize, VOCAB);
    for name in fixtures() {
        if name == "gemma4" {
            // Gemma 4 looks up per-layer inputs by token.
            continue;
        }
        let mut embeds = embeddings(&fixture(&name), &prompt);
        if name.starts_with("gemma") {
            // Unlike embeddings of tokens, prompt embeddings are not multiplied by the square root of the width.
            let values = embeds
                .values(0..prompt.len())
                .iter()
                .map(|value| 8.0 * value);
            embeds = Arc::new(PromptVectors::new(64, values.collect()).unwrap());
        }
        // The stored type and f32 both represent the embeddings exactly.
        for dtype in [None, Some(Dtype::F32)] {
            let options = CpuOptions { dtype, ..options() };
            let expected = run(&mut load(&name, &options), None);
            let got = run(&mut load(&name, &options), Some(&embeds));
            assert_eq!(got.0.len(), (PROMPT_TOKENS + DECODES) as usize, "{name}");
            assert!(got == expected, "{name} in {dtype:?}");
        }
    }
}

#[test]
fn a_row_releases_its_prompt_embeddings_once_all_are_computed() {
    let prompt = tokens(1, PROMPT_TOKENS as usize, VOCAB);
    let embeds = embeddings(&fixture("llama"), &prompt);
    let mut executor = load("llama", &options());
    run(&mut executor, Some(&embeds));
    assert_eq!(Arc::strong_count(&embeds), 1);
}
