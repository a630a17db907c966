//! Tests that embeddings of prompts agree with the logits of transformers, and do not depend on chunks.

use std::sync::Arc;

use safetensors::SafeTensors;
use souffleur_executor::Executor;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_kernels::dtype::Dtype;
use souffleur_model::config::ModelConfig;
use souffleur_request::Pooling;

use crate::common::{
    append, decode, fixture, fixtures, greedy, load, options, plan, prefill, start, tokens,
    with_states,
};
use crate::embeddings::matrix;

const ROW: u32 = 7;
const OTHER: u32 = 3;
const POOLINGS: [Pooling; 2] = [Pooling::Last, Pooling::Mean];

/// The embedding of a prompt in chunks, with another row that decodes.
fn embed(executor: &mut CpuExecutor, prompt: &[u32], pooling: Pooling, chunk: u32) -> Arc<[f32]> {
    let n_tokens = prompt.len() as u32;
    let mut embedding = None;
    for (turn, first) in (0..).zip((0..n_tokens).step_by(chunk as usize)) {
        let mut step = plan(u64::from(turn));
        let other = match turn {
            0 => {
                let mut begun = start(ROW, prompt, prompt.len(), &greedy());
                begun.pooling = Some(pooling);
                let other = tokens(9, 20, 288);
                step.starts = vec![start(OTHER, &other, other.len(), &greedy()), begun];
                step.table = vec![append(ROW, (1..200).rev()), append(OTHER, 300..600)];
                prefill(OTHER, 0..20, true)
            }
            turn => decode(OTHER, 19 + turn),
        };
        step.rows = vec![
            other,
            prefill(ROW, first..n_tokens.min(first + chunk), false),
        ];
        let step = with_states(executor, &step);
        let mut output = executor.run(&step).unwrap();
        assert_eq!(output.rows[0].tokens.len(), 1, "the other row samples");
        assert!(output.rows[1].tokens.is_empty());
        assert!(embedding.is_none(), "the embedding came too early");
        let read = output.rows[1].logprobs.take();
        embedding = read.and_then(|read| read.embedding);
    }
    embedding.expect("the embedding comes with the last token")
}

/// The tokens of the second longest prompt, and the logits of transformers for it, by position.
fn oracle(name: &str) -> (Vec<u32>, Vec<Vec<f32>>) {
    const PROMPT: usize = 2;
    let text = std::fs::read(fixture(name).join("oracle.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let tokens = json["prompts"][PROMPT]["tokens"].as_array().unwrap().iter();
    let tokens = tokens.map(|token| token.as_u64().unwrap() as u32).collect();
    let bytes = std::fs::read(fixture(name).join("oracle.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let view = tensors.tensor(&format!("logits.{PROMPT}")).unwrap();
    let words = view.data().chunks_exact(4);
    let values: Vec<f32> = words
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    let rows = values.chunks_exact(view.shape()[1]);
    (tokens, rows.map(<[f32]>::to_vec).collect())
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn embeddings_agree_with_the_logits_of_transformers() {
    for name in fixtures() {
        if !fixture(&name).join("oracle.json").exists() {
            continue;
        }
        let (prompt, logits) = oracle(&name);
        let folder = fixture(&name);
        let head = matrix(&folder, "lm_head.weight");
        let (head, _) = head
            .or_else(|| matrix(&folder, "embed_tokens.weight"))
            .unwrap();
        let gemma = ModelConfig::read(&folder).unwrap().gemma;
        let cap = gemma.and_then(|gemma| gemma.logits_cap).map(f64::from);
        let uncapped = |logit: f32| {
            let logit = f64::from(logit);
            cap.map_or(logit, |cap| cap * (logit / cap).atanh())
        };
        let options = CpuOptions {
            dtype: Some(Dtype::F32),
            ..options()
        };
        for pooling in POOLINGS {
            let embedding = embed(&mut load(&name, &options), &prompt, pooling, 10);
            let length: f64 = embedding.iter().map(|v| f64::from(*v).powi(2)).sum();
            assert!((length - 1.0).abs() < 1e-5, "{name}: length {length}");
            // The head is linear, except for softcaps: it maps the mean of states to the mean of logits.
            let rows = head.chunks_exact(embedding.len());
            let ours: Vec<f64> = rows
                .map(|row| {
                    row.iter()
                        .zip(&*embedding)
                        .map(|(a, b)| f64::from(a * b))
                        .sum()
                })
                .collect();
            let among = match pooling {
                Pooling::Last => &logits[logits.len() - 1..],
                Pooling::Mean => &logits[..],
            };
            let theirs: Vec<f64> = (0..ours.len())
                .map(|token| among.iter().map(|row| uncapped(row[token])).sum())
                .collect();
            let cosine = cosine(&ours, &theirs);
            assert!(cosine > 0.9999, "{name}, {pooling:?}: {cosine}");
        }
    }
}

#[test]
fn an_embedding_does_not_depend_on_the_chunks_of_its_prompt() {
    let prompt = tokens(1, 75, 288);
    for name in ["llama", "qwen3", "qwen3-5", "deepseek-v2"] {
        for pooling in POOLINGS {
            let mut executor = load(name, &options());
            let whole = embed(&mut executor, &prompt, pooling, 75);
            // Chunks of one token, of a few, and of all but one.
            for chunk in [1, 7, 74] {
                let cut = embed(&mut load(name, &options()), &prompt, pooling, chunk);
                assert_eq!(cut, whole, "{name}, {pooling:?}, chunks of {chunk}");
            }
        }
    }
}
