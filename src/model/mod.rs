//! Models: configuration, weights, tokenizer, forward pass.
