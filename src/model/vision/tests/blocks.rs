//! Towers whose matrices are quantised in blocks.

use half::f16;

use super::mmproj::{header, open};
use super::*;
use crate::gguf_writer::{File, Tensor};
use crate::vision::names::Names;
use crate::vision::parts::{Source, parts};
use souffleur_kernels::blocks::{BlockType, encode};

/// The number of f32 in GGUF files.
const F32: u32 = 0;
const SUPER_BLOCK: usize = 256;

/// The blocks of these values, and the values that the blocks have.
fn quantised(block: BlockType, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = Vec::new();
    match block {
        BlockType::Q8_0 => {
            for values in values.chunks_exact(block.inputs()) {
                let largest = values.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
                let scale = f16::from_f32(largest / 127.0);
                bytes.extend(scale.to_le_bytes());
                let codes = values
                    .iter()
                    .map(|x| (x / scale.to_f32()).round().clamp(-127.0, 127.0));
                bytes.extend(codes.map(|code| code as i8 as u8));
            }
        }
        _ => {
            for values in values.chunks_exact(SUPER_BLOCK) {
                let values: &[f32; SUPER_BLOCK] = values.try_into().expect("a whole block");
                let start = bytes.len();
                bytes.resize(start + block.bytes(), 0);
                encode::encode(block, values, &mut bytes[start..]);
            }
        }
    }
    let mut rounded = vec![0.0; values.len()];
    block.decode(&bytes, &mut rounded);
    (bytes, rounded)
}

/// The same random tower twice: with matrices in blocks, and with the values of these blocks in f32.
fn files(family: TowerFamily, block: BlockType) -> [File; 2] {
    let width = block.inputs();
    let (fixture, projector) = match family {
        TowerFamily::Pixtral => ("pixtral", "pixtral"),
        _ => ("lfm2", "lfm2"),
    };
    let config = TowerConfig {
        hidden: width,
        intermediate: width.max(64),
        head_dim: width / 2,
        projector_width: width,
        text_width: width,
        ..checkpoint(fixture).config
    };
    let names = Names::of(family, Source::Gguf);
    let mut rng = fastrand::Rng::with_seed(5);
    let header = header(&config, ("clip.projector_type", projector));
    let mut files = [header.clone(), header];
    for (part, shape) in parts(&config, Source::Gguf) {
        let name = names.name(part, "v.", "mm.");
        let elements: usize = shape.iter().product();
        let deviation = 1.5 / (shape[1..].iter().product::<usize>() as f32).sqrt();
        let is_norm = shape.len() == 1 && part.suffix == "weight";
        let (middle, deviation) = match shape.len() {
            1 if is_norm => (1.0, 0.2),
            1 => (0.0, 0.2),
            _ => (0.0, deviation),
        };
        let values = (0..elements).map(|_| middle + deviation * (2.0 * rng.f32() - 1.0));
        let values: Vec<f32> = values.collect();
        let row = shape[shape.len() - 1];
        let (type_id, bytes, values) = if shape.len() == 2 && row.is_multiple_of(width) {
            let (bytes, rounded) = quantised(block, &values);
            (block.gguf_id().expect("a type of GGUF"), bytes, rounded)
        } else {
            let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            (F32, bytes, values)
        };
        let [blocks, plain] = files;
        files = [
            blocks.tensor(Tensor::new(&name, type_id, &shape, bytes)),
            plain.tensor(Tensor::f32(&name, &shape, &values)),
        ];
    }
    files
}

#[test]
fn towers_in_blocks_have_the_vectors_of_their_values() {
    for (family, block) in [
        (TowerFamily::Lfm2, BlockType::Q8_0),
        (TowerFamily::Pixtral, BlockType::Q8_0),
        (TowerFamily::Pixtral, BlockType::Q4K),
        (TowerFamily::Lfm2, BlockType::Q6K),
    ] {
        let files = files(family, block);
        let [blocks, plain] = files.each_ref().map(|file| open(file).expect("complete"));
        let mut rng = fastrand::Rng::with_seed(6);
        let grid = TowerGrid { h: 4, w: 6 };
        let n_values = grid.n_patches() * plain.config.patch_dim();
        let image = Image {
            grid,
            patches: (0..n_values).map(|_| 2.0 * rng.f32() - 1.0).collect(),
            vectors: Vec::new(),
        };
        let vectors = |checkpoint: &TowerCheckpoint, dtype: Dtype| {
            let mut backend = backend(Isa::detect(), 1, (dtype, None));
            let tower = Tower::load(checkpoint, &mut backend).expect("complete");
            encode(&tower, &mut backend, &image, grid)
        };
        let expected = vectors(&plain, Dtype::F32);
        // In f32 the blocks are decoded; in bf16 products read them, and quantise the activations too.
        let error = difference(&vectors(&blocks, Dtype::F32), &expected);
        assert!(error < BOUND, "{family:?} in {block:?}: {error}");
        let error = difference(&vectors(&blocks, Dtype::BF16), &expected);
        assert!(
            error > 0.0 && error < 0.3,
            "{family:?} in {block:?}: {error}"
        );
    }
}
