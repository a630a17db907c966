//! Weights as stored on disk: mapped and checked files.
//!
//! All names, shapes and element types are checked against the configuration before anything is allocated. Files are
//! safetensors (`folder`) or GGUF ([`crate::gguf`]); names are those of Hugging Face's checkpoints.

mod checkpoint;
mod entry;
mod experts;
pub mod folder;
mod names;
pub(crate) mod quantised;

pub use self::checkpoint::{TypeCount, Weights};
pub(crate) use self::entry::Entry;
pub use self::quantised::{Converted, MatrixSource, QuantisedMatrix, Scheme, Target};
pub use crate::tensor_spec::TensorSpec;

#[cfg(test)]
mod tests;
