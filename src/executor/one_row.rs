//! Options of a CPU executor that runs one sequence at a time.

use crate::cpu::CpuOptions;
use souffleur_kernels::cpu::Numa;
use souffleur_model::loader::LoadFormat;

impl CpuOptions {
    /// Options for one row and `n_pages` pages of one token, with the checkpoint's data types.
    pub(super) fn for_one_row(n_pages: usize, threads: usize) -> Self {
        Self {
            dtype: None,
            kv_dtype: None,
            quantization: None,
            load_format: LoadFormat::Auto,
            n_pages,
            page_size: 1,
            threads,
            pin_threads: false,
            numa: Numa::Off,
            max_rows: 1,
            n_state_slots: 1,
            n_window_pages: 0,
            isa: None,
            shared_prefix: true,
            eos_token_ids: [].into(),
            sparsity: None,
            speculation: None,
        }
    }
}
