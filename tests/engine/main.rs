//! The whole engine through its handle, on fake executors.

mod agentic;
mod ahead;
#[path = "../common/embeddings.rs"]
mod embeddings;
mod flow;
mod identity;
#[path = "../common/kernel_paths.rs"]
mod kernel_paths;
mod pooling;
#[path = "../common/requests.rs"]
mod requests;
mod vectors;
mod world;

#[test]
fn every_kernel_path_passes_these_tests() {
    kernel_paths::run_on_each("every_kernel_path");
}
