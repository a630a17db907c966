//! The digests that name a picture's vectors.

use super::files::file;
use crate::{Limits, Picture, Processor, read};

fn qwen() -> Processor {
    Processor::from_files(None, None, "qwen3_5").expect("the defaults are valid")
}

fn digest(processor: &Processor, picture: &Picture, tower: &[u8]) -> [u8; 32] {
    let prepared = processor.prepare(picture).expect("the picture fits");
    processor.digest(&prepared, tower)
}

fn read_file(name: &str) -> Picture {
    read(&file(name), &Limits::default()).expect("the file is valid")
}

#[test]
fn equal_pixels_have_one_digest_whatever_their_file() {
    let processor = qwen();
    let png = digest(&processor, &read_file("png"), b"tower");
    let webp = digest(&processor, &read_file("webp-lossless"), b"tower");
    assert_eq!(png, webp);
    assert_ne!(png, digest(&processor, &read_file("png-alpha"), b"tower"));
}

#[test]
fn one_level_the_tower_and_the_settings_change_the_digest() {
    let processor = qwen();
    // A picture that is not scaled.
    let gray = vec![90; 256 * 256 * 3];
    let picture = Picture::new(256, 256, gray.clone()).expect("the length is right");
    let name = digest(&processor, &picture, b"tower");
    for at in [0, 100_001, gray.len() - 1] {
        let mut pixels = gray.clone();
        pixels[at] += 1;
        let changed = Picture::new(256, 256, pixels).expect("the length is right");
        assert_ne!(digest(&processor, &changed, b"tower"), name, "sample {at}");
    }
    assert_ne!(digest(&processor, &picture, b"other"), name);
    let settings = r#"{"image_mean": [0.5, 0.5, 0.25], "image_std": 0.5, "patch_size": 16,
        "size": {"shortest_edge": 65536, "longest_edge": 16777216}}"#;
    let other = Processor::from_files(Some(settings), None, "qwen3_5");
    let other = other.expect("the settings are valid");
    assert_ne!(digest(&other, &picture, b"tower"), name);
    // As many pixels of another shape.
    let tall = Picture::new(128, 512, gray).expect("the length is right");
    assert_ne!(digest(&processor, &tall, b"tower"), name);
}
