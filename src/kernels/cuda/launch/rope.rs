//! Launch of rope.cu: head norms, RoPE, and storing keys and values in the KV pool.

use super::super::driver::{DriverError, Grid, Kernel, Stream};
use super::super::pack::Modules;
use super::super::params::{ElementType, RopeStoreParams};

const THREADS: u32 = 128;
const HEADS_PER_BLOCK: u32 = 4;

/// Normalises and rotates projected queries and keys, and stores keys and values in the KV pool.
#[derive(Clone, Debug)]
pub struct RopeStore(Kernel);

impl RopeStore {
    pub fn load(modules: &Modules, element: ElementType) -> Result<Self, DriverError> {
        let name = format!("rope_store_{}", element.suffix());
        modules.kernel("rope.cu", &name).map(Self)
    }

    /// # Safety
    /// See the module.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        params: &RopeStoreParams,
        n_tokens: u32,
    ) -> Result<(), DriverError> {
        assert!(
            params.head_dim.is_multiple_of(2),
            "head_dim must be even: {params:?}"
        );
        assert_eq!(params.q_norm.is_null(), params.k_norm.is_null());
        let n_heads = params.n_heads + 2 * params.n_kv_heads;
        let grid = Grid::new([n_tokens, n_heads.div_ceil(HEADS_PER_BLOCK), 1], THREADS);
        // SAFETY: guaranteed by the caller; arguments as in rope.cu.
        unsafe { self.0.launch(stream, grid, &(*params,)) }
    }
}
