//! The memory that the prefix codes of a lossless WebP take in its decoder.
//!
//! A picture may have 65,536 groups of prefix codes, and a code whose tables take 4 KiB may be written in a dozen
//! bytes: a file of a few megabytes could make the decoder take a gigabyte. So this module counts the memory of the
//! codes, in a pass over the bitstream's start that keeps no pixels.
//!
//! Source: Specification for WebP Lossless Bitstream, sections 4 to 6. A bitstream that ends or contradicts itself is
//! counted up to there; the decoder refuses it.

/// The order in which the bitstream has the code lengths of the code that encodes code lengths.
const LENGTH_ORDER: [usize; 19] = [
    17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
];
/// The symbols of green with lengths of copies, red, blue, alpha, and distances of copies.
const ALPHABETS: [usize; 5] = [280, 256, 256, 256, 40];
/// Bytes of a group in the decoder's list, whose capacity doubles when it is full.
const GROUP_BYTES: u64 = 840;
/// Longer codes are in a tree in the decoder, and not in its table.
const MAX_TABLE_BITS: usize = 10;
/// Bytes of a symbol with a longer code: two nodes of the tree.
const LONG_CODE_BYTES: u64 = 32;
const TWO_SYMBOLS_BYTES: u64 = 56;

/// Bits, the lowest of a byte first.
struct Bits<'a> {
    data: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn take(&mut self, n_bits: u32) -> Option<u32> {
        let mut value = 0;
        for i in 0..n_bits {
            let byte = *self.data.get(self.at / 8)?;
            value |= u32::from((byte >> (self.at % 8)) & 1) << i;
            self.at += 1;
        }
        Some(value)
    }

    fn flag(&mut self) -> Option<bool> {
        Some(self.take(1)? == 1)
    }

    /// A length or distance, whose symbol has the number of its further bits.
    fn skip_length(&mut self, symbol: u16) -> Option<usize> {
        let symbol = u32::from(symbol);
        if symbol < 4 {
            return Some(symbol as usize + 1);
        }
        let n_bits = (symbol - 2) / 2;
        let offset = (2 + symbol % 2) << n_bits;
        Some((offset + self.take(n_bits)?) as usize + 1)
    }
}

/// A canonical prefix code.
struct Code {
    /// Ordered by code length, then by number.
    symbols: Vec<u16>,
    /// The number of symbols of each code length.
    counts: [u16; 16],
    /// Its tables in the decoder.
    bytes: u64,
}

impl Code {
    fn of_lengths(lengths: &[u8]) -> Option<Self> {
        let coded = lengths.iter().zip(0..).filter(|(length, _)| **length > 0);
        let mut sorted: Vec<(u8, u16)> = coded.map(|(length, symbol)| (*length, symbol)).collect();
        sorted.sort_unstable();
        let longest = usize::from(sorted.last()?.0);
        let mut counts = [0_u16; 16];
        for (length, _) in &sorted {
            counts[usize::from(*length)] += 1;
        }
        let used = counts.iter().zip(0..).skip(1);
        let used: u32 = used
            .map(|(count, length)| u32::from(*count) << (15 - length))
            .sum();
        // The decoder refuses codes that are not complete.
        if sorted.len() > 1 && used != 1 << 15 {
            return None;
        }
        let n_long = sorted
            .iter()
            .filter(|(length, _)| usize::from(*length) > MAX_TABLE_BITS);
        let tables = 4_u64 << longest.min(MAX_TABLE_BITS);
        let bytes = tables + LONG_CODE_BYTES * n_long.count() as u64;
        Some(Self {
            bytes: if sorted.len() == 1 { 0 } else { bytes },
            symbols: sorted.into_iter().map(|(_, symbol)| symbol).collect(),
            counts,
        })
    }

    fn read(bits: &mut Bits, n_symbols: usize) -> Option<Self> {
        if !bits.flag()? {
            return Self::of_lengths(&read_lengths(bits, n_symbols)?);
        }
        let has_second = bits.flag()?;
        let n_bits = if bits.flag()? { 8 } else { 1 };
        let mut symbols = vec![bits.take(n_bits)? as u16];
        let mut counts = [0; 16];
        if has_second {
            symbols.push(bits.take(8)? as u16);
            counts[1] = 2;
        }
        if symbols
            .iter()
            .any(|symbol| usize::from(*symbol) >= n_symbols)
        {
            return None;
        }
        Some(Self {
            symbols,
            counts,
            bytes: if has_second { TWO_SYMBOLS_BYTES } else { 0 },
        })
    }

