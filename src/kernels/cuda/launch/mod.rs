//! How each kernel is launched: its name, blocks, threads, shared memory and arguments, one file for each family.
//!
//! Every launch is `unsafe` for the same reason: it takes addresses. They must point to memory of the device, of the
//! shape that the launch names, alive until the stream has passed it, and used by no other stream unordered.

mod activation;
mod attention;
mod embed;
mod fill;
mod gemm;
mod kv_blocks;
mod norm;
mod rope;

pub use activation::SiluMul;
pub use attention::{AttendShape, Attention};
pub use embed::Embed;
pub use fill::FillRandom;
pub use gemm::{GemmChoice, GemmShape, OwnGemm};
pub use kv_blocks::{BlockCopy, KvBlockParams, KvBlocks, MOST_BLOCK_PAGES, WORD_BYTES};
pub use norm::RmsNorm;
pub use rope::RopeStore;
