//! Planted mistakes: each moves the vectors by more than ten times the bound of the comparison with transformers.

use super::*;
use souffleur_kernels::vision::Activation;

/// The largest difference from transformers over all images.
fn error_of(name: &str, plant: impl Fn(&mut TowerConfig), swaps: bool) -> f32 {
    let mut checkpoint = checkpoint(name);
    plant(&mut checkpoint.config);
    let mut backend = plain_backend();
    let tower = Tower::load(&checkpoint, &mut backend).expect("the tensors are there");
    let errors = images(name).into_iter().map(|image| {
        let TowerGrid { h, w } = image.grid;
        let grid = if swaps {
            TowerGrid { h: w, w: h }
        } else {
            image.grid
        };
        difference(&encode(&tower, &mut backend, &image, grid), &image.vectors)
    });
    errors.fold(0.0, f32::max)
}

#[track_caller]
fn check(names: &[&str], mistake: &str, plant: impl Fn(&mut TowerConfig)) {
    for name in names {
        let error = error_of(name, &plant, false);
        assert!(error > 10.0 * BOUND, "{name}, {mistake}: only {error}");
    }
}

const ROTATED: [&str; 5] = ["qwen", "qwen3-vl", "gemma4", "gemma4-plain", "pixtral"];

#[test]
fn without_a_mistake_nothing_moves() {
    for name in TOWERS {
        let error = error_of(name, |_| {}, false);
        assert!(error < BOUND, "{name}: {error}");
    }
}

#[test]
fn other_activations_are_noticed() {
    check(&TOWERS, "another activation", |config| {
        config.activation = match config.activation {
            Activation::GeluTanh => Activation::GeluErf,
            Activation::GeluErf | Activation::Silu => Activation::GeluTanh,
        };
    });
    let projectors = ["qwen", "qwen3-vl", "pixtral", "lfm2"];
    check(&projectors, "tanh in the projector", |config| {
        config.projector_activation = Activation::GeluTanh;
    });
}

#[test]
fn other_norms_are_noticed() {
    check(&TOWERS, "another epsilon", |config| config.eps = 1e-3);
    let projectors = ["gemma3", "gemma4", "gemma4-plain", "pixtral", "lfm2"];
    check(&projectors, "another epsilon at the end", |config| {
        config.projector_eps = 1e-3;
    });
    check(&["gemma4"], "no bounds", |config| config.clips = false);
    check(&["gemma4"], "no standards", |config| {
        config.standardizes = false;
    });
    check(&["lfm2"], "no norm at the end", |config| {
        config.projector_norm = false;
    });
}

#[test]
fn swapped_rows_and_columns_and_other_frequencies_are_noticed() {
    check(&ROTATED, "another base", |config| config.theta = 1e3);
    let not_square = [
        "qwen",
        "qwen3-vl",
        "gemma4",
        "gemma4-plain",
        "pixtral",
        "lfm2",
    ];
    for name in not_square {
        let error = error_of(name, |_| {}, true);
        assert!(error > 0.1, "{name}, swapped: only {error}");
    }
}

#[test]
fn vectors_of_another_layer_are_noticed() {
    check(&["qwen3-vl"], "another layer", |config| {
        config.deepstack = vec![1, 2];
    });
}
