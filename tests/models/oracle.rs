//! Tests of every family and RoPE variant against results of transformers (tools/oracle).

use std::path::PathBuf;
use std::sync::Arc;

use safetensors::SafeTensors;
use serde::Deserialize;
use souffleur_executor::logits::{LogitsRequest, logits, write_logits};
use souffleur_kernels::cpu::Isa;
use souffleur_kernels::dtype::{Dtype, Quantization};
use souffleur_state::sampling::SamplingParams;

use crate::common::{
    append, decode, fixture, fixtures, greedy, load, options, plan, prefill, start, with_states,
};
use crate::kernel_paths::is_repeated;

#[derive(Deserialize)]
pub struct Oracle {
    prompts: Vec<Prompt>,
}

impl Oracle {
    pub fn has_experts(&self) -> bool {
        self.prompts[0].router_margins.is_some()
    }
}

#[derive(Deserialize)]
struct Prompt {
    tokens: Vec<u32>,
    bf16_max_abs_error: f32,
    bf16_median_error: f32,
    /// The greedy output, and how much the logit of each of its tokens exceeds all others.
    greedy: Vec<u32>,
    margins: Vec<f32>,
    /// How far each token of the prompt is from the choice of other experts, and the effect of rounding.
    router_margins: Option<Vec<f32>>,
    router_rounding: Option<f32>,
}

impl Prompt {
    /// Whether rounding cannot change the choice of experts at a position; always true without experts.
    fn has_clear_experts(&self, position: usize) -> bool {
        match (&self.router_margins, self.router_rounding) {
            (Some(margins), Some(rounding)) => margins[position] > rounding,
            _ => true,
        }
    }

    /// The positions where rounding cannot change the choice of experts.
    fn clear(&self) -> Vec<usize> {
        let all = 0..self.tokens.len();
        all.filter(|at| self.has_clear_experts(*at)).collect()
    }

    /// Asserts that errors at positions with clear experts are at most twice the errors of transformers in bf16: both
    /// the largest error and the median over positions of a position's largest error, which outliers hardly affect.
    fn check_rounded(&self, ours: &[Vec<f32>], expected: &[Vec<f32>], about: &str) {
        let clear = self.clear();
        let pairs = clear.iter().map(|at| (&ours[*at], &expected[*at]));
        let errors = pairs
            .map(|(ours, expected)| largest(ours.iter().zip(expected).map(|(a, b)| (a - b).abs())));
        let mut errors: Vec<f32> = errors.collect();
        errors.sort_by(f32::total_cmp);
        // The lower median, as in torch.
        let (median, worst) = (errors[(errors.len() - 1) / 2], errors[errors.len() - 1]);
        for (what, ours, theirs) in [
            ("largest", worst, self.bf16_max_abs_error),
            ("median", median, self.bf16_median_error),
        ] {
            eprintln!("{about}: {what} error {ours:.3}, transformers has {theirs:.3}");
            assert!(
                ours <= 2.0 * theirs,
                "{about}: {what} error {ours}, transformers has {theirs}"
            );
        }
    }
}

impl Oracle {
    /// Checks that at least four fifths of the tokens have clear experts.
    fn check_clear(&self, name: &str) {
        let clear: usize = self.prompts.iter().map(|prompt| prompt.clear().len()).sum();
        let all: usize = self.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        assert!(
            5 * clear >= 4 * all,
            "{name}: {clear} of {all} tokens have clear experts"
        );
    }
}

