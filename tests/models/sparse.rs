//! Tests of double sparsity on whole models: invariance, recall, and models that are refused.

use std::path::{Path, PathBuf};

use souffleur_executor::calibration::{CalibrationRequest, RecallRequest, calibrate};
use souffleur_executor::cpu::{CpuOptions, describe};
use souffleur_kernels::cpu::Isa;
use souffleur_kernels::dtype::Dtype;
use souffleur_model::loader::LoadFormat;
use souffleur_model::sparsity::{ChannelType, ModelSparsity, SparsityWish};
use souffleur_model::text::TextModel;

use crate::common::{fixture, load, options, tokens};
use crate::invariance::{
    PROMPT_TOKENS, VOCAB, after_prefix, alone, alone_read_from, among_others, assert_same,
    check_retraction,
};
use crate::kernel_paths::is_repeated;

/// Queries with at least this many tokens of context are sparse.
const THRESHOLD: usize = 38;
const TOKENS: usize = 12;
const CHANNELS: usize = 4;

/// Calibrates a tiny model on random tokens.
fn channels(name: &str, dir: &Path) -> PathBuf {
    let output = dir.join(format!("{name}.json"));
    let request = CalibrationRequest {
        model: fixture(name),
        dtype: Some(Dtype::F32),
        quantization: None,
        load_format: LoadFormat::Auto,
        threads: 1,
        tokens: tokens(9, 93, VOCAB),
        piece_tokens: 60,
        output: output.clone(),
        recall: None,
    };
    assert!(calibrate(&request).unwrap().n_layers > 0);
    output
}

fn sparsity(name: &str, file: &Path, tokens: usize) -> ModelSparsity {
    let wish = SparsityWish {
        file: file.to_owned(),
        ranked_by: ChannelType::Qk,
        channels: Some(CHANNELS),
        tokens,
        threshold: THRESHOLD,
    };
    let described = describe(&fixture(name), None, None, LoadFormat::Auto);
    described.unwrap().sparsify(&wish).unwrap()
}

fn sparse_options(name: &str, file: &Path, dtype: Dtype, tokens: usize) -> CpuOptions {
    CpuOptions {
        dtype: Some(dtype),
        sparsity: Some(sparsity(name, file, tokens)),
        ..options()
    }
}

/// Models with grouped heads, with head norms, with sinks and windows, and with gates and states.
const MODELS: [&str; 4] = ["llama", "qwen3", "gpt-oss", "qwen3-5"];

#[test]
fn no_chunk_batch_page_size_thread_or_cached_prefix_changes_a_bit() {
    let dir = tempfile::tempdir().unwrap();
    for name in MODELS {
        let file = channels(name, dir.path());
        for dtype in [Dtype::BF16, Dtype::F32] {
            let base = sparse_options(name, &file, dtype, TOKENS);
            let mut executor = load(name, &base);
            let expected = alone(&mut executor, 1, PROMPT_TOKENS);
            for chunk in [1, 7, 37, 38] {
                let got = alone(&mut executor, 1, chunk);
                assert_same(
                    &got,
                    &expected,
                    &format!("{name}, {dtype:?}, chunks of {chunk}"),
                );
            }
            let got = among_others(&mut executor);
            assert_same(&got, &expected, &format!("{name}, {dtype:?}, among others"));
            check_retraction(&mut executor, &format!("{name}, {dtype:?}"));
            let got = alone_read_from(&mut executor, 1, 20, 70);
            assert_same(&got, &expected, &format!("{name}, {dtype:?}, read from 70"));
            for (page_size, threads, cached) in [(1, 2, 37), (16, 3, 32), (16, 1, 64)] {
                let options = CpuOptions {
                    page_size,
                    threads,
                    ..base.clone()
                };
                let got = after_prefix(&mut load(name, &options), page_size as u32, cached);
                let what = format!("{name}, {dtype:?}, pages of {page_size}, {cached} cached");
                assert_same(&got, &expected, &what);
            }
        }
    }
}

