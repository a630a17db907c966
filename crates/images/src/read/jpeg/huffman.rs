//! A table of Huffman codes.

/// Codes of at most this length are found by one look-up.
const SHORT_BITS: u32 = 9;

/// Codes of 1 to 16 bits, for symbols of a byte.
pub struct Huffman {
    /// Indexed by the next [`SHORT_BITS`] bits: the code's length (upper byte) and symbol, or 0 if the code is longer.
    short: [u16; 1 << SHORT_BITS],
    /// Indexed by length: the largest code of that length plus one, or 0 if there is none.
    ends: [u32; 17],
    /// Indexed by length: added to a code of that length, it gives the index of the code's symbol.
    offsets: [i32; 17],
    symbols: Vec<u8>,
}

impl Huffman {
    /// Makes the table with `counts[l - 1]` codes of length `l`; `None` if a length has too few codes for that.
    /// `symbols` has the sum of `counts` bytes.
    pub fn new(counts: &[u8; 16], symbols: &[u8]) -> Option<Self> {
        let mut table = Self {
            short: [0; 1 << SHORT_BITS],
            ends: [0; 17],
            offsets: [0; 17],
            symbols: symbols.to_vec(),
        };
        let mut code = 0_u32;
        let mut place = 0_usize;
        for length in 1..=16_u32 {
            let count = u32::from(counts[length as usize - 1]);
            table.offsets[length as usize] = place as i32 - code as i32;
            let end = code + count;
            if end > 1 << length {
                return None;
            }
            for code in code..end {
                table.set_short(code, length, symbols[place]);
                place += 1;
            }
            table.ends[length as usize] = if count == 0 { 0 } else { end };
            code = end << 1;
        }
        Some(table)
    }

    fn set_short(&mut self, code: u32, length: u32, symbol: u8) {
        if length > SHORT_BITS {
            return;
        }
        let first = (code << (SHORT_BITS - length)) as usize;
        let n_rests = 1 << (SHORT_BITS - length);
        self.short[first..first + n_rests].fill((length as u16) << 8 | u16::from(symbol));
    }

    /// The length and symbol of the code with which these 16 bits begin; `None` if they begin with no code.
    pub fn find(&self, bits: u32) -> Option<(u32, u8)> {
        let short = self.short[(bits >> (16 - SHORT_BITS)) as usize];
        if short != 0 {
            return Some((u32::from(short >> 8), short as u8));
        }
        (SHORT_BITS + 1..=16).find_map(|length| {
            let code = bits >> (16 - length);
            let is_code = code < self.ends[length as usize];
            let place = code as i32 + self.offsets[length as usize];
            is_code.then(|| (length, self.symbols[place as usize]))
        })
    }
}
