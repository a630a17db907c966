//! Pixels of small files that are written here, as Pillow 13 reads them.

use super::png_writer::{chunk, file, header, stored};
use crate::{Limits, read};

fn pixels(file: &[u8]) -> Vec<u8> {
    let picture = read(file, &Limits::default()).expect("the file is whole");
    picture.pixels().to_vec()
}

/// A PNG of one row of samples of 16 bits.
fn deep_png(colour: u8, width: u32, samples: &[u16], transparent: Option<u16>) -> Vec<u8> {
    let bytes = samples.iter().flat_map(|sample| sample.to_be_bytes());
    let row: Vec<u8> = [0].into_iter().chain(bytes).collect();
    let clear = transparent.map(|grey| chunk(b"tRNS", &grey.to_be_bytes()));
    let chunks: Vec<Vec<u8>> = clear
        .into_iter()
        .chain([chunk(b"IDAT", &stored(&row))])
        .collect();
    file(&header(width, 1, (colour, 16), false), &chunks)
}

const GREYS: [u16; 8] = [0, 1, 200, 255, 256, 300, 49_151, 65_535];

#[test]
fn grey_samples_of_16_bits_are_clipped_and_others_lose_their_lower_bits() {
    let grey = |values: [u8; 8]| values.map(|value| [value; 3]).concat();
    let clipped = grey([0, 1, 200, 255, 255, 255, 255, 255]);
    for (transparent, expected) in [
        (None, clipped.clone()),
        (Some(300), clipped),
        (Some(200), grey([0, 1, 255, 255, 255, 255, 255, 255])),
    ] {
        let found = pixels(&deep_png(0, 8, &GREYS, transparent));
        assert_eq!(found, expected, "{transparent:?}");
    }
    // With an alpha of 128 after it loses its lower bits.
    let with_alpha = GREYS.map(|value| [value, 0x80ff]).concat();
    let expected = grey([127, 127, 127, 127, 128, 128, 223, 255]);
    assert_eq!(pixels(&deep_png(4, 8, &with_alpha, None)), expected);
    let colours = [0x1234, 300, 65_535, 255, 256, 0x80ff];
    let expected = [0x12, 1, 255, 0, 1, 128];
    assert_eq!(pixels(&deep_png(2, 2, &colours, None)), expected);
}

/// A GIF of 2 x 1 pixels, whose table has red and green. Its background is colour 1; its frame is one green pixel at
/// `left`.
fn gif(left: u8, transparent: Option<u8>) -> Vec<u8> {
    let screen = b"GIF89a\x02\0\x01\0\x80\x01\0\xff\0\0\0\xff\0";
    let control = transparent.map(|index| vec![b'!', 0xf9, 4, 1, 0, 0, index, 0]);
    let frame = [b',', left, 0, 0, 0, 1, 0, 1, 0, 0, 2, 2, 0x4c, 1, 0, b';'];
    [&screen[..], &control.unwrap_or_default(), &frame].concat()
}

#[test]
fn a_gif_shows_colour_0_around_its_first_frame_or_white_if_it_has_a_transparent_one() {
    const RED: [u8; 3] = [255, 0, 0];
    const GREEN: [u8; 3] = [0, 255, 0];
    const WHITE: [u8; 3] = [255; 3];
    for (left, transparent, expected) in [
        (0, None, [GREEN, RED]),
        (1, None, [RED, GREEN]),
        (0, Some(0), [GREEN, WHITE]),
        (0, Some(1), [WHITE, WHITE]),
        (0, Some(3), [GREEN, WHITE]),
    ] {
        let found = pixels(&gif(left, transparent));
        assert_eq!(found, expected.concat(), "{left} {transparent:?}");
    }
}
