//! Element types of weights and of the KV pool, and what matrices are quantised to.

/// Element types of weights and of the KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit brain float.
    BF16,
}

impl Dtype {
    /// Size of an element.
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

    /// Finds the dtype of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::F32, Self::F16, Self::BF16]
            .into_iter()
            .find(|dtype| dtype.name() == name)
    }
}

/// The type that matrices are quantised to when they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantization {
    /// Signed bytes, with an f32 scale for each output and 128 inputs.
    Int8,
}

impl Quantization {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
        }
    }

    /// Finds the quantization of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        (name == Self::Int8.name()).then_some(Self::Int8)
    }

    /// Bytes of a matrix `[outputs, inputs]`, scales included.
    pub fn bytes(self, outputs: u64, inputs: u64) -> u64 {
        match self {
            Self::Int8 => outputs * (inputs + 4 * inputs.div_ceil(128)),
        }
    }
}
