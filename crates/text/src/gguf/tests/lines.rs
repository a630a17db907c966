//! Generates texts of many scripts from a seed.

use std::ops::RangeInclusive;

use fastrand::Rng;

pub(super) const N_LINES: usize = 10_000;

const SCRIPTS: [&[RangeInclusive<u32>]; 14] = [
    &[0x61..=0x7a, 0x61..=0x7a, 0x41..=0x5a],
    &[0xc0..=0x17f, 0x61..=0x7a, 0x300..=0x315],
    &[0x370..=0x3ff],
    &[0x410..=0x44f, 0x400..=0x4ff],
    &[0x5d0..=0x5ea, 0x5b0..=0x5c2],
    &[0x621..=0x64a, 0x64b..=0x655, 0x660..=0x669],
    &[0x905..=0x939, 0x93e..=0x94d, 0x900..=0x903],
    &[0xe01..=0xe3a, 0xe40..=0xe4e],
    &[0x4e00..=0x9fff],
    &[0x3041..=0x3096, 0x30a1..=0x30fa, 0x3000..=0x303f],
    &[0xac00..=0xd7a3, 0x1100..=0x11ff],
    &[
        0x30..=0x39,
        0x30..=0x39,
        0xb2..=0xb3,
        0xbc..=0xbe,
        0x2160..=0x2188,
        0xff10..=0xff19,
    ],
    &[
        0x21..=0x2f,
        0x3a..=0x40,
        0x5b..=0x60,
        0x7b..=0x7e,
        0x2010..=0x2027,
        0x20a0..=0x20bf,
    ],
    &[
        0x1f300..=0x1f64f,
        0x1f3fb..=0x1f3ff,
        0x200d..=0x200d,
        0xfe0f..=0xfe0f,
    ],
];

const BLANKS: [&str; 12] = [
    " ",
    " ",
    " ",
    " ",
    "  ",
    "    ",
    "\n",
    "\r\n",
    "\t",
    "\n\n \n",
    "\u{a0}",
    "\u{3000}\u{2009}",
];

const PIECES: [&str; 18] = [
    "I've",
    "don't",
    "WE'LL",
    "he'S",
    "it'\u{17f}",
    "'re",
    "3.14159",
    "1234567",
    "fn main() {\n    let x = &mut y[0];\n}",
    "\tif (a != b) { return -1; }",
    "<html lang=\"en\">",
    "https://example.org/?q=%20&x=1#y",
    "👩‍👩‍👧‍👦",
    "🏳️‍🌈",
    "क्षत्रिय",
    "\u{0}\u{7}\u{1b}\u{7f}\u{85}",
    "\u{feff}\u{200b}\u{202e}",
    "a\u{2581}b \u{2581}",
];

/// Generates lines of words in one or several scripts, pieces that tokenizers split differently, and spaces. Every
/// tenth line consists of random characters. Names from `markers` (special tokens) are inserted whole or truncated.
pub(super) fn lines(seed: u64, markers: &[String]) -> Vec<String> {
    let mut rng = Rng::with_seed(seed);
    (0..N_LINES).map(|at| line(&mut rng, at, markers)).collect()
}

fn line(rng: &mut Rng, at: usize, markers: &[String]) -> String {
    if at.is_multiple_of(10) {
        return (0..rng.usize(1..40)).map(|_| rng.char(..)).collect();
    }
    let mut line = String::new();
    let script = SCRIPTS[rng.usize(..SCRIPTS.len())];
    for _ in 0..rng.usize(1..12) {
        match rng.u8(..20) {
            0..=11 => push_word(rng, script, &mut line),
            12..=14 => {
                let other = SCRIPTS[rng.usize(..SCRIPTS.len())];
                push_word(rng, other, &mut line);
            }
            15..=17 => line.push_str(PIECES[rng.usize(..PIECES.len())]),
            _ => push_marker(rng, markers, &mut line),
        }
        if rng.u8(..8) > 0 {
            line.push_str(BLANKS[rng.usize(..BLANKS.len())]);
        }
    }
    line
}

fn push_word(rng: &mut Rng, script: &[RangeInclusive<u32>], line: &mut String) {
    for _ in 0..rng.usize(1..9) {
        let range = script[rng.usize(..script.len())].clone();
        line.extend(char::from_u32(rng.u32(range)));
    }
}

fn push_marker(rng: &mut Rng, markers: &[String], line: &mut String) {
    if let Some(marker) = rng.choice(markers) {
        let end = if rng.bool() {
            marker.len()
        } else {
            rng.usize(..marker.len())
        };
        line.push_str(&marker[..marker.floor_char_boundary(end)]);
    }
}
