//! Qwen3-VL, dense: Qwen3 with M-RoPE. The vision tower also makes vectors for the outputs of the first layers.

use crate::family::{Defaults, Family, GgufFamily};
use crate::layer_spec::QkNorm;
use crate::qwen2;
use crate::qwen3;
use crate::rope::MropeSections;

pub(crate) static FAMILY: Family = Family {
    defaults: Defaults {
        kv_heads: Some(32),
        head_dim: Some(128),
        context: 128_000,
        theta: 5e5,
        ..qwen2::DEFAULTS
    },
    qk_norm: QkNorm::Heads,
    mrope: Some(MropeSections {
        rows: 20,
        columns: 20,
    }),
    deepstack: true,
    gguf: GgufFamily::named(Some("qwen3vl")),
    ..Family::new("Qwen3VLForConditionalGeneration", "qwen3_vl", qwen3::layer)
};
