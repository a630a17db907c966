//! Matrix products on the GPU: by cuBLASLt where available and faster, else by our own kernels.

mod cublaslt;

use self::cublaslt::CublasLt;
use super::driver::{Device, DeviceBuffer, DriverError, Stream};
use super::launch::OwnGemm;
use super::pack::Modules;
use super::params::{ElementType, GemmParams};
pub use crate::gemm::GemmWish;

/// Workspace sizes that NVIDIA recommends for cuBLASLt: on Hopper and later, and on earlier GPUs.
const HOPPER_WORKSPACE_BYTES: usize = 32 << 20;
const WORKSPACE_BYTES: usize = 4 << 20;
/// The lowest compute capability on which our own kernels multiply few rows even with cuBLASLt.
const OWN_FOR_FEW_ROWS_FROM: (u32, u32) = (9, 0);

/// Matrix products, for one stream at a time: all of them share a workspace.
#[derive(Debug)]
pub struct Products {
    own: OwnGemm,
    cublaslt: Option<CublasLt>,
    /// Whether our own kernels multiply few rows, as they are faster there.
    is_own_for_few_rows: bool,
    workspace: DeviceBuffer<u8>,
}

impl Products {
    /// # Errors
    /// If a kernel is missing, memory is exhausted, or `wish` requires cuBLASLt, which cannot be loaded.
    pub fn new(
        device: &Device,
        modules: &Modules,
        element: ElementType,
        wish: GemmWish,
    ) -> Result<Self, DriverError> {
        let info = device.info();
        let own = OwnGemm::load(modules, element, info.multiprocessors)?;
        let lt_bytes = match info.capability.0 {
            ..9 => WORKSPACE_BYTES,
            _ => HOPPER_WORKSPACE_BYTES,
        };
        let cublaslt = match (wish, CublasLt::load) {
            (GemmWish::Own, _) => None,
            (wish, load) => match load(device, element) {
                Ok(cublaslt) => Some(cublaslt),
                Err(reason) if wish == GemmWish::CublasLt => {
                    return Err(DriverError::unsupported(format!(
                        "--gemm cublaslt: {reason}; install a CUDA toolkit or the Python package nvidia-cublas, or \
                         use --gemm own"
                    )));
                }
                Err(reason) => {
                    tracing::info!(reason, "cannot load cuBLASLt: using built-in GEMM kernels");
                    None
                }
            },
        };
        let lt_bytes = cublaslt.as_ref().map_or(0, |_| lt_bytes);
        Ok(Self {
            workspace: device.alloc(lt_bytes.max(own.workspace_bytes()))?,
            own,
            cublaslt,
            is_own_for_few_rows: wish == GemmWish::Auto && Self::own_for_few_rows(device, element),
        })
    }

    /// Upper bound of the products' device memory, without operands.
    pub fn workspace_bytes(multiprocessors: u32) -> u64 {
        OwnGemm::max_workspace_bytes(multiprocessors).max(HOPPER_WORKSPACE_BYTES) as u64
    }

    /// Whether `auto` uses our own kernels for few rows: in bf16, on GPUs where they are faster, as measured on Hopper
    /// (`docs/gpu.md`) and assumed for later ones.
    fn own_for_few_rows(device: &Device, element: ElementType) -> bool {
        element == ElementType::Bf16 && device.info().capability >= OWN_FOR_FEW_ROWS_FROM
    }

    /// `own`, `cublaslt`, or `both` if few rows use our own kernels.
    pub fn multipliers(device: &Device, element: ElementType, wish: GemmWish) -> &'static str {
        match wish {
            GemmWish::Own => "own",
            GemmWish::CublasLt => "cublaslt",
            GemmWish::Auto if !CublasLt::is_installed(device) => "own",
            GemmWish::Auto if Self::own_for_few_rows(device, element) => "both",
            GemmWish::Auto => "cublaslt",
        }
    }

    /// `cublaslt` or `own`.
    pub fn name(&self) -> &'static str {
        match self.cublaslt {
            Some(_) => "cublaslt",
            None => "own",
        }
    }

    /// Products that fell back from cuBLASLt to our own kernels; products of a graph count once, on capture.
    pub fn n_cublaslt_fallbacks(&self) -> u64 {
        self.cublaslt.as_ref().map_or(0, CublasLt::n_fallbacks)
    }

    /// Multiplies, and sets `partials` and `n_splits` itself. A shape for which cuBLASLt has no algorithm, or fails,
    /// falls back to our own kernels. The first call for a shape runs cuBLASLt's heuristic, later calls allocate
    /// nothing.
    ///
    /// # Safety
    /// As for the launches: see [`super::launch`].
    pub unsafe fn multiply(
        &mut self,
        stream: &Stream,
        params: &GemmParams,
    ) -> Result<(), DriverError> {
        let is_own = self.is_own_for_few_rows && self.own.is_for_few_rows(params);
        if let Some(cublaslt) = self.cublaslt.as_mut().filter(|_| !is_own) {
            // SAFETY: guaranteed by the caller; the workspace is used by one stream at a time.
            if unsafe { cublaslt.multiply(stream, params, &self.workspace) } {
                return Ok(());
            }
        }
        let params = GemmParams {
            partials: self.workspace.ptr().cast(),
            ..*params
        };
        // SAFETY: likewise.
        unsafe { self.own.launch(stream, &params) }
    }
}
