//! Tests of the whole engine through its handle, on fake executors and on the CPU executor.

mod agentic;
mod ahead;
mod bidirectional;
mod chaos;
mod draft_ends;
mod draft_images;
mod draft_nan;
mod draft_sources;
mod drafts;
#[path = "../common/embeddings.rs"]
mod embeddings;
mod ended;
mod flow;
#[allow(dead_code, reason = "shared with the tests of models")]
#[path = "../common/gguf.rs"]
mod gguf_files;
mod identity;
mod images;
mod input_embeds;
#[path = "../common/kernel_paths.rs"]
mod kernel_paths;
mod kv_bits;
mod longrope;
mod mmproj;
mod mmproj_models;
mod pooling;
#[allow(dead_code, reason = "shared with the tests of models")]
#[path = "../common/quantised.rs"]
mod quantised;
#[allow(dead_code, reason = "shared with the tests of models")]
#[path = "../common/random_models.rs"]
mod random_models;
mod ranks;
#[path = "../common/repository.rs"]
mod repository;
#[path = "../common/requests.rs"]
mod requests;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../common/scripted.rs"]
mod scripted;
#[path = "../common/scripted_drafts.rs"]
mod scripted_drafts;
mod seeing;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../common/seeing_models.rs"]
mod seeing_models;
mod speculating;
mod store;
mod vision;
mod world;

#[test]
fn every_kernel_path_passes_these_tests() {
    let numerical = [
        "identity::",
        "input_embeds::",
        "kv_bits::",
        "longrope::",
        "pooling::",
    ];
    kernel_paths::run_on_each("every_kernel_path_passes_these_tests", &numerical);
}
