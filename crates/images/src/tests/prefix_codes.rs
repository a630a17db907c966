//! Bitstreams of lossless WebPs with many prefix codes.

/// Bits, the lowest of a byte first.
#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    n_bits: usize,
}

impl Writer {
    fn bit(&mut self, bit: u32) {
        if self.n_bits.is_multiple_of(8) {
            self.bytes.push(0);
        }
        let last = self.bytes.len() - 1;
        self.bytes[last] |= ((bit & 1) as u8) << (self.n_bits % 8);
        self.n_bits += 1;
    }

    fn number(&mut self, value: u32, n_bits: u32) {
        for i in 0..n_bits {
            self.bit(value >> i);
        }
    }

    /// A code begins with its highest bit.
    fn code(&mut self, value: u32, n_bits: u32) {
        for i in (0..n_bits).rev() {
            self.bit(value >> i);
        }
    }

    /// A prefix code of one symbol.
    fn single(&mut self, symbol: u32) {
        self.number(0b101, 3);
        self.number(symbol, 8);
    }

    /// A prefix code of eleven symbols with 1 to 10 bits, whose table in the decoder has 1,024 entries.
    fn deep(&mut self) {
        self.number(0, 1);
        self.number(14 - 4, 4);
        // Code lengths of the code that encodes code lengths, in WebP's order: 17, 18, 0, 1 to 5, 16, 6 to 10.
        for n_bits in [0, 0, 0, 3, 3, 3, 3, 3, 0, 3, 4, 4, 4, 4] {
            self.number(n_bits, 3);
        }
        self.number(1, 1);
        self.number(1, 3);
        self.number(11 - 2, 4);
        for length in (1..=10).chain([10]) {
            if length <= 6 {
                self.code(length - 1, 3);
            } else {
                self.code(12 + length - 7, 4);
            }
        }
    }
}

/// A file of 64 x 64 pixels that claims 65,536 groups of prefix codes, and has `n_groups` of them and no pixels.
pub fn webp(n_groups: usize) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.number(0x2f, 8);
    writer.number(63, 14);
    writer.number(63, 14);
    writer.number(0, 4);
    // No transform, and no colour cache. An entropy image names a group of prefix codes for each 4 x 4 pixels; it has
    // no colour cache either.
    writer.number(0, 2);
    writer.number(1, 1);
    writer.number(0, 3);
    writer.number(0, 1);
    for symbol in [255, 255, 0, 0, 0] {
        writer.single(symbol);
    }
    for _ in 0..n_groups * 5 {
        writer.deep();
    }
    if !writer.bytes.len().is_multiple_of(2) {
        writer.bytes.push(0);
    }
    let length = writer.bytes.len() as u32;
    let size = (12 + length).to_le_bytes();
    let start = [&b"RIFF"[..], &size, b"WEBPVP8L", &length.to_le_bytes()].concat();
    [start, writer.bytes].concat()
}
