//! Vectors against those of transformers.

use super::*;

#[test]
fn vectors_are_those_of_transformers_on_every_instruction_set() {
    for isa in Isa::available() {
        for name in TOWERS {
            let mut backend = backend(isa, 1, (Dtype::F32, None));
            let checkpoint = checkpoint(name);
            let tower = Tower::load(&checkpoint, &mut backend).expect("complete");
            let mut most: f32 = 0.0;
            for image in images(name) {
                let vectors = encode(&tower, &mut backend, &image, image.grid);
                let n_vectors = checkpoint.config.n_vectors(image.grid);
                let width = checkpoint.config.out_width();
                assert_eq!(vectors.len(), n_vectors.expect("encoded") * width);
                let error = difference(&vectors, &image.vectors);
                let grid = image.grid;
                assert!(error < BOUND, "{isa:?}, {name}, {grid:?}: {error}");
                most = most.max(error);
            }
            eprintln!("{isa:?}, {name}: {most:.1e}");
        }
    }
}

#[test]
fn rounded_weights_give_similar_vectors() {
    // The vectors' deviation is about 1.
    for (format, bound) in [
        ((Dtype::BF16, None), 0.1),
        ((Dtype::F32, Some(Quantization::Int8)), 0.5),
    ] {
        for name in TOWERS {
            let mut backend = backend(Isa::detect(), 1, format);
            let tower = Tower::load(&checkpoint(name), &mut backend).expect("complete");
            let mut most: f32 = 0.0;
            for image in images(name) {
                let vectors = encode(&tower, &mut backend, &image, image.grid);
                let error = difference(&vectors, &image.vectors);
                let about = format!("{format:?}, {name}, {:?}: {error}", image.grid);
                assert!(error < bound, "{about}");
                assert!(error > BOUND, "{about}: nothing is rounded");
                most = most.max(error);
            }
            eprintln!("{format:?}, {name}: {most:.3}");
        }
    }
}
