//! The implementation of matrix products on a GPU, which a configuration names in every build.

use serde::{Deserialize, Serialize};

/// Implementation of matrix products on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GemmWish {
    /// cuBLASLt if it can be loaded, except for the few rows of a small decode; else the built-in kernels.
    #[default]
    Auto,
    /// cuBLASLt for all supported products; an error if it cannot be loaded.
    CublasLt,
    /// The built-in kernels.
    Own,
}
