//! cuBLASLt descriptors of a matrix product: operation, layouts, preference.

use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtEpilogue_t, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t,
    cublasLtReductionScheme_t, cudaDataType,
};

use super::library::{Functions, check};
use crate::cuda::driver::DriverError;

/// CUBLAS_OP_T of cublas_api.h, missing in the bindings.
const TRANSPOSED: i32 = 1;

/// The operands of a product, and the epilogue.
pub(super) struct ProductDesc {
    functions: &'static Functions,
    pub(super) raw: cublasLtMatmulDesc_t,
}

impl ProductDesc {
    /// `w` transposed times `x`, summed in f32.
    pub(super) fn new(functions: &'static Functions, has_bias: bool) -> Result<Self, DriverError> {
        use cublasLtMatmulDescAttributes_t as A;
        let mut raw = std::ptr::null_mut();
        let compute = cublasComputeType_t::CUBLAS_COMPUTE_32F;
        // SAFETY: `raw` outlives the call.
        let status =
            unsafe { (functions.desc_create)(&mut raw, compute, cudaDataType::CUDA_R_32F) };
        check("cublasLtMatmulDescCreate", status)?;
        let desc = Self { functions, raw };
        desc.set(A::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        if has_bias {
            let epilogue = cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
            desc.set(A::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
            let f32_type = cudaDataType::CUDA_R_32F as u32;
            desc.set(A::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &f32_type)?;
        }
        Ok(desc)
    }

    pub(super) fn set<T: bytemuck::Pod>(
        &self,
        attribute: cublasLtMatmulDescAttributes_t,
        value: &T,
    ) -> Result<(), DriverError> {
        let bytes = std::ptr::from_ref(value).cast();
        // SAFETY: the value has the attribute's size: 4 bytes, 8 for addresses.
        check("cublasLtMatmulDescSetAttribute", unsafe {
            (self.functions.desc_set)(self.raw, attribute, bytes, size_of::<T>())
        })
    }
}

pub(super) struct MatrixLayout {
    functions: &'static Functions,
    pub(super) raw: cublasLtMatrixLayout_t,
}

impl MatrixLayout {
    pub(super) fn new(
        functions: &'static Functions,
        of: cudaDataType,
        rows: u64,
        columns: u64,
    ) -> Result<Self, DriverError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` outlives the call.
        let status = unsafe { (functions.layout_create)(&mut raw, of, rows, columns, rows as i64) };
        check("cublasLtMatrixLayoutCreate", status)?;
        Ok(Self { functions, raw })
    }
}

pub(super) struct Preference {
    functions: &'static Functions,
    pub(super) raw: cublasLtMatmulPreference_t,
}

impl Preference {
    /// For operands whose addresses are multiples of `alignment`.
    pub(super) fn new(
        functions: &'static Functions,
        workspace_bytes: usize,
        alignment: u32,
    ) -> Result<Self, DriverError> {
        use cublasLtMatmulPreferenceAttributes_t as A;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` outlives the call.
        let status = unsafe { (functions.preference_create)(&mut raw) };
        check("cublasLtMatmulPreferenceCreate", status)?;
        let preference = Self { functions, raw };
        let workspace_bytes = workspace_bytes as u64;
        preference.set(
            A::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            &workspace_bytes,
        )?;
        // Partial sums are reduced in f32: in bf16, which the library might choose, results are off by some per cent.
        let reductions = cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(A::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions)?;
        for operand in [
            A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            preference.set(operand, &alignment)?;
        }
        Ok(preference)
    }

    fn set<T: bytemuck::Pod>(
        &self,
        attribute: cublasLtMatmulPreferenceAttributes_t,
        value: &T,
    ) -> Result<(), DriverError> {
        let bytes = std::ptr::from_ref(value).cast();
        // SAFETY: the value has the attribute's size: 8 bytes for the workspace, 4 for the others.
        check("cublasLtMatmulPreferenceSetAttribute", unsafe {
            (self.functions.preference_set)(self.raw, attribute, bytes, size_of::<T>())
        })
    }
}

impl Drop for ProductDesc {
    fn drop(&mut self) {
        // SAFETY: created once, no longer used: launches copy it.
        let _ = unsafe { (self.functions.desc_destroy)(self.raw) };
    }
}

impl Drop for MatrixLayout {
    fn drop(&mut self) {
        // SAFETY: created once, no longer used: launches copy it.
        let _ = unsafe { (self.functions.layout_destroy)(self.raw) };
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: created once, no longer used: the heuristic read it.
        let _ = unsafe { (self.functions.preference_destroy)(self.raw) };
    }
}
