//! Quantised block formats of GGUF: in a block, consecutive weights of a row share a scale, and often a minimum.
//!
//! [`BlockType`] has the types and their sizes; [`BlockType::decode`] matches llama.cpp and the `gguf` package bit for
//! bit (`tests/fixtures/blocks`). All fields are little endian; "low" and "high" are the nibbles of a byte. T is
//! [`IQ4_VALUES`], F is [`MXFP4_VALUES`].
//!
//! | type | block | value |
//! |---|---|---|
//! | Q4_0, Q5_0 | f16 d, (u32 fifth bits,) 16 bytes: low is input l, high input l + 16 | d (q - 8), d (q - 16) |
//! | Q4_1, Q5_1 | the same with f16 m after d | d q + m |
//! | Q8_0 | f16 d, 32 x i8 | d q |
//! | Q4_K | f16 d, f16 dmin, 12 bytes of 6-bit scales s and minima m, 128 bytes: low is sub-block 2j, high 2j + 1 | (d s) q - dmin m |
//! | Q5_K | Q4_K with 32 bytes of fifth bits before the codes, bit j of byte l for sub-block j | (d s) q - dmin m |
//! | Q6_K | 128 bytes of low halves, 64 of upper two bits, 16 x i8 s, f16 d | (d s) (q - 32) |
//! | Q2_K | 16 bytes: low s, high m; 64 bytes of two-bit codes; f16 d, f16 dmin | (d s) q - dmin m |
//! | Q3_K | 32 bytes of third bits, 64 of two-bit codes, 12 bytes of 6-bit scales, f16 d | (d (s - 32)) (q - 4) |
//! | IQ4_NL | as Q4_0 | d T\[q\] |
//! | IQ4_XS | f16 d, 2 + 4 bytes of 6-bit scales, 128 bytes as in eight blocks of IQ4_NL | (d (s - 32)) T\[q\] |
//! | MXFP4 | e (power of two), 16 bytes as Q4_0 | 2^(e - 128) F\[q\] |
//! | Affine4 | f16 s, u8 z, 16 bytes as Q4_0; not in GGUF: groups of AWQ, GPTQ and compressed-tensors | s (q - z) |

mod decode;
pub mod encode;

