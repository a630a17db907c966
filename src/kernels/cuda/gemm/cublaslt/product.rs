//! A cuBLASLt product of one shape: the algorithm chosen by the heuristic, and the call.

use std::ffi::{c_int, c_void};

use cudarc::cublaslt::sys::{
    cublasLtMatmulAlgo_t, cublasLtMatmulDescAttributes_t, cublasLtMatmulHeuristicResult_t,
    cudaDataType,
};

use super::descriptors::{MatrixLayout, Preference, ProductDesc};
use super::library::{Handle, check};
use crate::cuda::driver::{DeviceBuffer, DriverError, Stream};
use crate::cuda::params::{ElementType, GemmParams, GemmWrite};

const MAX_ALIGNMENT: u64 = 256;

/// Cache key: the properties on which the choice of an algorithm depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    m: u32,
    n: u32,
    k: u32,
    write: GemmWrite,
    has_bias: bool,
    /// Common alignment of all addresses, in bytes.
    alignment: u32,
}

pub(super) struct Product {
    desc: ProductDesc,
    w: MatrixLayout,
    x: MatrixLayout,
    out: MatrixLayout,
    algorithm: cublasLtMatmulAlgo_t,
}

/// The result type of the bindings, except that the status may be an unknown code.
#[repr(C)]
struct Heuristic {
    algorithm: cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
    status: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const _: () = assert!(size_of::<Heuristic>() == size_of::<cublasLtMatmulHeuristicResult_t>());
const _: () = assert!(align_of::<Heuristic>() == align_of::<cublasLtMatmulHeuristicResult_t>());

impl Key {
    pub(super) fn of(params: &GemmParams) -> Self {
        let addresses = params.out.address() | params.x.address() | params.w.address();
        Self {
            m: params.m,
            n: params.n,
            k: params.k,
            write: params.write,
            has_bias: !params.bias.is_null(),
            alignment: 1 << (addresses | MAX_ALIGNMENT).trailing_zeros(),
        }
    }
}

impl Product {
    /// Runs the library's heuristic.
    ///
    /// # Errors
    /// If the library has no algorithm, or reports another error.
    pub(super) fn new(
        handle: &Handle,
        element: ElementType,
        key: Key,
        workspace_bytes: usize,
    ) -> Result<Self, DriverError> {
        let functions = handle.functions;
        let elements = match element {
            ElementType::F32 => cudaDataType::CUDA_R_32F,
            ElementType::Bf16 => cudaDataType::CUDA_R_16BF,
        };
        let result = match key.write {
            GemmWrite::Store => elements,
            GemmWrite::StoreF32 | GemmWrite::AddF32 => cudaDataType::CUDA_R_32F,
        };
        let (m, n, k) = (u64::from(key.m), u64::from(key.n), u64::from(key.k));
        let desc = ProductDesc::new(functions, key.has_bias)?;
        let w = MatrixLayout::new(functions, elements, k, n)?;
        let x = MatrixLayout::new(functions, elements, k, m)?;
        let out = MatrixLayout::new(functions, result, n, m)?;
        let preference = Preference::new(functions, workspace_bytes, key.alignment)?;
        let mut found = std::mem::MaybeUninit::<Heuristic>::zeroed();
        let mut n_found = 0;
        // SAFETY: all handles were made here; `found` has space for one result, in the library's layout.
        let status = unsafe {
            (functions.heuristic)(
                handle.raw,
                desc.raw,
                w.raw,
                x.raw,
                out.raw,
                out.raw,
                preference.raw,
                1,
                found.as_mut_ptr().cast(),
                &mut n_found,
            )
        };
        check("cublasLtMatmulAlgoGetHeuristic", status)?;
        if n_found == 0 {
            return Err(DriverError::unsupported(format!(
                "no algorithm for {key:?}"
            )));
        }
        // SAFETY: only numbers, for which zero bytes are valid.
        let found = unsafe { found.assume_init() };
        check("cublasLtMatmulAlgoGetHeuristic", found.status)?;
        Ok(Self {
            desc,
            w,
            x,
            out,
            algorithm: found.algorithm,
        })
    }

    /// # Safety
    /// As for [`CublasLt::multiply`](super::CublasLt::multiply).
    pub(super) unsafe fn multiply(
        &self,
        handle: &Handle,
        stream: &Stream,
        params: &GemmParams,
        workspace: &DeviceBuffer<u8>,
    ) -> Result<(), DriverError> {
        if !params.bias.is_null() {
            let address = params.bias.address();
            let attribute = cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            self.desc.set(attribute, &address)?;
        }
        let one = 1.0_f32;
        let beta: f32 = match params.write {
            GemmWrite::AddF32 => 1.0,
            GemmWrite::Store | GemmWrite::StoreF32 => 0.0,
        };
        let address = |address: u64| std::ptr::without_provenance_mut::<c_void>(address as usize);
        let out = address(params.out.address());
        // SAFETY: the descriptors were made for this shape, the scales are f32 as declared, the caller guarantees the
        // addresses, and the algorithm needs no more than the workspace.
        let status = unsafe {
            (handle.functions.matmul)(
                handle.raw,
                self.desc.raw,
                (&raw const one).cast(),
                address(params.w.address()),
                self.w.raw,
                address(params.x.address()),
                self.x.raw,
                (&raw const beta).cast(),
                out,
                self.out.raw,
                out,
                self.out.raw,
                &self.algorithm,
                address(workspace.ptr().address()),
                workspace.bytes(),
                stream.raw().cast(),
            )
        };
        check("cublasLtMatmul", status)
    }
}
