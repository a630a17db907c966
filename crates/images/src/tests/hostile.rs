//! Hostile files: each is refused by a typed error, or read within the limits' memory.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::files::{file, files};
use super::memory::peak_of;
use super::png_writer::{Source, chunk, header, stored};
use super::prefix_codes;
use crate::{Limits, read};
use Outcome::{Any, Read, Refused};

/// The memory of a file's own pieces, and of decoders' tables, above the limit.
const SLACK: u64 = 4 << 20;

/// An expected outcome.
enum Outcome {
    /// An error with one of these codes.
    Refused(&'static [&'static str]),
    Read,
    /// Either: a damaged byte may change pixels alone.
    Any,
}

struct Hostile {
    name: String,
    bytes: Vec<u8>,
    limits: Limits,
    outcome: Outcome,
}

fn hostile(name: impl Into<String>, bytes: Vec<u8>, outcome: Outcome) -> Hostile {
    Hostile {
        name: name.into(),
        bytes,
        limits: Limits::of_pixels(1 << 20),
        outcome,
    }
}

fn png(header: &[u8], chunks: &[Vec<u8>]) -> Vec<u8> {
    super::png_writer::file(header, chunks)
}

fn compressed(n_bytes: usize) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    let zeros = vec![0; n_bytes];
    encoder.write_all(&zeros).expect("a Vec takes all bytes");
    encoder.finish().expect("a Vec takes all bytes")
}

/// Files that end too early.
fn cuts(random: &mut fastrand::Rng) -> Vec<Hostile> {
    let mut cuts = Vec::new();
    for file in files() {
        // The first frame of a GIF may be whole although the file is not; it does not end in the first quarter.
        let mut end = file.bytes.len();
        if file.name.starts_with("gif") {
            end /= 4;
        }
        for _ in 0..5 {
            let bytes = file.bytes[..random.usize(..end)].to_vec();
            let codes = &["image_cut", "image_format_unknown"];
            cuts.push(hostile(
                format!("{} cut at {}", file.name, bytes.len()),
                bytes,
                Refused(codes),
            ));
        }
    }
    cuts
}

/// Files with a changed byte, which checksums find only in PNGs.
fn flips(random: &mut fastrand::Rng) -> Vec<Hostile> {
    let mut flips = Vec::new();
    for file in files() {
        for _ in 0..4 {
            let mut bytes = file.bytes.clone();
            let at = random.usize(..bytes.len());
            bytes[at] ^= 1 << random.u8(..8);
            flips.push(hostile(
                format!("{} changed at {at}", file.name),
                bytes,
                Any,
            ));
        }
    }
    flips
}

/// Headers that claim sizes which the files do not have.
fn sizes() -> Vec<Hostile> {
    let mut sizes = Vec::new();
    let claims: [(u32, u32, &'static [&'static str]); 9] = [
        (1 << 31, 1, &["image_too_large"]),
        (1, 1 << 31, &["image_too_large"]),
        (u32::MAX, 1, &["image_damaged"]),
        ((1 << 31) - 1, (1 << 31) - 1, &["image_too_large"]),
        (65_535, 65_535, &["image_too_large"]),
        (12_000, 12_000, &["image_too_large"]),
        (1025, 1024, &["image_too_large"]),
        (0, 5, &["image_empty"]),
        (5, 0, &["image_empty"]),
    ];
    for (width, height, codes) in claims {
        let header = header(width, height, (2, 8), false);
        let bytes = png(&header, &[chunk(b"IDAT", &compressed(1000))]);
        sizes.push(hostile(
            format!("PNG {width} x {height}"),
            bytes,
            Refused(codes),
        ));
    }
    let too_few = png(
        &header(1000, 1000, (2, 8), false),
        &[chunk(b"IDAT", &stored(&[0; 100]))],
    );
    sizes.push(hostile(
        "PNG with too few rows",
        too_few,
        Refused(&["image_cut", "image_damaged"]),
    ));
    for (name, width, height) in [
        ("jpeg-444", 65_535_u16, 65_535_u16),
        ("jpeg-444", 1025, 1024),
        ("jpeg-progressive", 65_535, 65_535),
        ("jpeg-444", 0, 20),
        ("jpeg-444", 20, 0),
    ] {
        let bytes = resized_jpeg(name, width, height);
        let codes = &["image_too_large", "image_empty"];
        sizes.push(hostile(
            format!("{name} {width} x {height}"),
            bytes,
            Refused(codes),
        ));
    }
    let mut costly = hostile(
        "progressive JPEG of 16 Mi pixels",
        resized_jpeg("jpeg-progressive", 4096, 4096),
        Refused(&["image_too_costly"]),
    );
    costly.limits = Limits::default();
    sizes.push(costly);
    let mut gif = file("gif");
    gif[6..10].fill(0xff);
    sizes.push(hostile(
        "GIF 65535 x 65535",
        gif,
        Refused(&["image_too_large"]),
    ));
    let mut webp = file("webp-lossless");
    webp[21..24].fill(0xff);
    sizes.push(hostile(
        "WebP 16384 x 16384",
        webp,
        Refused(&["image_too_large"]),
    ));
    sizes
}

