//! Models: configuration, weights, tokenizer, forward pass.

pub mod text;
