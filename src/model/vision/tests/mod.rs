//! Tests of towers: against transformers, in units, with planted mistakes, from GGUF files, and of errors.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::bf16;
use safetensors::SafeTensors;

use super::*;
use souffleur_base::error::LoadError;
use souffleur_base::kv_layout::{KvDtype, KvLayout, PagedKv, Values};
use souffleur_kernels::cpu::{CpuBackend, CpuSizes, Isa, Numa};
use souffleur_kernels::dtype::{Dtype, Quantization};

mod blocks;
mod errors;
mod llava;
mod mistakes;
mod mmproj;
mod oracle;
mod units;

const TOWERS: [&str; 7] = [
    "qwen",
    "qwen3-vl",
    "gemma3",
    "gemma4",
    "gemma4-plain",
    "pixtral",
    "lfm2",
];

/// The largest difference from transformers in float32.
const BOUND: f32 = 1e-5;

/// An image of a fixture, with the vectors that transformers computes.
struct Image {
    grid: TowerGrid,
    patches: Vec<f32>,
    vectors: Vec<f32>,
}

impl Image {
    /// The values of patches.
    fn rows(&self, rows: Range<usize>) -> Vec<f32> {
        let dim = self.patches.len() / self.grid.n_patches();
        self.patches[rows.start * dim..rows.end * dim].to_vec()
    }
}

fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/towers");
    fixtures.join(name)
}

fn checkpoint(name: &str) -> TowerCheckpoint {
    let opened = TowerCheckpoint::open_folder(&fixture(name));
    opened.expect("supported").expect("there is a tower")
}

/// The values of a tensor in f32 or bf16.
fn values(tensors: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let view = tensors.tensor(name).expect("fixtures are complete");
    match view.dtype() {
        safetensors::Dtype::BF16 => {
            let pairs = view.data().chunks_exact(2);
            let bits = pairs.map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
            bits.map(|bits| bf16::from_bits(bits).to_f32()).collect()
        }
        _ => {
            let words = view.data().chunks_exact(4);
            let words = words.map(|word| [word[0], word[1], word[2], word[3]]);
            words.map(f32::from_le_bytes).collect()
        }
    }
}

fn images(name: &str) -> Vec<Image> {
    let bytes = fs::read(fixture(name).join("oracle.safetensors")).expect("fixtures are committed");
    let tensors = SafeTensors::deserialize(&bytes).expect("valid");
    let names = tensors.names();
    let grids = names
        .iter()
        .filter_map(|name| name.strip_suffix(".patches"));
    let mut grids: Vec<&str> = grids.collect();
    grids.sort_unstable();
    let image = |grid: &str| {
        let (h, w) = grid.split_once('x').expect("rows and columns");
        let size = |text: &str| text.parse::<usize>().expect("a number");
        Image {
            grid: TowerGrid {
                h: size(h),
                w: size(w),
            },
            patches: values(&tensors, &format!("{grid}.patches")),
            vectors: values(&tensors, &format!("{grid}.vectors")),
        }
    };
    grids.into_iter().map(image).collect()
}

/// A backend for towers alone: its KV pool is not used.
fn backend(
    isa: Isa,
    threads: usize,
    (dtype, quantization): (Dtype, Option<Quantization>),
) -> CpuBackend {
    let kv = PagedKv {
        heads: 1,
        key_dim: 2,
        values: Values::Own { dim: 2 },
        labels: 0,
        dtype: KvDtype::F32,
    };
    let backend = CpuBackend::new(&CpuSizes {
        dtype,
        quantization,
        threads,
        pin_threads: false,
        numa: Numa::Off,
        isa,
        kv: KvLayout::uniform(1, kv),
        n_pages: 1,
        page_size: 1,
        n_rows: 1,
        n_state_slots: 0,
        n_window_pages: 0,
        shared_prefix: false,
        sparsity: None,
    });
    backend.expect("threads start")
}

fn plain_backend() -> CpuBackend {
    backend(Isa::detect(), 1, (Dtype::F32, None))
}

fn encode(
    tower: &Tower<CpuBackend>,
    backend: &mut CpuBackend,
    image: &Image,
    grid: TowerGrid,
) -> Vec<f32> {
    let begun = tower.begin(grid);
    let mut encoding = begun.expect("the tower encodes such images");
    let advanced = encoding.advance(tower, backend, usize::MAX, &|rows| image.rows(rows));
    advanced.expect("the image has all patches");
    encoding.into_vectors(backend)
}

/// The largest difference of two lists of vectors.
fn difference(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(
        ours.len(),
        theirs.len(),
        "the number of values must be equal"
    );
    let differences = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs());
    // NaN, too, is a difference.
    differences.fold(
        0.0,
        |most: f32, x| if x <= most || most.is_nan() { most } else { x },
    )
}
