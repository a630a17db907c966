#![doc = include_str!("../README.md")]

pub mod blocks;
mod cursor;
pub mod dtype;
mod element;
mod file;
pub mod mapped;
mod metadata;
mod model;
mod split;
pub mod tensor_view;
mod tensors;
#[cfg(test)]
mod tests;

pub use element::ElementType;
pub use file::GgufFile;
pub use metadata::{Metadata, shown};
pub use model::{Gguf, Tensor};
pub use split::{PartName, files_of, is_projector, model_name, only_model_in};
pub use tensors::TensorInfo;
