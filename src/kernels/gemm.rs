//! The configuration key that selects the GPU's matrix-product (GEMM) implementation; compiled into every build.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GemmWish {
    /// cuBLASLt if it can be loaded, except for few rows (small decodes); else our own kernels.
    #[default]
    Auto,
    /// cuBLASLt for all supported products; an error if it cannot be loaded.
    CublasLt,
    Own,
}
