//! Weights as stored on disk: files, mapped and checked, never copied here.
//!
//! A model's whole set of names, shapes and element types is checked against its configuration before anything is
//! allocated for it. Nothing here knows the use of a tensor. The files are safetensors (`folder`) or GGUF
//! ([`crate::model::gguf`]); the names are those of Hugging Face's checkpoints.

mod checkpoint;
mod entry;
mod experts;
pub(crate) mod folder;
mod names;
pub(crate) mod quantised;

pub use self::checkpoint::{TypeCount, Weights};
pub(crate) use self::entry::Entry;
pub use self::quantised::{Converted, MatrixSource, QuantisedMatrix, Scheme, Target};
pub use crate::model::tensor_spec::TensorSpec;

#[cfg(test)]
mod tests;
