//! Logits of prompts with images against those of transformers (tools/oracle/make_image_logits.py).

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde::Deserialize;
use souffleur_executor::cpu::CpuOptions;
use souffleur_kernels::dtype::Dtype;
use souffleur_request::{ImageDigest, ImageGrid, PromptImage, PromptVectors};

use crate::common::{load, options};
use crate::images::{begin, run};

const MODEL: &str = "qwen3-5";
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

fn file(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .join("tests/fixtures/image_logits")
        .join(MODEL)
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

/// For each prompt the largest error of a logit, in multiples of the limit of the tests without images.
fn errors(grid: Grid) -> Vec<f32> {
    let prompts = std::fs::read(file("prompts.json")).unwrap();
    let prompts: Vec<Prompt> = serde_json::from_slice(&prompts).unwrap();
    let bytes = std::fs::read(file("oracle.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let options = CpuOptions {
        dtype: Some(Dtype::F32),
        ..options()
    };
    let mut executor = load(MODEL, &options);
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
        let ends = [0, prompt.tokens.len() as u32];
        let ours = run(&mut executor, begun, 1..40, &ends);
        let expected = values(&tensors, &format!("{index}.logits"));
        let mut worst: f32 = 0.0;
        for (position, expected) in (0_u32..).zip(expected.chunks_exact(VOCAB)) {
            for (ours, expected) in ours[&position].iter().zip(expected) {
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
    let errors = errors(right);
    assert_eq!(errors.len(), 5, "no image, one at each place, and three");
    assert!(errors.iter().all(|error| *error <= 1.0), "{errors:?}");
}

#[test]
fn swapped_and_missing_rows_of_images_are_noticed() {
    for grid in [swapped as Grid, line] {
        let errors = errors(grid);
        // The second and third prompt have an image of several rows and columns, the last has three images.
        for prompt in [1, 2, 4] {
            assert!(errors[prompt] > 10.0, "{errors:?}");
        }
        assert!(errors[0] <= 1.0, "{errors:?}");
    }
}
