//! Constructors of the executor under test, for tests shared with the CPU executor.

use std::path::Path;

use souffleur_executor::cuda::{CudaExecutor, CudaOptions};
use souffleur_kernels::cuda::gemm::GemmWish;
use souffleur_kernels::cuda::params::ElementType;
use souffleur_model::loader::LoadFormat;

pub use crate::model::fixture;
pub use crate::plans::*;
pub use crate::setups::load as load_from;

/// Options for a few short sequences, in f32 as the fixtures are stored.
pub fn options() -> CudaOptions {
    CudaOptions {
        element: ElementType::F32,
        load_format: LoadFormat::Auto,
        n_pages: 4096,
        page_size: 1,
        max_rows: 32,
        context_tokens: 256,
        step_tokens: 256,
        gemm: GemmWish::Own,
        graph_rows: 4,
        plan: None,
        eos_token_ids: [].into(),
    }
}

pub fn load(name: &str, options: &CudaOptions) -> CudaExecutor {
    load_from(Path::new(&fixture(name)), options)
}