/// A JPEG whose frame claims another size.
fn resized_jpeg(name: &str, width: u16, height: u16) -> Vec<u8> {
    let mut bytes = file(name);
    let frame = bytes
        .windows(2)
        .position(|pair| pair[0] == 0xff && (pair[1] == 0xc0 || pair[1] == 0xc2))
        .expect("the file has a frame");
    bytes[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
    bytes[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
    bytes
}

/// Lengths of chunks and segments that are wrong.
fn lengths() -> Vec<Hostile> {
    let mut lengths = Vec::new();
    let broken: &[&str] = &["image_cut", "image_damaged", "image_unsupported"];
    // The lengths of IHDR and of the chunk after it.
    for at in [8, 33] {
        for length in [0, 12, 14, 0x7fff_ffff, u32::MAX] {
            let mut bytes = file("png");
            bytes[at..at + 4].copy_from_slice(&length.to_be_bytes());
            lengths.push(hostile(
                format!("PNG length {length} at {at}"),
                bytes,
                Refused(broken),
            ));
        }
    }
    for length in [0_u16, 1, 65_535] {
        let mut bytes = file("jpeg-444");
        bytes[4..6].copy_from_slice(&length.to_be_bytes());
        lengths.push(hostile(
            format!("JPEG length {length}"),
            bytes,
            Refused(broken),
        ));
    }
    for at in [4, 16] {
        for length in [0x7fff_fff0_u32, u32::MAX] {
            let mut bytes = file("webp-lossy");
            bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
            lengths.push(hostile(
                format!("WebP length {length} at {at}"),
                bytes,
                Refused(broken),
            ));
        }
    }
    lengths
}

/// A JPEG with this number of scans: its last one, again and again.
fn scans(n_scans: usize) -> Vec<u8> {
    let bytes = file("jpeg-progressive");
    let scan = bytes.windows(2).rposition(|pair| pair == [0xff, 0xda]);
    let scan = scan.expect("the file has a scan");
    let end = bytes.len() - 2;
    let repeated = bytes[scan..end].repeat(n_scans);
    [&bytes[..scan], &repeated, &bytes[end..]].concat()
}

/// A GIF with this number of frames: its first one, again and again.
fn gif_frames(n_frames: usize) -> Vec<u8> {
    let bytes = file("gif");
    let frame = 13 + 3 * (2 << (bytes[10] & 7));
    let end = bytes.len() - 1;
    let repeated = bytes[frame..end].repeat(n_frames);
    [&bytes[..frame], &repeated, b";"].concat()
}

/// An animated WebP with this number of frames.
fn webp_frames(n_frames: usize) -> Vec<u8> {
    let bytes = file("webp-lossless");
    let length = bytes[16..20].try_into().map(u32::from_le_bytes);
    let length = length.expect("four bytes") as usize;
    let picture = &bytes[12..20 + length.next_multiple_of(2)];
    let piece = |name: &[u8; 4], data: &[u8]| {
        [&name[..], &(data.len() as u32).to_le_bytes(), data].concat()
    };
    // Width and height less one, in three bytes each: 29 x 22.
    let size = [28, 0, 0, 21, 0, 0];
    let canvas = piece(b"VP8X", &[&[2, 0, 0, 0][..], &size].concat());
    let frame = [&[0; 6][..], &size, &[0; 4], picture].concat();
    let frames = piece(b"ANMF", &frame).repeat(n_frames);
    let content = [b"WEBP".to_vec(), canvas, piece(b"ANIM", &[0; 6]), frames].concat();
    piece(b"RIFF", &content)
}

/// Files that are small, and make decoders work.
fn bombs() -> Vec<Hostile> {
    let zeros = compressed(16 << 20);
    let rows = stored(&[0; 31 * 20]);
    let small = header(10, 20, (2, 8), false);
    let profile = [b"a\0\0".to_vec(), zeros.clone()].concat();
    let long_text = [b"a\0\0".to_vec(), zeros.clone()].concat();
    let pixels = chunk(b"IDAT", &rows);
    let with = |name: &[u8; 4], data: &[u8]| png(&small, &[chunk(name, data), pixels.clone()]);
    let scans_code: &[&str] = &["image_scans"];
    let codes = prefix_codes::webp(1000);
    vec![
        hostile(
            "PNG that inflates on",
            png(&small, &[chunk(b"IDAT", &zeros)]),
            Any,
        ),
        hostile("PNG with a large profile", with(b"iCCP", &profile), Read),
        hostile("PNG with a large text", with(b"zTXt", &long_text), Read),
        hostile("JPEG of 1,000 scans", scans(1000), Refused(scans_code)),
        hostile("JPEG of 33 scans", scans(33), Refused(scans_code)),
        hostile("WebP of deep codes", codes, Refused(&["image_too_costly"])),
        hostile("GIF of 10,000 frames", gif_frames(10_000), Read),
        hostile("WebP of 1,000 frames", webp_frames(1000), Read),
        hostile(
            "GIF with no frame",
            b"GIF89a\x05\0\x05\0\0\0\0;".to_vec(),
            Refused(&["image_damaged"]),
        ),
    ]
}

/// Random bytes after each format's first.
fn noise(random: &mut fastrand::Rng) -> Vec<Hostile> {
    let starts: [&[u8]; 4] = [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        b"\xff\xd8\xff\xc0\0\x11\x08",
        b"GIF89a",
        b"RIFF\xf8\x01\0\0WEBPVP8 ",
    ];
    let files = (0..40).map(|i| {
        let mut bytes = starts[i % 4].to_vec();
        bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(500));
        hostile(format!("noise {i}"), bytes, Any)
    });
    files.collect()
}

fn check(file: &Hostile) -> Result<(), String> {
    let (result, peak) = peak_of(|| read(&file.bytes, &file.limits));
    let most = file.limits.max_bytes + SLACK;
    if peak > most {
        return Err(format!("{}: {peak} bytes, at most {most}", file.name));
    }
    match (&result, &file.outcome) {
        (Err(error), Refused(codes)) if codes.contains(&error.code()) => Ok(()),
        (Ok(_), Read) | (_, Any) => Ok(()),
        _ => Err(format!("{}: {result:?}", file.name)),
    }
}

#[test]
fn hostile_files_are_refused_within_the_limits() {
    let mut random = fastrand::Rng::with_seed(55);
    let mut hostile = cuts(&mut random);
    hostile.extend(flips(&mut random));
    hostile.extend(noise(&mut random));
    hostile.extend(sizes().into_iter().chain(lengths()).chain(bombs()));
    assert!(hostile.len() >= 200, "only {} files", hostile.len());
    let wrong: Vec<String> = hostile
        .iter()
        .filter_map(|file| check(file).err())
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A file with one to four changes: bytes that are replaced, left out or written twice.
fn changed(mut bytes: Vec<u8>, random: &mut fastrand::Rng) -> Vec<u8> {
    for _ in 0..random.usize(1..5) {
        let at = random.usize(..bytes.len());
        let end = bytes.len().min(at + random.usize(1..9));
        match random.u8(..4) {
            0 => bytes[at..end].fill(random.u8(..)),
            1 => bytes[at] ^= 1 << random.u8(..8),
            2 => bytes.truncate(end),
            _ => bytes.extend_from_within(at..end),
        }
    }
    bytes
}

/// `SOUFFLEUR_IMAGE_CHANGES` sets the number of files.
#[test]
fn changed_files_stay_within_the_limits() {
    let number = std::env::var("SOUFFLEUR_IMAGE_CHANGES").ok();
    let number = number.and_then(|number| number.parse().ok());
    let files = files();
    for seed in 0..number.unwrap_or(400) {
        let mut random = fastrand::Rng::with_seed(seed);
        let file = &files[random.usize(..files.len())];
        let bytes = changed(file.bytes.clone(), &mut random);
        let name = format!("{} of seed {seed}", file.name);
        check(&hostile(name, bytes, Any)).expect("the limits hold");
    }
}

#[test]
fn sides_above_their_limit_are_refused() {
    let limits = Limits {
        max_side: 60,
        ..Limits::default()
    };
    let wide = Source {
        width: 61,
        height: 1,
        kind: "rgb8",
        seed: 1,
        orientation: 1,
        is_interlaced: false,
    };
    let refused = read(&wide.png(), &limits).expect_err("the side is above the limit");
    assert_eq!(refused.code(), "image_too_large");
}
