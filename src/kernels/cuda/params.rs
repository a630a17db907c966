//! Kernel arguments: mirrors of the structs in `kernels/params.cuh`.

use super::driver::{DevicePtr, KernelArg};

/// An element of weights, activations and KV: f32 or bfloat16, as [`ElementType`] says. Only pointers to it exist.
#[derive(Clone, Copy, Debug)]
pub enum Element {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    F32,
    Bf16,
}

impl ElementType {
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// Suffix of the names of kernels for this type.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

/// The query tokens of one row in a step: contiguous, in ascending position.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Zeroable, bytemuck::Pod)]
pub struct Segment {
    pub row: u32,
    pub first_token: u32,
    /// 0 is padding.
    pub n_tokens: u32,
    pub first_position: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Zeroable, bytemuck::Pod)]
pub struct Tile {
    pub segment: u32,
    pub first_query: u32,
}

/// `RopeStoreParams` of params.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RopeStoreParams {
    /// `[T, n_heads * head_dim]`.
    pub q: DevicePtr<Element>,
    /// `[n_slots, n_kv_heads, head_dim]`, of one layer.
    pub k_pool: DevicePtr<Element>,
    /// As `k_pool`.
    pub v_pool: DevicePtr<Element>,
    /// `[T, (n_heads + 2 n_kv_heads) * head_dim]`.
    pub qkv: DevicePtr<Element>,
    /// `[head_dim]`, or null for no head norms.
    pub q_norm: DevicePtr<f32>,
    /// `[head_dim]`, or null.
    pub k_norm: DevicePtr<f32>,
    /// `[T, head_dim]`: half cosines, then as many sines.
    pub rotations: DevicePtr<f32>,
    /// `[T]`.
    pub slots: DevicePtr<u32>,
    pub n_heads: u32,
    pub n_kv_heads: u32,
    pub head_dim: u32,
    pub eps: f32,
}

/// `AttendParams` of params.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AttendParams {
    /// `[T, n_heads * head_dim]`.
    pub out: DevicePtr<Element>,
    /// `[T, n_heads * head_dim]`.
    pub q: DevicePtr<Element>,
    /// `[n_slots, n_kv_heads, head_dim]`, of one layer.
    pub k_pool: DevicePtr<Element>,
    /// As `k_pool`.
    pub v_pool: DevicePtr<Element>,
    /// `[n_rows, table_stride]`.
    pub page_table: DevicePtr<u32>,
    /// In a decode, segments of one token come first.
    pub segments: DevicePtr<Segment>,
    /// Only for prefill.
    pub tiles: DevicePtr<Tile>,
    /// Only for decodes with more than one split.
    pub partials: DevicePtr<f32>,
    pub table_stride: u32,
    pub page_size: u32,
    pub n_heads: u32,
    pub n_kv_heads: u32,
    pub head_dim: u32,
    /// Sliding window in tokens, including the query's own; 0 for all earlier tokens.
    pub window: u32,
    /// Decode: splits of each context.
    pub n_splits: u32,
    /// Attention scale times log2(e).
    pub scale_log2: f32,
}

/// `GemmWrite` of params.cuh.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GemmWrite {
    /// Stores elements of the weights' type.
    Store = 0,
    StoreF32 = 1,
    AddF32 = 2,
}

/// `GemmParams` of params.cuh: `out[m, n] = x[m, k] * w[n, k]^T + bias[n]`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GemmParams {
    /// Elements or f32, depending on `write`.
    pub out: DevicePtr<u8>,
    /// `[m, k]`.
    pub x: DevicePtr<Element>,
    /// `[n, k]`.
    pub w: DevicePtr<Element>,
    /// `[n]`, or null.
    pub bias: DevicePtr<f32>,
    pub partials: DevicePtr<f32>,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub write: GemmWrite,
    pub n_splits: u32,
}

// SAFETY: the same fields in the same order on both sides; sizes are compared below and by the tests.
unsafe impl KernelArg for RopeStoreParams {}
// SAFETY: likewise.
unsafe impl KernelArg for AttendParams {}
// SAFETY: likewise.
unsafe impl KernelArg for GemmParams {}

const _: () = assert!(size_of::<Segment>() == 16);
const _: () = assert!(size_of::<Tile>() == 8);
const _: () = assert!(size_of::<RopeStoreParams>() == 80);
const _: () = assert!(size_of::<AttendParams>() == 96);
const _: () = assert!(size_of::<GemmParams>() == 64);