#[test]
fn only_queries_from_the_threshold_on_differ_from_dense_ones() {
    let dir = tempfile::tempdir().unwrap();
    for name in MODELS {
        let file = channels(name, dir.path());
        for isa in Isa::available() {
            let with = |sparsity| CpuOptions {
                dtype: Some(Dtype::BF16),
                isa: Some(isa),
                sparsity,
                ..options()
            };
            let bits = |sparsity| alone(&mut load(name, &with(sparsity)), 1, 20);
            let dense = bits(None);
            let enough = sparsity(name, &file, PROMPT_TOKENS as usize);
            assert_same(
                &bits(Some(enough)),
                &dense,
                &format!("{name}, {isa:?}, enough tokens"),
            );
            let sparse = bits(Some(sparsity(name, &file, TOKENS)));
            for (position, bits) in &sparse {
                let is_dense = (*position as usize) < THRESHOLD - 1;
                assert_eq!(
                    *bits == dense[position],
                    is_dense,
                    "{name}, {isa:?}, {position}"
                );
            }
        }
    }
}

/// Measures recall of the bundled model on held-out dialogues, in one sequence.
#[test]
fn recall_against_the_exact_choice_is_measured() {
    if is_repeated() {
        return;
    }
    let model =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("models/souffleur-tiny");
    let lines = std::fs::read_to_string(model.join("eval/held_out.jsonl")).unwrap();
    let texts = lines.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["text"].as_str().unwrap().to_owned()
    });
    let tokenizer = TextModel::load(&model).unwrap();
    let mut text = tokenizer.encode(&texts.collect::<String>()).unwrap();
    text.truncate(1500);
    let dir = tempfile::tempdir().unwrap();
    let mut shares = Vec::new();
    for channels in [4, 8, 16, 32] {
        let calibrated = calibrate(&CalibrationRequest {
            model: model.clone(),
            dtype: Some(Dtype::BF16),
            quantization: None,
            load_format: LoadFormat::Auto,
            threads: 1,
            tokens: text.clone(),
            piece_tokens: text.len(),
            output: dir.path().join("channels.json"),
            recall: Some(RecallRequest {
                channels: Some(channels),
                tokens: 64,
            }),
        });
        let recall = calibrated.unwrap().recall;
        eprintln!("recall of 64 among up to 1500 tokens, {channels} of 32 channels: {recall:.3?}");
        assert_eq!(
            recall.iter().map(|(by, _)| *by).collect::<Vec<_>>(),
            ChannelType::ALL
        );
        shares.push(recall[0].1);
    }
    assert!(shares.is_sorted(), "{shares:?}");
    assert!(shares[0] > 0.1 && shares[3] == 1.0, "{shares:?}");
}

#[test]
fn models_that_double_sparsity_does_not_support_are_refused() {
    for (name, reason) in [
        (
            "deepseek-v2",
            "enable_double_sparsity is on, but layer 0 uses latent attention (MLA)",
        ),
        (
            "mistral",
            "every layer of this model has a window or a recurrent state",
        ),
    ] {
        let wish = SparsityWish {
            file: PathBuf::from("channels.json"),
            ranked_by: ChannelType::Qk,
            channels: Some(CHANNELS),
            tokens: TOKENS,
            threshold: THRESHOLD,
        };
        let mut described = describe(&fixture(name), None, None, LoadFormat::Auto).unwrap();
        let error = described
            .sparsify(&wish)
            .expect_err("the model is refused")
            .to_string();
        assert!(error.contains(reason), "{name}: {error}");
    }
}

#[test]
fn channels_of_another_model_are_refused_before_memory_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let file = channels("llama", dir.path());
    let options = sparse_options("llama", &file, Dtype::F32, TOKENS);
    let error =
        souffleur_executor::cpu::CpuExecutor::load(&fixture("qwen3-5"), &options, &mut |_, _| {});
    let error = error.err().expect("the model is refused").to_string();
    assert!(
        error.contains("was made for a model with other layers, heads or KV"),
        "{error}"
    );
}
