//! Launches of the CUDA kernels: name, grid, shared memory and arguments, one file per family.
//!
//! # Safety
//! Every launch takes addresses, which must point to device memory of the given shape. The memory must live until the
//! stream has passed the launch, and other streams may use it only in order.

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
