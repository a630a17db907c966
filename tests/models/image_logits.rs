//! Logits of prompts with images against those of transformers (tools/oracle/make_image_logits.py), also with planted
//! mistakes.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde::Deserialize;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_kernels::dtype::Dtype;
use souffleur_request::{ImageDigest, ImageGrid, PromptImage, PromptVectors};

use crate::bidirectional::with_key;
use crate::common::{load, load_from, options};
use crate::images::{begin, run};

/// A model, and the values of a position of an image.
type Model = (&'static str, usize);

const BY_GRID: [Model; 2] = [("qwen3-5", HIDDEN), DEEPSTACK];
/// An embedding, and vectors for two layers.
const DEEPSTACK: Model = ("qwen3-vl", 3 * HIDDEN);
const GEMMA_3: Model = ("gemma3", HIDDEN);
const GEMMA_4: Model = ("gemma4-plain", HIDDEN);
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

/// A mistake in the values of an image's position.
type Plant = fn(&mut [f32]);

fn none(_: &mut [f32]) {}

/// A case: what the engine is told of images, and the expected tensor, which has logits of the last tokens.
struct Case {
    grid: Grid,
    plant: Plant,
    expected: &'static str,
}

const RIGHT: Case = Case {
    grid: right,
    plant: none,
    expected: "logits",
};

/// For each prompt the largest error of a logit, in multiples of the limit of the tests without images.
fn errors(executor: &mut CpuExecutor, (model, width): Model, case: &Case) -> Vec<f32> {
    let prompts = std::fs::read(file(model, "prompts.json")).unwrap();
    let prompts: Vec<Prompt> = serde_json::from_slice(&prompts).unwrap();
    let bytes = std::fs::read(file(model, "oracle.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let error_of = |(index, prompt): (usize, &Prompt)| {
        let image = |(k, image): (usize, &Image)| {
            let mut vectors = values(&tensors, &format!("{index}.vectors.{k}"));
            vectors.chunks_exact_mut(width).for_each(case.plant);
            let vectors = PromptVectors::new(width, vectors).unwrap();
            let Image {
                first,
                rows,
                columns,
            } = *image;
            PromptImage {
                positions: first..first + rows * columns + 2,
                pad: PAD,
                digest: ImageDigest([k as u8; 32]),
                grid: (case.grid)(rows, columns),
                vectors: Some(vectors.into()),
                input: None,
            }
        };
        let images: Vec<PromptImage> = prompt.images.iter().enumerate().map(image).collect();
        let begun = begin(&prompt.tokens, &images);
        let n_tokens = prompt.tokens.len() as u32;
        let ours = run(executor, begun, 1..60, &[0, n_tokens]);
        let name = format!("{index}.{}", case.expected);
        let expected = values(&tensors, &name);
        // Files may have only some columns.
        let columns = tensors.tensor(&name).unwrap().shape()[1];
        let first = n_tokens - (expected.len() / columns) as u32;
        let mut worst: f32 = 0.0;
        for (position, expected) in (first..).zip(expected.chunks_exact(columns)) {
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
    for model in BY_GRID {
        let errors = errors(&mut load(model.0, &in_f32()), model, &RIGHT);
        assert_eq!(errors.len(), 5, "no image, one at each place, and three");
        let is_right = errors.iter().all(|error| *error <= 1.0);
        assert!(is_right, "{model:?}: {errors:?}");
    }
}

#[test]
fn swapped_and_missing_rows_of_images_are_noticed() {
    for model in BY_GRID {
        for grid in [swapped as Grid, line] {
            let mut executor = load(model.0, &in_f32());
            let errors = errors(&mut executor, model, &Case { grid, ..RIGHT });
            // The second and third prompt have an image of several rows and columns, the last has three images.
            for prompt in [1, 2, 4] {
                assert!(errors[prompt] > 10.0, "{model:?}: {errors:?}");
            }
            assert!(errors[0] <= 1.0, "{model:?}: {errors:?}");
        }
    }
}

/// Checks that a mistake is noticed in every prompt with an image.
#[track_caller]
fn notices(case: &Case) {
    let errors = errors(&mut load(DEEPSTACK.0, &in_f32()), DEEPSTACK, case);
    let is_noticed = errors[1..].iter().all(|error| *error > 10.0);
    assert!(is_noticed && errors[0] <= 1.0, "{errors:?}");
}

#[test]
fn missing_and_exchanged_vectors_of_layers_are_noticed() {
    let plants: [Plant; 4] = [
        |values| values[HIDDEN..].fill(0.0),
        |values| values[HIDDEN..2 * HIDDEN].fill(0.0),
        |values| values[2 * HIDDEN..].fill(0.0),
        |values| values[HIDDEN..].rotate_left(HIDDEN),
    ];
    for plant in plants {
        notices(&Case { plant, ..RIGHT });
    }
}

#[test]
fn rotation_in_sections_that_are_not_interleaved_is_noticed() {
    let expected = "sectioned";
    notices(&Case { expected, ..RIGHT });
}

#[test]
fn logits_match_where_images_attend_in_both_directions() {
    let gemma_4 = load_from(with_key(GEMMA_4.0).path(), &in_f32());
    let executors = [(GEMMA_3, load(GEMMA_3.0, &in_f32())), (GEMMA_4, gemma_4)];
    for (model, mut executor) in executors {
        let right = errors(&mut executor, model, &RIGHT);
        assert_eq!(right.len(), 6, "also an image that is longer than windows");
        let is_right = right.iter().all(|error| *error <= 1.0);
        assert!(is_right, "{model:?}: {right:?}");
    }
}

#[test]
fn wrong_masks_within_images_are_noticed() {
    let expecting = |expected: &'static str| Case { expected, ..RIGHT };
    let mut gemma_3 = load(GEMMA_3.0, &in_f32());
    let mut gemma_4 = load_from(with_key(GEMMA_4.0).path(), &in_f32());
    // The mask of Gemma 3 on Gemma 4, and causal masks on both.
    let everywhere = errors(&mut gemma_4, GEMMA_4, &expecting("everywhere"));
    let causal = errors(&mut gemma_4, GEMMA_4, &expecting("causal"));
    let of_gemma_3 = errors(&mut gemma_3, GEMMA_3, &expecting("causal"));
    for wrong in [everywhere, causal, of_gemma_3] {
        assert!(wrong[0] <= 1.0, "the first prompt has no image: {wrong:?}");
        assert!(wrong[1..].iter().all(|error| *error > 100.0), "{wrong:?}");
    }
    // Without the key, Gemma 4 has causal masks.
    let mut without_key = load(GEMMA_4.0, &in_f32());
    let without_key = errors(&mut without_key, GEMMA_4, &expecting("causal"));
    assert!(
        without_key.iter().all(|error| *error <= 1.0),
        "{without_key:?}"
    );
}
