//! Models: configuration, weights, tokenizer, forward pass.

pub mod config;
pub mod generation;
mod json_file;
pub mod rope;
pub mod text;
pub mod weights;
