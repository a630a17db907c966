//! Tests that with `--kv-cache-dtype int8` logits stay close to those with unquantised KV, and are batch-invariant.

use souffleur_executor::cpu::{CpuOptions, describe};
use souffleur_executor::logits::LogitsRequest;
use souffleur_kernels::cpu::{ISA_VARIABLE, Isa};
use souffleur_kernels::dtype::Dtype;
use souffleur_model::loader::LoadFormat;
use souffleur_state::pool::kv_layout::KvDtype;

use crate::common::{fixture, fixtures, load, options};
use crate::invariance::{
    PROMPT_TOKENS, after_prefix, alone, alone_read_from, among_others, assert_same,
};
use crate::oracle::{oracle, request, run};

/// Models with different kinds of attention: groups of heads, windows, latents, sinks, gates, states.
pub const MODELS: [&str; 12] = [
    "llama",
    "qwen2-window",
    "qwen3",
    "mistral",
    "mixtral-window",
    "qwen3-moe",
    "deepseek-v2-grouped",
    "deepseek-v3",
    "glm4-moe-lite",
    "gpt-oss",
    "lfm2-moe",
    "qwen3-5",
];

fn with(dtype: Dtype) -> CpuOptions {
    CpuOptions {
        dtype: Some(dtype),
        kv_dtype: Some(KvDtype::Int8),
        ..options()
    }
}

#[test]
fn int8_kv_does_not_depend_on_chunks_batches_pages_prefixes_or_threads() {
    for name in MODELS {
        let options = with(Dtype::BF16);
        let mut executor = load(name, &options);
        let expected = alone(&mut executor, 1, PROMPT_TOKENS);
        for chunk_tokens in [1, 17] {
            let got = alone(&mut executor, 1, chunk_tokens);
            assert_same(
                &got,
                &expected,
                &format!("{name}, chunks of {chunk_tokens}"),
            );
        }
        let got = among_others(&mut executor);
        assert_same(&got, &expected, &format!("{name}, among others"));
        for (page_size, threads) in [(1, 2), (16, 1), (64, 3)] {
            let options = CpuOptions {
                page_size,
                threads,
                ..options.clone()
            };
            let what = format!("{name}, page size {page_size}, {threads} threads");
            let (mut executor, page_size) = (load(name, &options), page_size as u32);
            let got = alone(&mut executor, page_size, 20);
            assert_same(&got, &expected, &what);
            let got = after_prefix(&mut executor, page_size, 64);
            assert_same(&got, &expected, &format!("{what}, after a prefix"));
        }
    }
}

#[test]
fn int8_kv_is_invariant_on_every_instruction_set() {
    // If the instruction set is forced, another run of this test checks all of them.
    if std::env::var_os(ISA_VARIABLE).is_some() {
        return;
    }
    for isa in Isa::available() {
        for name in MODELS {
            let options = CpuOptions {
                isa: Some(isa),
                threads: 2,
                ..with(Dtype::F32)
            };
            let what = |how: &str| format!("{name}, {}, {how}", isa.name());
            let mut executor = load(name, &options);
            let expected = alone(&mut executor, 1, PROMPT_TOKENS);
            let got = alone(&mut executor, 1, 1);
            assert_same(&got, &expected, &what("token by token"));
            let got = among_others(&mut executor);
            assert_same(&got, &expected, &what("among others"));
            let got = alone_read_from(&mut executor, 1, 20, 70);
            assert_same(&got, &expected, &what("read from 70"));
        }
    }
}

fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().fold(f32::MIN, |max, logit| max.max(*logit));
    let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
    let shift = f64::from(max) + sum.ln();
    logits.iter().map(|x| f64::from(*x) - shift).collect()
}

/// The mean and the largest error, over all positions, of the log probability that `other` gives to the token that
/// `plain` ranks first.
fn errors(plain: &[Vec<Vec<f32>>], other: &[Vec<Vec<f32>>]) -> (f64, f64) {
    let pairs = plain.iter().flatten().zip(other.iter().flatten());
    let errors: Vec<f64> = pairs
        .map(|(plain, other)| {
            let (plain, other) = (log_probabilities(plain), log_probabilities(other));
            let best = (0..plain.len()).max_by(|a, b| plain[*a].total_cmp(&plain[*b]));
            let best = best.expect("there is a vocabulary");
            (plain[best] - other[best]).abs()
        })
        .collect();
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    (mean, errors.into_iter().fold(0.0, f64::max))
}

/// Prints the table of `docs/models.md`: errors with int8 KV, and of bf16 against f32. The error of an int8 element is
/// at most 1/254 of the largest in its group of 32, and half of that on average.
#[test]
fn log_probabilities_with_int8_kv_stay_near_those_without() {
    for name in fixtures() {
        let (oracle, _) = oracle(&name);
        let plain = request(&name, Dtype::BF16);
        let int8 = LogitsRequest {
            kv_dtype: Some(KvDtype::Int8),
            ..plain.clone()
        };
        let exact = run(&request(&name, Dtype::F32), &oracle);
        let in_bf16 = run(&plain, &oracle);
        let (mean, most) = errors(&in_bf16, &run(&int8, &oracle));
        let (rounding, most_rounding) = errors(&exact, &in_bf16);
        eprintln!("| `{name}` | {mean:.4} | {most:.3} | {rounding:.4} | {most_rounding:.3} |");
        // Rounding also makes some tokens choose other experts.
        let limit = if oracle.has_experts() { 0.1 } else { 0.05 };
        assert!(mean <= limit, "{name}: {mean}");
        assert!(mean > 0.0, "{name}: nothing was quantised");
    }
}

#[test]
fn int8_kv_takes_little_more_than_half_the_memory() {
    for name in fixtures() {
        let described = describe(&fixture(&name), Some(Dtype::BF16), None, LoadFormat::Auto);
        let plain = described.unwrap();
        let int8 = plain.clone().with_kv(Some(KvDtype::Int8));
        assert_eq!(int8.kv_layout.state_bytes(), plain.kv_layout.state_bytes());
        let [plain, int8] = [plain, int8].map(|model| model.kv_layout.bytes_per_token() as f64);
        // A scale takes two bytes and serves at most 32 elements of a head; heads of the tiny models have at least 16.
        let share = int8 / plain;
        assert!(
            (0.515..=0.5 + 1.0 / 16.0).contains(&share),
            "{name}: {share}"
        );
    }
}

#[test]
fn kv_may_have_another_type_than_the_weights() {
    let wide = CpuOptions {
        dtype: Some(Dtype::BF16),
        kv_dtype: Some(KvDtype::F32),
        ..options()
    };
    let same = CpuOptions {
        kv_dtype: Some(KvDtype::BF16),
        ..wide.clone()
    };
    let plain = CpuOptions {
        kv_dtype: None,
        ..wide.clone()
    };
    let [wide, same, plain] =
        [wide, same, plain].map(|options| alone(&mut load("qwen3", &options), 1, PROMPT_TOKENS));
    assert_same(&same, &plain, "explicit KV type bfloat16");
    assert!(wide != plain, "KV is not in float32");
}
