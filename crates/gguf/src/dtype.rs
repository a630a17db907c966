//! Element types of weights and of the KV pool, and quantization types of matrices.

use crate::blocks::BlockType;
use souffleur_base::kv_layout::KvDtype;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    F32,
    F16,
    BF16,
}

impl Dtype {
    #[inline]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// The name in `config.json` and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
        }
    }

    pub fn rounded(self, x: f32) -> f32 {
        match self {
            Self::F32 => x,
            Self::F16 => half::f16::from_f32(x).to_f32(),
            Self::BF16 => half::bf16::from_f32(x).to_f32(),
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::F32, Self::F16, Self::BF16]
            .into_iter()
            .find(|dtype| dtype.name() == name)
    }
}

impl From<Dtype> for KvDtype {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::BF16 => Self::BF16,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantization {
    /// 8-bit integers with one f32 scale per output and 128 inputs.
    Int8,
    /// GGUF superblocks of 256 inputs: Q6_K for the logits, Q4_K elsewhere.
    Int4,
}

/// The use of a matrix, which decides its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixRole {
    /// A projection inside the model, or an embedding that is not also the output projection.
    Inner,
    /// The output projection, also if tied to the embedding.
    Logits,
    /// A router, or gates of a recurrent state's decay. Always f32: a small error would change the chosen experts, or
    /// accumulate over tokens.
    Router,
}

impl MatrixRole {
    /// Bytes of a matrix `[outputs, inputs]` in `dtype` or quantised, including scales.
    #[inline]
    pub fn bytes(
        self,
        dtype: Dtype,
        quantization: Option<Quantization>,
        [outputs, inputs]: [u64; 2],
    ) -> u64 {
        match (self, quantization) {
            (Self::Router, _) => outputs * inputs * Dtype::F32.bytes() as u64,
            (_, Some(quantization)) => quantization.bytes(self, [outputs, inputs]),
            (_, None) => outputs * inputs * dtype.bytes() as u64,
        }
    }
}

impl Quantization {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Int8, Self::Int4]
            .into_iter()
            .find(|quantization| quantization.name() == name)
    }

    /// Whether matrices stored as quantised blocks keep the file's format.
    pub fn keeps_blocks(self) -> bool {
        match self {
            Self::Int8 => false,
            Self::Int4 => true,
        }
    }

    pub fn superblocks(role: MatrixRole) -> BlockType {
        match role {
            MatrixRole::Logits => BlockType::Q6K,
            MatrixRole::Inner | MatrixRole::Router => BlockType::Q4K,
        }
    }

    /// The number of consecutive inputs that share a scale.
    pub fn inputs(self, role: MatrixRole) -> usize {
        match self {
            Self::Int8 => 128,
            Self::Int4 => Self::superblocks(role).inputs(),
        }
    }

    /// Bytes of a matrix `[outputs, inputs]`, including scales.
    fn bytes(self, role: MatrixRole, [outputs, inputs]: [u64; 2]) -> u64 {
        match self {
            Self::Int8 => outputs * (inputs + 4 * inputs.div_ceil(128)),
            Self::Int4 => {
                let block = Self::superblocks(role);
                outputs * inputs.div_ceil(block.inputs() as u64) * block.bytes() as u64
            }
        }
    }
}
