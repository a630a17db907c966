//! Bits and costs of encodings in units of any size.

use super::*;

/// The largest unit of an image, if a layer is two units.
fn largest_unit(config: &TowerConfig, grid: TowerGrid) -> u64 {
    let work = config.work(grid, u64::MAX).into_iter();
    work.max().expect("there is work")
}

#[test]
fn bits_depend_neither_on_units_nor_on_neighbours_nor_on_threads() {
    for name in TOWERS {
        let checkpoint = checkpoint(name);
        let images = images(name);
        let mut alone = plain_backend();
        let tower = Tower::load(&checkpoint, &mut alone).expect("complete");
        let expected = images.iter();
        let expected = expected.map(|image| encode(&tower, &mut alone, image, image.grid));
        let expected: Vec<Vec<f32>> = expected.collect();
        let largest = images.iter();
        let largest = largest.map(|image| largest_unit(&checkpoint.config, image.grid));
        let largest = largest.max().expect("there are images");
        // The fewest patches, two thirds of the largest image, and all.
        for (threads, unit_flops) in [(3, 0), (1, largest * 2 / 3), (2, u64::MAX)] {
            let mut shared = backend(Isa::detect(), threads, (Dtype::F32, None));
            let tower = Tower::load(&checkpoint, &mut shared).expect("complete");
            let tower = tower.with_unit_flops(unit_flops);
            for image in &images {
                let begun = tower.begin(image.grid);
                let work = checkpoint.config.work(image.grid, unit_flops);
                assert_eq!(begun.expect("encoded").remaining(), work.len(), "{name}");
            }
            let vectors = in_turn(&tower, &mut shared, &images);
            for ((vectors, expected), image) in vectors.into_iter().zip(&expected).zip(&images) {
                let grid = image.grid;
                assert!(vectors == *expected, "{name}, {grid:?}, {unit_flops}");
            }
        }
    }
}

/// Encodes images at the same time, a unit of each in turn.
fn in_turn(tower: &Tower<CpuBackend>, backend: &mut CpuBackend, images: &[Image]) -> Vec<Vec<f32>> {
    let mut encodings: Vec<Encoding<CpuBackend>> = Vec::new();
    // The last image a second time, which is dropped between the two parts of a layer.
    for image in images.iter().chain(images.last()) {
        let begun = tower.begin(image.grid);
        encodings.push(begun.expect("encoded"));
    }
    let mut dropped = encodings.pop();
    let n_units = |encoding: &Encoding<CpuBackend>| encoding.unit() + encoding.remaining();
    let most = encodings.iter().map(n_units).max().unwrap_or(0);
    for unit in 0..most {
        for (encoding, image) in encodings.iter_mut().zip(images) {
            if !encoding.is_done() {
                assert_eq!(encoding.unit(), unit);
                advance(encoding, image, tower, backend);
            }
        }
        if unit == 4 {
            dropped = None;
        }
        if let (Some(encoding), Some(image)) = (&mut dropped, images.last()) {
            advance(encoding, image, tower, backend);
        }
    }
    let vectors = encodings.into_iter().map(|encoding| {
        assert!(encoding.is_done());
        encoding.into_vectors(backend)
    });
    vectors.collect()
}

/// Computes a unit.
fn advance(
    encoding: &mut Encoding<CpuBackend>,
    image: &Image,
    tower: &Tower<CpuBackend>,
    backend: &mut CpuBackend,
) {
    let advanced = encoding.advance(tower, backend, 1, &|rows| image.rows(rows));
    advanced.expect("the image has all patches");
}

#[test]
fn each_patch_is_read_once_by_the_unit_that_embeds_it() {
    let image = images("qwen").pop().expect("there are images");
    let mut backend = plain_backend();
    let tower = Tower::load(&checkpoint("qwen"), &mut backend).expect("complete");
    let tower = tower.with_unit_flops(0);
    let mut encoding = tower.begin(image.grid).expect("encoded");
    let read = std::cell::RefCell::new(Vec::new());
    let patches = |rows: std::ops::Range<usize>| {
        read.borrow_mut().push(rows.clone());
        image.rows(rows)
    };
    let n_patches = image.grid.n_patches();
    let n_blocks = n_patches.div_ceil(16);
    for unit in 0..encoding.remaining() {
        let advanced = encoding.advance(&tower, &mut backend, 1, &patches);
        assert_eq!(advanced, Ok(()));
        assert_eq!(read.borrow().len(), n_blocks.min(unit + 1));
    }
    assert!(read.into_inner().into_iter().flatten().eq(0..n_patches));
}

