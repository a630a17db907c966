//! Whole files of all formats, with the pixels that Pillow reads from them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::fixture;
use crate::{Limits, inspect, kind_of, read};

#[derive(Deserialize)]
struct Entry {
    name: String,
    /// The most levels by which a sample may differ.
    tolerance: u8,
    size: (u32, u32),
    file: String,
    pixels: String,
}

/// A file of the fixture.
pub struct File {
    pub name: String,
    pub bytes: Vec<u8>,
    tolerance: u8,
    size: (u32, u32),
    pixels: Vec<u8>,
}

/// All files of the fixture.
pub fn files() -> Vec<File> {
    let entries: Vec<Entry> =
        serde_json::from_str(&fixture("files.json")).expect("the fixture is JSON");
    let decode = |text: &str| STANDARD.decode(text).expect("the fixture is base64");
    let files = entries.into_iter().map(|entry| File {
        bytes: decode(&entry.file),
        pixels: decode(&entry.pixels),
        name: entry.name,
        tolerance: entry.tolerance,
        size: entry.size,
    });
    files.collect()
}

/// The file with this name.
pub fn file(name: &str) -> Vec<u8> {
    let found = files().into_iter().find(|file| file.name == name);
    found.expect("the fixture has the file").bytes
}

#[test]
fn pixels_equal_those_of_pillow() {
    let mut wrong = Vec::new();
    for file in files() {
        let picture = match read(&file.bytes, &Limits::default()) {
            Ok(picture) => picture,
            Err(error) => {
                wrong.push(format!("{}: {error}", file.name));
                continue;
            }
        };
        let size = (picture.width(), picture.height());
        let header = inspect(&file.bytes, &Limits::default()).expect("the file was read");
        if size != file.size || header.size() != size {
            wrong.push(format!("{}: {size:?}", file.name));
            continue;
        }
        let samples = picture.pixels().iter().zip(&file.pixels);
        let most = samples.map(|(ours, theirs)| ours.abs_diff(*theirs)).max();
        if most.is_none_or(|most| most > file.tolerance) {
            wrong.push(format!("{}: {most:?} levels", file.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn formats_are_known_by_their_first_bytes() {
    for file in files() {
        let kind = kind_of(&file.bytes).expect("the format is known");
        let name = kind.to_string().to_lowercase();
        assert!(file.name.starts_with(&name), "{} is {name}", file.name);
    }
    let error = kind_of(b"<svg xmlns").expect_err("SVG is not read");
    assert_eq!(
        error.to_string(),
        "the image's first bytes (3c 73 76 67 20 78 6d 6c 6e 73) are those of no known format: \
         send PNG, JPEG, WebP or GIF"
    );
    assert!(kind_of(b"").is_err());
}

#[test]
fn chunks_beyond_the_end_of_a_webp_are_not_decoded() {
    let lossy = file("webp-lossy");
    let whole = read(&lossy, &Limits::default()).expect("the file can be read");
    let side = |side: u32| (side - 1).to_le_bytes()[..3].to_vec();
    let canvas = [vec![0; 4], side(whole.width()), side(whole.height())].concat();
    let first = [&b"VP8X"[..], &10_u32.to_le_bytes(), &canvas].concat();
    let riff = |size: usize| [&b"RIFF"[..], &(size as u32).to_le_bytes(), b"WEBP"].concat();
    let chunk = &lossy[12..];
    let inside = [&riff(4 + first.len() + chunk.len())[..], &first, chunk].concat();
    assert!(read(&inside, &Limits::default()).is_ok());
    let beyond = [&riff(4 + first.len())[..], &first, chunk].concat();
    assert!(read(&beyond, &Limits::default()).is_err());
}
