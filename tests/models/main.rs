//! Tests of models on the CPU executor: against transformers, against the same model in other batches, and errors.

#![allow(clippy::unwrap_used)]

mod bidirectional;
mod block_formats;
mod checkpoints;
mod common;
mod draft_grammars;
mod draft_walks;
mod drafts;

#[path = "../common/embeddings.rs"]
mod embeddings;
mod errors;
mod experts;
mod gguf;
#[allow(dead_code, reason = "shared with the tests of the reader")]
#[path = "../common/gguf.rs"]
mod gguf_files;
#[allow(dead_code, reason = "shared with the tests of the scheduler")]
#[path = "../common/grammars.rs"]
mod grammars;
mod image_logits;
mod images;
mod int4;
mod invariance;
#[path = "../common/kernel_paths.rs"]
mod kernel_paths;
mod kv_int8;
mod longrope;
mod masks;
mod oracle;
mod panics;
#[path = "../common/plans.rs"]
mod plans;
mod pooling;
mod prompt_embeddings;
#[path = "../common/quantised.rs"]
mod quantised;
#[path = "../common/random_models.rs"]
mod random_models;
mod ranks;
#[path = "../common/scripted_drafts.rs"]
mod scripted_drafts;
mod shapes;
mod sparse;
mod state_drafts;
mod states;
mod steps;
mod windows;

#[test]
fn every_kernel_path_passes_these_tests() {
    kernel_paths::run_on_each("every_kernel_path_passes_these_tests", &[]);
}