use self::decode::decode;
pub use self::decode::{
    IQ4_VALUES, MXFP4_VALUES, half_power, iq4_xs_scale, q3_k_scale, scale_and_min,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockType {
    /// 4 bits around zero, 32 inputs per scale.
    Q4_0,
    /// 4 bits above a minimum, 32 inputs per scale.
    Q4_1,
    /// 5 bits around zero, 32 inputs per scale.
    Q5_0,
    /// 5 bits above a minimum, 32 inputs per scale.
    Q5_1,
    /// Signed bytes, 32 inputs per scale.
    Q8_0,
    /// 2 bits above a minimum, 16 inputs per scale.
    Q2K,
    /// 3 bits around zero, 16 inputs per scale.
    Q3K,
    /// 4 bits above a minimum, 32 inputs per scale.
    Q4K,
    /// 5 bits above a minimum, 32 inputs per scale.
    Q5K,
    /// 6 bits around zero, 16 inputs per scale.
    Q6K,
    /// 4-bit indices into a table of values, 32 inputs per scale.
    Iq4Nl,
    /// 4-bit indices into a table of values, 32 inputs per 6-bit scale, 256 inputs per f16 scale.
    Iq4Xs,
    /// 4-bit floats, 32 inputs per power of two.
    Mxfp4,
    /// 4 bits around a zero point, 32 inputs per scale. Not in GGUF: for groups of AWQ, GPTQ and compressed-tensors.
    Affine4,
}

impl BlockType {
    /// All types of GGUF files, in order of their ids.
    pub const ALL: [Self; 13] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
    ];

    /// `None` for types that GGUF lacks.
    pub fn gguf_id(self) -> Option<u32> {
        Some(match self {
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q2K => 10,
            Self::Q3K => 11,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Iq4Nl => 20,
            Self::Iq4Xs => 23,
            Self::Mxfp4 => 39,
            Self::Affine4 => return None,
        })
    }

    pub fn from_gguf_id(id: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|block| block.gguf_id() == Some(id))
    }

    /// As in llama.cpp; Affine4 exists only here.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Iq4Nl => "IQ4_NL",
            Self::Iq4Xs => "IQ4_XS",
            Self::Mxfp4 => "MXFP4",
            Self::Affine4 => "Affine4",
        }
    }

    #[inline]
    pub fn inputs(self) -> usize {
        match self {
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Iq4Xs => 256,
            Self::Q4_0
            | Self::Q4_1
            | Self::Q5_0
            | Self::Q5_1
            | Self::Q8_0
            | Self::Iq4Nl
            | Self::Mxfp4
            | Self::Affine4 => 32,
        }
    }

    #[inline]
    pub fn bytes(self) -> usize {
        match self {
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Iq4Xs => 136,
            Self::Mxfp4 => 17,
            Self::Affine4 => 19,
        }
    }

    /// # Panics
    /// If `inputs` is not a multiple of the block size.
    #[inline]
    pub fn row_bytes(self, inputs: usize) -> usize {
        assert!(
            inputs.is_multiple_of(self.inputs()),
            "{inputs} inputs are not whole blocks of {}",
            self.name()
        );
        inputs / self.inputs() * self.bytes()
    }

    /// The codes of a block whose values are signed codes times the block's f16 scale.
    ///
    /// # Panics
    /// If the type is neither Q8_0 nor Q5_0, or the block too short.
    pub fn signed_codes(self, block: &[u8], out: &mut [i8; 32]) {
        decode::signed_codes(self, block, out);
    }

    /// Decodes whole blocks.
    ///
    /// # Panics
    /// If `blocks` ends inside a block, or `out` does not have as many values as the blocks.
    pub fn decode(self, blocks: &[u8], out: &mut [f32]) {
        let n_blocks = blocks.len() / self.bytes();
        assert!(
            blocks.len().is_multiple_of(self.bytes()) && out.len() == n_blocks * self.inputs(),
            "{} values do not match {} bytes of {}",
            out.len(),
            blocks.len(),
            self.name()
        );
        let blocks = blocks.chunks_exact(self.bytes());
        for (block, out) in blocks.zip(out.chunks_exact_mut(self.inputs())) {
            decode(self, block, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_are_unique() {
        for block in BlockType::ALL {
            assert_eq!(
                block.gguf_id().and_then(BlockType::from_gguf_id),
                Some(block)
            );
            let same_name = |other: &&BlockType| other.name() == block.name();
            assert_eq!(BlockType::ALL.iter().filter(same_name).count(), 1);
        }
        assert_eq!(BlockType::from_gguf_id(4), None);
        assert_eq!(BlockType::Affine4.gguf_id(), None);
    }

    #[test]
    fn affine_values_are_the_scale_times_the_code_less_the_zero_point() {
        let mut block = half::f16::from_f32(0.25).to_le_bytes().to_vec();
        block.push(16);
        block.extend((0..16).map(|l| l | (15 - l) << 4));
        let mut out = [0.0; 32];
        BlockType::Affine4.decode(&block, &mut out);
        for l in 0..16 {
            assert_eq!(out[l], 0.25 * (l as f32 - 16.0));
            assert_eq!(out[l + 16], 0.25 * (-1.0 - l as f32));
        }
    }

    #[test]
    fn values_match_the_fixtures_bit_for_bit() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/blocks");
        for block in BlockType::ALL {
            let file = format!("{folder}/{}.bin", block.name().to_lowercase());
            let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
            let n_blocks = bytes.len() / (block.bytes() + 4 * block.inputs());
            let (blocks, values) = bytes.split_at(n_blocks * block.bytes());
            let expected = values.chunks_exact(4);
            let expected: Vec<u32> = expected
                .map(|value| u32::from_le_bytes([value[0], value[1], value[2], value[3]]))
                .collect();
            assert!(n_blocks > 1 && expected.len() == n_blocks * block.inputs());
            let mut out = vec![0.0; expected.len()];
            block.decode(blocks, &mut out);
            let out: Vec<u32> = out.iter().map(|value| value.to_bits()).collect();
            assert_eq!(out, expected, "{}", block.name());
        }
    }
}
