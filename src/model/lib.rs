//! Models: configuration, weights, tokenizer, forward pass. [`location`] resolves a model's path.
//!
//! Each family has a file with its record (`family.rs`): names, defaults, keys, tensors and layers. [`llama`] is the
//! simplest; `families.rs` lists all. Shared parts are in [`blocks`], [`attention`], [`latent`], [`layer_inputs`],
//! [`routed_experts`], [`parallel_experts`] and [`state_mixer`]. All are generic
//! over [`Backend`](souffleur_kernels::Backend), and independent of devices, requests and steps. [`vision`] has the towers of
//! vision-language models.

pub mod attention;
pub mod blocks;
pub mod config;
pub mod deepseek_v2;
pub mod deepseek_v3;
pub(crate) mod families;
pub(crate) mod family;
pub mod gemma2;
pub mod gemma3;
pub mod gemma4;
pub mod generation;
pub mod gguf;
pub mod glm4_moe_lite;
pub mod gpt_oss;
pub mod granite;
pub mod json_file;
pub mod latent;
pub mod layer_inputs;
pub mod layer_spec;
pub mod lfm2;
pub mod llama;
pub mod loader;
pub mod location;
pub mod ministral3;
pub mod mistral;
pub mod mixtral;
pub mod olmo2;
pub mod origin;
pub mod parallel_experts;
pub mod phi3;
pub mod qwen2;
pub mod qwen3;
pub mod qwen3_5;
pub mod qwen3_moe;
pub mod qwen3_vl;
pub mod random;
pub mod ranks;
pub mod rope;
pub mod routed_experts;
pub mod smollm3;
pub mod sparsity;
pub mod state_mixer;
pub(crate) mod tensor_spec;
pub mod vision;
pub mod weights;

pub use souffleur_text as text;

// Only the tests of the GGUF crate use some of these types.
#[cfg(test)]
#[allow(dead_code)]
#[path = "../../crates/gguf/src/tests/writer.rs"]
mod gguf_writer;