    fn symbol(&self, bits: &mut Bits) -> Option<u16> {
        if let [only] = self.symbols[..] {
            return Some(only);
        }
        let (mut code, mut first, mut index) = (0_u32, 0_u32, 0_u32);
        for count in &self.counts[1..] {
            code |= bits.take(1)?;
            let count = u32::from(*count);
            if (first..first + count).contains(&code) {
                return self.symbols.get((index + code - first) as usize).copied();
            }
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        None
    }
}

/// Reads the code length of each symbol. The lengths themselves are encoded with a prefix code.
fn read_lengths(bits: &mut Bits, n_symbols: usize) -> Option<Vec<u8>> {
    let mut of_lengths = [0; 19];
    let n_lengths = 4 + bits.take(4)? as usize;
    for place in &LENGTH_ORDER[..n_lengths] {
        of_lengths[*place] = bits.take(3)? as u8;
    }
    let code = Code::of_lengths(&of_lengths)?;
    let mut n_codes = n_symbols;
    if bits.flag()? {
        let n_bits = 2 + 2 * bits.take(3)?;
        n_codes = 2 + bits.take(n_bits)? as usize;
    }
    let mut lengths = Vec::with_capacity(n_symbols);
    let mut last = 8;
    while lengths.len() < n_symbols && n_codes > 0 {
        n_codes -= 1;
        let (length, n_times) = match code.symbol(bits)? {
            16 => (last, 3 + bits.take(2)?),
            17 => (0, 3 + bits.take(3)?),
            18 => (0, 11 + bits.take(7)?),
            length => (length as u8, 1),
        };
        if length > 0 {
            last = length;
        }
        lengths.extend(std::iter::repeat_n(length, n_times as usize));
    }
    (lengths.len() <= n_symbols).then_some(lengths)
}

/// The number of colours in the cache; 0 without a cache.
fn read_cache(bits: &mut Bits) -> Option<usize> {
    if !bits.flag()? {
        return Some(0);
    }
    let n_bits = bits.take(4)?;
    (1..=11).contains(&n_bits).then_some(1 << n_bits)
}

/// Reads a group of prefix codes, one for each alphabet.
fn read_group(bits: &mut Bits, n_cached: usize) -> Option<Vec<Code>> {
    let mut group = Vec::with_capacity(ALPHABETS.len());
    for (i, n_symbols) in ALPHABETS.into_iter().enumerate() {
        let n_cached = if i == 0 { n_cached } else { 0 };
        group.push(Code::read(bits, n_symbols + n_cached)?);
    }
    Some(group)
}

/// Reads a picture of one group that describes another. Returns the largest number that red and green make of a pixel;
/// copied and cached pixels have numbers that came before.
fn largest_of(bits: &mut Bits, (width, height): (u32, u32)) -> Option<u32> {
    let n_cached = read_cache(bits)?;
    let group = read_group(bits, n_cached)?;
    let n_pixels = width as usize * height as usize;
    let (mut at, mut largest) = (0, 0);
    while at < n_pixels {
        let green = group[0].symbol(bits)?;
        match green {
            0..=255 => {
                let red = group[1].symbol(bits)?;
                group[2].symbol(bits)?;
                group[3].symbol(bits)?;
                largest = largest.max((u32::from(red) << 8) | u32::from(green));
                at += 1;
            }
            256..=279 => {
                at += bits.skip_length(green - 256)?;
                let distance = group[4].symbol(bits)?;
                bits.skip_length(distance)?;
            }
            _ => at += 1,
        }
    }
    Some(largest)
}

fn subsampled((width, height): (u32, u32), n_bits: u32) -> (u32, u32) {
    (width.div_ceil(1 << n_bits), height.div_ceil(1 << n_bits))
}

/// Reads the number of groups of prefix codes, and the number of colours in the colour cache.
fn n_groups(bits: &mut Bits, mut size: (u32, u32)) -> Option<(u32, usize)> {
    let mut has_transform = [false; 4];
    while bits.flag()? {
        let transform = bits.take(2)?;
        if std::mem::replace(&mut has_transform[transform as usize], true) {
            return None;
        }
        match transform {
            0 | 1 => {
                let n_bits = 2 + bits.take(3)?;
                largest_of(bits, subsampled(size, n_bits))?;
            }
            2 => {}
            _ => {
                let n_colours = 1 + bits.take(8)?;
                largest_of(bits, (n_colours, 1))?;
                let n_bits = match n_colours {
                    1..=2 => 3,
                    3..=4 => 2,
                    5..=16 => 1,
                    _ => 0,
                };
                size.0 = subsampled(size, n_bits).0;
            }
        }
    }
    let n_cached = read_cache(bits)?;
    if !bits.flag()? {
        return Some((1, n_cached));
    }
    let n_bits = 2 + bits.take(3)?;
    let largest = largest_of(bits, subsampled(size, n_bits))?;
    Some((largest + 1, n_cached))
}

/// The bytes that the prefix codes of a picture of `size` (width, height) take in the decoder; they follow a header of
/// `header_bits`. Counts no further than `most`, and returns 0 for a picture of more than `most` pixels.
pub(super) fn code_bytes(data: &[u8], header_bits: usize, size: (u32, u32), most: u64) -> u64 {
    if u64::from(size.0) * u64::from(size.1) > most {
        return 0;
    }
    let mut bits = Bits {
        data,
        at: header_bits,
    };
    let (n_groups, n_cached) = n_groups(&mut bits, size).unwrap_or_default();
    let mut bytes = 0;
    for _ in 0..n_groups {
        let Some(group) = read_group(&mut bits, n_cached) else {
            break;
        };
        bytes += GROUP_BYTES + group.iter().map(|code| code.bytes).sum::<u64>();
        if bytes > most {
            break;
        }
    }
    bytes
}
