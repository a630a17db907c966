//! Matrix products with cuBLASLt, which is faster than our own kernels for many rows.
//!
//! cuBLASLt takes 400 MB and is not part of the driver. Its heuristic runs once per shape; the algorithm is cached. Its
//! matrices are column-major: a row-major `[m, n]` is a column-major `n` by `m` matrix.

mod descriptors;
mod library;
mod product;

use std::fmt;

use rustc_hash::FxHashMap;

use self::library::Handle;
use self::product::{Key, Product};
use crate::cuda::driver::{Device, DeviceBuffer, DriverError, Stream};
use crate::cuda::params::{ElementType, GemmParams};

/// Prefill lengths vary; beyond this many shapes the cache is cleared.
const MAX_PRODUCTS: usize = 4096;

pub(super) struct CublasLt {
    /// By shape; `None` if the library has no algorithm, or failed.
    products: FxHashMap<Key, Option<Product>>,
    /// Number of products that fell back to our own kernels.
    n_fallbacks: u64,
    /// The first fallback of each kind is logged at a higher level.
    logged: LoggedFallbacks,
    element: ElementType,
    /// The last field, so that the products are dropped before the handle.
    handle: Handle,
}

// SAFETY: handle and descriptors belong to no thread; they are used through `&mut` alone.
unsafe impl Send for CublasLt {}

#[derive(Clone, Copy, Debug, Default)]
struct LoggedFallbacks {
    missing: bool,
    failed: bool,
}

impl CublasLt {
    /// # Errors
    /// If cuBLASLt is not installed or fails to initialise.
    pub(super) fn load(device: &Device, element: ElementType) -> Result<Self, String> {
        Ok(Self {
            handle: Handle::new(device)?,
            element,
            products: FxHashMap::default(),
            n_fallbacks: 0,
            logged: LoggedFallbacks::default(),
        })
    }

    /// Whether the library can be opened for a device; does not initialise it.
    pub(super) fn is_installed(device: &Device) -> bool {
        library::is_installed(device)
    }

    pub(super) fn n_fallbacks(&self) -> u64 {
        self.n_fallbacks
    }

    /// Multiplies, or returns false if the library has no algorithm or fails: nothing was written then, and the shape
    /// is skipped from now on.
    ///
    /// # Safety
    /// As for the launches; `workspace` is used by one stream at a time.
    pub(super) unsafe fn multiply(
        &mut self,
        stream: &Stream,
        params: &GemmParams,
        workspace: &DeviceBuffer<u8>,
    ) -> bool {
        let key = Key::of(params);
        if self.products.len() >= MAX_PRODUCTS && !self.products.contains_key(&key) {
            self.products.clear();
        }
        let (handle, logged) = (&self.handle, &mut self.logged);
        let product = self.products.entry(key).or_insert_with(|| {
            let product = Product::new(handle, self.element, key, workspace.bytes());
            product
                .inspect_err(|error| log_missing(&mut logged.missing, key, error))
                .ok()
        });
        let done = match product {
            // SAFETY: guaranteed by the caller.
            Some(made) => match unsafe { made.multiply(handle, stream, params, workspace) } {
                Ok(()) => true,
                Err(error) => {
                    log_failed(&mut logged.failed, key, &error);
                    *product = None;
                    false
                }
            },
            None => false,
        };
        self.n_fallbacks += u64::from(!done);
        done
    }
}

/// Logs the first shape without an algorithm at info level, later ones at debug level.
fn log_missing(has_logged: &mut bool, key: Key, error: &DriverError) {
    if !std::mem::replace(has_logged, true) {
        tracing::info!(%error, ?key, "cuBLASLt has no algorithm for a GEMM shape: using built-in GEMM kernels for \
            such shapes")
    } else {
        tracing::debug!(%error, ?key, "cuBLASLt has no algorithm for a GEMM shape")
    }
}

fn log_failed(has_logged: &mut bool, key: Key, error: &DriverError) {
    if !std::mem::replace(has_logged, true) {
        tracing::warn!(%error, ?key, "cuBLASLt failed for a GEMM shape: using built-in GEMM kernels for such shapes")
    } else {
        tracing::debug!(%error, ?key, "cuBLASLt failed for a GEMM shape")
    }
}

impl fmt::Debug for CublasLt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CublasLt({} products)", self.products.len())
    }
}
