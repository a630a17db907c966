//! Logits of prompts with images against those of transformers (tools/oracle/make_image_logits.py).

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde::Deserialize;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_kernels::dtype::Dtype;
use souffleur_request::{ImageDigest, ImageGrid, PromptImage, PromptVectors};

use crate::bidirectional::with_key;
use crate::common::{load, load_from, options};
use crate::images::{begin, run};

const QWEN: &str = "qwen3-5";
const GEMMA_3: &str = "gemma3";
const GEMMA_4: &str = "gemma4-plain";
const HIDDEN: usize = 64;
const VOCAB: usize = 288;
const PAD: u32 = 250;

#[derive(Deserialize)]
struct Prompt {
    tokens: Vec<u32>,
    images: Vec<Image>,
}

#[derive(Deserialize)]
struct Image {
    /// Of the mark before the image.
    first: u32,
    rows: u32,
    columns: u32,
}

fn file(model: &str, name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .join("tests/fixtures/image_logits")
        .join(model)
        .join(name)
}

fn values(tensors: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let view = tensors.tensor(name).unwrap();
    let words = view.data().chunks_exact(4);
    words
        .map(|word| f32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

/// The grid that the engine is told of an image.
type Grid = fn(u32, u32) -> ImageGrid;

fn right(rows: u32, columns: u32) -> ImageGrid {
    ImageGrid { rows, columns }
}

fn swapped(rows: u32, columns: u32) -> ImageGrid {
    right(columns, rows)
}

fn line(rows: u32, columns: u32) -> ImageGrid {
    right(1, rows * columns)
}

fn in_f32() -> CpuOptions {
    CpuOptions {
        dtype: Some(Dtype::F32),
        ..options()
    }
}

/// For each prompt the largest error of a logit, in multiples of the limit of the tests without images. `kind` names the
/// logits of transformers.
fn errors(executor: &mut CpuExecutor, (model, kind): (&str, &str), grid: Grid) -> Vec<f32> {
    let prompts = std::fs::read(file(model, "prompts.json")).unwrap();
    let prompts: Vec<Prompt> = serde_json::from_slice(&prompts).unwrap();
    let bytes = std::fs::read(file(model, "oracle.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let error_of = |(index, prompt): (usize, &Prompt)| {
        let image = |(k, image): (usize, &Image)| {
            let vectors = values(&tensors, &format!("{index}.vectors.{k}"));
            let vectors = PromptVectors::new(HIDDEN, vectors).unwrap();
            let Image {
                first,
                rows,
                columns,
            } = *image;
            PromptImage {
                positions: first..first + rows * columns + 2,
                pad: PAD,
                digest: ImageDigest([k as u8; 32]),
                grid: grid(rows, columns),
                vectors: Some(vectors.into()),
                input: None,
            }
        };
        let images: Vec<PromptImage> = prompt.images.iter().enumerate().map(image).collect();
        let begun = begin(&prompt.tokens, &images);
        let n_tokens = prompt.tokens.len();
        let ours = run(executor, begun, 1..60, &[0, n_tokens as u32]);
        let expected = values(&tensors, &format!("{index}.{kind}"));
        // Files may have only some columns.
        let columns = expected.len() / n_tokens;
        let mut worst: f32 = 0.0;
        for (position, expected) in (0_u32..).zip(expected.chunks_exact(columns)) {
            let ours = ours[&position].iter().step_by(VOCAB / columns);
            for (ours, expected) in ours.zip(expected) {
                let error = (f32::from_bits(*ours) - expected).abs();
                let error = error / (1e-4 + 1e-4 * expected.abs());
                if error > worst || error.is_nan() {
                    worst = error;
                }
            }
        }
        worst
    };
    prompts.iter().enumerate().map(error_of).collect()
}

#[test]
fn logits_before_between_and_after_images_match() {
    let errors = errors(&mut load(QWEN, &in_f32()), (QWEN, "logits"), right);
    assert_eq!(errors.len(), 5, "no image, one at each place, and three");
    assert!(errors.iter().all(|error| *error <= 1.0), "{errors:?}");
}

#[test]
fn swapped_and_missing_rows_of_images_are_noticed() {
    for grid in [swapped as Grid, line] {
        let errors = errors(&mut load(QWEN, &in_f32()), (QWEN, "logits"), grid);
        // The second and third prompt have an image of several rows and columns, the last has three images.
        for prompt in [1, 2, 4] {
            assert!(errors[prompt] > 10.0, "{errors:?}");
        }
        assert!(errors[0] <= 1.0, "{errors:?}");
    }
}

#[test]
fn logits_match_where_images_attend_in_both_directions() {
    let gemma_4 = load_from(with_key(GEMMA_4).path(), &in_f32());
    let executors = [(GEMMA_3, load(GEMMA_3, &in_f32())), (GEMMA_4, gemma_4)];
    for (model, mut executor) in executors {
        let right = errors(&mut executor, (model, "logits"), right);
        assert_eq!(right.len(), 6, "also an image that is longer than windows");
        assert!(
            right.iter().all(|error| *error <= 1.0),
            "{model}: {right:?}"
        );
    }
}

#[test]
fn wrong_masks_within_images_are_noticed() {
    let mut gemma_4 = load_from(with_key(GEMMA_4).path(), &in_f32());
    // The mask of Gemma 3 on Gemma 4, and causal masks on both.
    let everywhere = errors(&mut gemma_4, (GEMMA_4, "everywhere"), right);
    let causal = errors(&mut gemma_4, (GEMMA_4, "causal"), right);
    let of_gemma_3 = errors(&mut load(GEMMA_3, &in_f32()), (GEMMA_3, "causal"), right);
    for wrong in [everywhere, causal, of_gemma_3] {
        assert!(wrong[0] <= 1.0, "the first prompt has no image: {wrong:?}");
        assert!(wrong[1..].iter().all(|error| *error > 100.0), "{wrong:?}");
    }
    // Without the key, Gemma 4 has causal masks.
    let without_key = errors(&mut load(GEMMA_4, &in_f32()), (GEMMA_4, "causal"), right);
    assert!(
        without_key.iter().all(|error| *error <= 1.0),
        "{without_key:?}"
    );
}