#[test]
fn rounded_weights_give_the_same_bits_in_units() {
    let formats = [(Dtype::BF16, None), (Dtype::F32, Some(Quantization::Int8))];
    for (format, name) in formats
        .into_iter()
        .flat_map(|it| TOWERS.map(|name| (it, name)))
    {
        let mut backend = backend(Isa::detect(), 1, format);
        let tower = Tower::load(&checkpoint(name), &mut backend).expect("complete");
        let images = images(name);
        let whole = images.iter();
        let whole = whole.map(|image| encode(&tower, &mut backend, image, image.grid));
        let whole: Vec<Vec<f32>> = whole.collect();
        let tower = tower.with_unit_flops(0);
        for (image, whole) in images.iter().zip(whole) {
            let vectors = encode(&tower, &mut backend, image, image.grid);
            assert!(vectors == whole, "{format:?}, {name}, {:?}", image.grid);
        }
    }
}

#[test]
fn costs_grow_with_images_and_add_up() {
    for name in TOWERS {
        let config = checkpoint(name).config;
        let side = config.positions.max(config.merge);
        let side = side.next_multiple_of(config.merge);
        let side = match config.family {
            TowerFamily::Gemma3 => config.positions,
            TowerFamily::Gemma4 => config.positions / config.merge * config.merge,
            _ => side,
        };
        let large = TowerGrid { h: side, w: side };
        let largest = largest_unit(&config, large);
        for unit_flops in [0, 1, largest / 3, largest, u64::MAX] {
            let work = config.work(large, unit_flops);
            let sum: u64 = work.iter().sum();
            assert_eq!(sum, config.total_flops(large), "{name}");
            if unit_flops >= largest / 3 && large.n_patches() >= 64 {
                assert!(work.iter().all(|flops| *flops <= unit_flops), "{name}");
            }
        }
        let n_layers = config.n_layers;
        let n_sets = 1 + config.deepstack.len();
        let n_units = 1 + 2 * n_layers + n_sets;
        assert_eq!(config.work(large, u64::MAX).len(), n_units);
        let small = TowerGrid {
            h: config.merge,
            w: side,
        };
        let bytes = |grid| config.encoding_bytes(grid, 2);
        assert!(bytes(small) <= bytes(large), "{name}");
        let with_threads = config.encoding_bytes(large, 64);
        assert!(bytes(large) <= with_threads, "{name}");
    }
}

#[test]
fn images_that_cannot_be_encoded_have_one_unit() {
    let config = checkpoint("qwen").config;
    for (h, w) in [(0, 2), (3, 4), (1 << 31, 1 << 31), (usize::MAX, 2)] {
        assert_eq!(config.work(TowerGrid { h, w }, 1), [1], "{h} x {w}");
    }
}

#[test]
fn views_need_no_more_memory_than_one_view_of_all_their_patches() {
    let config = checkpoint("lfm2").config;
    let (view, n_views) = (TowerGrid { h: 32, w: 32 }, 11);
    let all = TowerGrid {
        h: view.h,
        w: view.w * n_views,
    };
    let n_vectors = all.n_patches() / (config.merge * config.merge);
    // The list of vectors grows, so that it may have twice the room.
    let vectors = 2 * n_vectors * config.out_width() * size_of::<f32>();
    let views = config.encoding_bytes(view, 2) + vectors as u64;
    assert!(views <= config.encoding_bytes(all, 2));
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
    let work = qwen.work(grid, u64::MAX);
    let layers: u64 = work[1..=2 * 27].iter().sum();
    assert!((5.4e12..5.5e12).contains(&(layers as f64)), "{layers}");
    // A layer is about 0.2 TFLOP.
    let work = qwen.work(grid, UNIT_FLOPS);
    assert!(work.iter().all(|flops| *flops <= UNIT_FLOPS));
    assert!(work.len() < 27 * 2 * 24, "{}", work.len());
    let sum: u64 = work.into_iter().sum();
    assert_eq!(sum, qwen.total_flops(grid));
    // A small image is not cut: 256 patches are 6 GFLOP in the second part of a layer.
    let small = TowerGrid { h: 16, w: 16 };
    assert_eq!(qwen.work(small, UNIT_FLOPS).len(), 2 + 2 * 27);
    // Stream, keys, values and queries of 4,096 patches are 79 MB.
    let bytes = qwen.encoding_bytes(grid, 2);
    assert!((79e6..100e6).contains(&(bytes as f64)), "{bytes}");
}
