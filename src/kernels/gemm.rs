//! The choice of matrix products on a GPU, which a configuration has in every build.

use serde::{Deserialize, Serialize};

/// Whose matrix products to use on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GemmWish {
    /// cuBLASLt if it can be loaded, but our own for the few rows of a small decode; else our own.
    #[default]
    Auto,
    /// cuBLASLt for all that it can do; an error if it cannot be loaded.
    CublasLt,
    /// Our own.
    Own,
}
