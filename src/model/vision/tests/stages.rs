//! Bits and costs of encodings in stages.

use super::*;

#[test]
fn bits_depend_neither_on_slices_nor_on_neighbours_nor_on_threads() {
    for name in TOWERS {
        let checkpoint = checkpoint(name);
        let images = images(name);
        let mut alone = plain_backend();
        let tower = Tower::load(&checkpoint, &mut alone).expect("complete");
        let expected = images.iter();
        let expected = expected.map(|image| encode(&tower, &mut alone, image, image.grid));
        let expected: Vec<Vec<f32>> = expected.collect();

        let mut shared = backend(Isa::detect(), 3, (Dtype::F32, None));
        let tower = Tower::load(&checkpoint, &mut shared).expect("complete");
        let mut encodings: Vec<Encoding<CpuBackend>> = Vec::new();
        // The last image a second time, which is dropped halfway.
        for image in images.iter().chain(images.last()) {
            let begun = tower.begin(&mut shared, &image.patches, image.grid);
            encodings.push(begun.expect("encoded"));
        }
        let mut dropped = encodings.pop();
        let n_stages = checkpoint.config.n_stages();
        for stage in 0..n_stages {
            for encoding in &mut encodings {
                assert_eq!((encoding.stage(), encoding.is_done()), (stage, false));
                encoding.advance(&tower, &mut shared, 1);
                assert_eq!(encoding.remaining(), n_stages - stage - 1);
            }
            if stage >= 2 {
                dropped = None;
            } else if let Some(encoding) = &mut dropped {
                encoding.advance(&tower, &mut shared, 1);
            }
        }
        for (encoding, expected) in encodings.into_iter().zip(expected) {
            assert!(encoding.is_done());
            let grid = encoding.grid();
            let vectors = encoding.into_vectors(&mut shared);
            assert!(vectors == expected, "{name}, {grid:?}");
        }
    }
}

#[test]
fn costs_grow_with_images_and_add_up() {
    for name in TOWERS {
        let config = checkpoint(name).config;
        let side = config.positions.max(config.merge);
        let small = TowerGrid {
            h: config.merge,
            w: side,
        };
        let large = TowerGrid { h: side, w: side };
        for grid in [small, large] {
            let stages = 0..config.n_stages();
            let sum: u64 = stages.map(|stage| config.stage_flops(grid, stage)).sum();
            assert_eq!(sum, config.total_flops(grid), "{name}");
        }
        assert_eq!(config.stage_flops(large, config.n_stages()), 0);
        let bytes = |grid| config.encoding_bytes(grid, 2);
        assert!(bytes(small) <= bytes(large), "{name}");
        assert!(bytes(large) < config.encoding_bytes(large, 64), "{name}");
    }
}

#[test]
fn the_work_of_published_towers_is_known_before_it_begins() {
    let qwen = TowerConfig {
        hidden: 1152,
        intermediate: 4304,
        n_layers: 27,
        n_heads: 16,
        head_dim: 72,
        patch: 16,
        text_width: 4096,
        projector_width: 4608,
        ..checkpoint("qwen").config
    };
    // An image of 1024 x 1024 pixels: 5.45 TFLOP in the layers.
    let grid = TowerGrid { h: 64, w: 64 };
    let layers: u64 = (1..28).map(|stage| qwen.stage_flops(grid, stage)).sum();
    assert!((5.4e12..5.5e12).contains(&(layers as f64)), "{layers}");
    // 4,096 patches; the MLP's 4,304 values of each, twice, are 141 MB.
    let bytes = qwen.encoding_bytes(grid, 2);
    assert!((150e6..250e6).contains(&(bytes as f64)), "{bytes}");
}