/// Prompts with the oracle's f32 logits, `[position][vocab]`.
pub fn oracle(name: &str) -> (Oracle, Vec<Vec<Vec<f32>>>) {
    let file = fixture(name).join("oracle.json");
    let oracle: Oracle = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let bytes = std::fs::read(fixture(name).join("oracle.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let of_prompt = |index: usize| {
        let view = tensors.tensor(&format!("logits.{index}")).unwrap();
        let words = view.data().chunks_exact(4);
        let values: Vec<f32> = words
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        values
            .chunks_exact(view.shape()[1])
            .map(<[f32]>::to_vec)
            .collect()
    };
    let logits = (0..oracle.prompts.len()).map(of_prompt).collect();
    (oracle, logits)
}

fn ours(name: &str, dtype: Dtype, oracle: &Oracle) -> Vec<Vec<Vec<f32>>> {
    run(&request(name, dtype), oracle)
}

pub fn request(name: &str, dtype: Dtype) -> LogitsRequest {
    LogitsRequest {
        model: fixture(name),
        dtype: Some(dtype),
        kv_dtype: None,
        quantization: None,
        threads: 2,
        input: PathBuf::new(),
        output: PathBuf::new(),
    }
}

pub fn run(request: &LogitsRequest, oracle: &Oracle) -> Vec<Vec<Vec<f32>>> {
    let prompts: Vec<Vec<u32>> = oracle
        .prompts
        .iter()
        .map(|prompt| prompt.tokens.clone())
        .collect();
    let mut seen: Vec<Vec<Vec<f32>>> = vec![Vec::new(); prompts.len()];
    logits(request, &prompts, &mut |prompt, position, logits| {
        assert_eq!(seen[prompt].len(), position);
        seen[prompt].push(logits.to_vec());
    })
    .unwrap();
    seen
}

/// The largest error; NaN if any error is NaN.
fn max_abs_error(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    largest(
        a.iter()
            .flatten()
            .zip(b.iter().flatten())
            .map(|(a, b)| (a - b).abs()),
    )
}

fn largest(errors: impl Iterator<Item = f32>) -> f32 {
    errors.fold(0.0, |worst, error| {
        if error > worst || error.is_nan() {
            error
        } else {
            worst
        }
    })
}

#[test]
fn f32_logits_match_at_every_prompt_position() {
    for name in fixtures() {
        let (oracle, expected) = oracle(&name);
        let ours = ours(&name, Dtype::F32, &oracle);
        for (prompt, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
            assert_eq!(ours.len(), expected.len(), "{name}, prompt {prompt}");
            let pairs = ours.iter().flatten().zip(expected.iter().flatten());
            let worst =
                largest(pairs.map(|(ours, expected)| {
                    (ours - expected).abs() / (1e-4 + 1e-4 * expected.abs())
                }));
            assert!(
                worst <= 1.0,
                "{name}, prompt {prompt}: error is {worst} times the limit"
            );
        }
    }
}

#[test]
fn bf16_logits_err_at_most_twice_as_much_as_transformers() {
    for name in fixtures() {
        let (oracle, expected) = oracle(&name);
        oracle.check_clear(&name);
        let ours = ours(&name, Dtype::BF16, &oracle);
        for (index, prompt) in oracle.prompts.iter().enumerate() {
            let about = format!("{name}, prompt {index}");
            prompt.check_rounded(&ours[index], &expected[index], &about);
        }
    }
}

/// The error of an int8 weight or activation is at most 1/254 of the largest in its group of 128: less than a percent
/// of a product, which the layers of these random models amplify to a few percent of a logit.
#[test]
fn int8_logits_stay_near_those_of_bf16() {
    for name in fixtures() {
        let (oracle, _) = oracle(&name);
        let bf16 = ours(&name, Dtype::BF16, &oracle);
        let int8 = LogitsRequest {
            quantization: Some(Quantization::Int8),
            ..request(&name, Dtype::BF16)
        };
        let int8 = run(&int8, &oracle);
        let (mut errors, mut squares) = (0.0, 0.0);
        for (a, b) in int8
            .iter()
            .flatten()
            .flatten()
            .zip(bf16.iter().flatten().flatten())
        {
            errors += f64::from(a - b).powi(2);
            squares += f64::from(*b).powi(2);
        }
        let relative = (errors / squares).sqrt();
        eprintln!("{name}: relative error of int8 logits {relative:.4}");
        // Rounding to int8 also makes some tokens choose other experts.
        let limit = if oracle.has_experts() { 0.15 } else { 0.08 };
        assert!(relative <= limit, "{name}: {relative}");
        assert!(relative > 0.0, "{name}: nothing was quantised");
    }
}

#[test]
fn portable_f32_agrees_with_every_other_path_to_a_hundred_thousandth() {
    if is_repeated() {
        return;
    }
    for name in fixtures() {
        let (oracle, _) = oracle(&name);
        let by_isa = Isa::available().into_iter().map(|isa| {
            let options = souffleur_executor::cpu::CpuOptions {
                dtype: Some(Dtype::F32),
                isa: Some(isa),
                ..options()
            };
            let mut seen: Vec<Vec<f32>> = Vec::new();
            let mut executor = load(&name, &options);
            for prompt in &oracle.prompts {
                executor
                    .score(&prompt.tokens, 512, &mut |_, logits| {
                        seen.push(logits.to_vec());
                    })
                    .unwrap();
            }
            seen
        });
        let by_isa: Vec<_> = by_isa.collect();
        for (isa, seen) in Isa::available().iter().zip(&by_isa).skip(1) {
            for (portable, other) in by_isa[0].iter().zip(seen) {
                let scale = largest(portable.iter().map(|x| x.abs()));
                let error = largest(portable.iter().zip(other).map(|(a, b)| (a - b).abs()));
                assert!(
                    error <= 1e-5 * scale,
                    "{name}, {}: {error} of {scale}",
                    isa.name()
                );
            }
        }
    }
}

#[test]
fn f16_logits_err_at_most_twice_as_much_as_transformers_in_bf16() {
    for name in fixtures() {
        let (oracle, expected) = oracle(&name);
        let ours = ours(&name, Dtype::F16, &oracle);
        for (index, prompt) in oracle.prompts.iter().enumerate() {
            let about = format!("{name}, prompt {index}, in f16");
            prompt.check_rounded(&ours[index], &expected[index], &about);
        }
    }
}

#[test]
fn greedy_tokens_match_with_teacher_forcing_where_the_margin_is_clear() {
    for name in fixtures() {
        let (oracle, _) = oracle(&name);
        for (index, prompt) in oracle.prompts.iter().enumerate() {
            let mut executor = load(
                &name,
                &souffleur_executor::cpu::CpuOptions {
                    dtype: Some(Dtype::F32),
                    ..options()
                },
            );
            let forced: Vec<u32> = prompt
                .tokens
                .iter()
                .chain(&prompt.greedy)
                .copied()
                .collect();
            let mut best = Vec::new();
            executor
                .score(&forced, 512, &mut |_, logits| {
                    let ranked = logits
                        .iter()
                        .enumerate()
                        .max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
                    best.push(ranked.unwrap().0 as u32);
                })
                .unwrap();
            let predicted = &best[prompt.tokens.len() - 1..];
            for (step, (token, margin)) in prompt.greedy.iter().zip(&prompt.margins).enumerate() {
                if *margin > 1e-3 {
                    assert_eq!(
                        predicted[step], *token,
                        "{name}, prompt {index}, token {step}, margin {margin}"
                    );
                }
            }
        }
    }
}

#[test]
fn decoding_step_by_step_follows_the_oracle_until_its_first_unclear_token() {
    for name in fixtures() {
        let (oracle, _) = oracle(&name);
        let mut executor = load(
            &name,
            &souffleur_executor::cpu::CpuOptions {
                dtype: Some(Dtype::F32),
                ..options()
            },
        );
        for (index, prompt) in oracle.prompts.iter().enumerate() {
            let row = index as u32 + 1;
            let n_prompt = prompt.tokens.len() as u32;
            let mut step = plan(0);
            // The longest possible length of the sequence decides its rope frequencies.
            let sampling = Arc::new(SamplingParams {
                max_new_tokens: prompt.greedy.len() as u32,
                ..(*greedy()).clone()
            });
            step.starts = vec![start(row, &prompt.tokens, prompt.tokens.len(), &sampling)];
            step.table = vec![append(row, row * 500..row * 500 + n_prompt + 32)];
            step.rows = vec![prefill(row, 0..n_prompt, true)];
            for (n, (token, margin)) in prompt.greedy.iter().zip(&prompt.margins).enumerate() {
                let output = {
                    let step = with_states(&executor, &step);
                    souffleur_executor::Executor::run(&mut executor, &step).unwrap()
                };
                if *margin <= 1e-3 {
                    break;
                }
                assert_eq!(
                    output.rows[0].tokens.as_slice(),
                    [*token],
                    "{name}, prompt {index}, token {n}"
                );
                step = plan(n as u64 + 1);
                step.rows = vec![decode(row, n_prompt + n as u32)];
            }
        }
    }
}

#[test]
fn every_instruction_set_agrees_with_the_oracle_and_fma_ones_with_each_other() {
    let (oracle, expected) = oracle("llama");
    let prompt = &oracle.prompts[3];
    let mut with_fma = Vec::new();
    for isa in Isa::available() {
        let options = souffleur_executor::cpu::CpuOptions {
            dtype: Some(Dtype::F32),
            isa: Some(isa),
            ..options()
        };
        let mut seen = Vec::new();
        load("llama", &options)
            .score(&prompt.tokens, 512, &mut |_, logits| {
                seen.push(logits.to_vec())
            })
            .unwrap();
        let error = max_abs_error(&seen, &expected[3]);
        assert!(error <= 1e-4, "{}: {error}", isa.name());
        if isa != Isa::Portable {
            with_fma.push(seen);
        }
    }
    assert!(
        with_fma.windows(2).all(|pair| pair[0] == pair[1]),
        "avx2 and avx512 differ"
    );
}

#[test]
fn write_logits_writes_a_tensor_for_each_prompt_of_the_input() {
    let dir = tempfile::tempdir().unwrap();
    let request = LogitsRequest {
        model: fixture("qwen2"),
        dtype: Some(Dtype::F32),
        kv_dtype: None,
        quantization: None,
        threads: 1,
        input: dir.path().join("in.json"),
        output: dir.path().join("out.safetensors"),
    };
    std::fs::write(&request.input, r#"{"prompts": [[1, 2, 3], [9]]}"#).unwrap();
    write_logits(&request).unwrap();
    let bytes = std::fs::read(&request.output).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.tensor("logits.0").unwrap().shape(), [3, 288]);
    assert_eq!(tensors.tensor("logits.1").unwrap().shape(), [1, 288]);
    for (broken, reason) in [
        ("[1]", "in.json"),
        (r#"{"prompts": [[288]]}"#, "vocabulary"),
        (r#"{"prompts": [[]]}"#, "0 tokens"),
    ] {
        std::fs::write(&request.input, broken).unwrap();
        let error = write_logits(&request).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
