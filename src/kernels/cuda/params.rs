//! The arguments of kernels: `kernels/params.cuh`, struct by struct and field by field.

use super::driver::{DevicePtr, KernelArg};

/// An element of weights, activations and KV: f32 or bfloat16, as [`ElementType`] says. Only pointers to it exist.
#[derive(Clone, Copy, Debug)]
pub enum Element {}

/// The type of an [`Element`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
}

impl ElementType {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// The ending of the names of its kernels.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

/// The query tokens of one row in a step; they are contiguous, in ascending position.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Zeroable, bytemuck::Pod)]
pub struct Segment {
    /// The rows of the page table.
    pub row: u32,
    /// Index of its first token in the step.
    pub first_token: u32,
    /// How many; 0 is padding.
    pub n_tokens: u32,
    /// Position of its first token in the sequence.
    pub first_position: u32,
}

/// A tile of prefill queries.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Zeroable, bytemuck::Pod)]
pub struct Tile {
    /// Index of its segment.
    pub segment: u32,
    /// Its first query, an index in the segment.
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
    /// Likewise.
    pub v_pool: DevicePtr<Element>,
    /// `[T, (n_heads + 2 n_kv_heads) * head_dim]`.
    pub qkv: DevicePtr<Element>,
    /// `[head_dim]`, or null: heads are not normed.
    pub q_norm: DevicePtr<f32>,
    /// `[head_dim]`, or null.
    pub k_norm: DevicePtr<f32>,
    /// `[T, head_dim]`: half cosines, then as many sines.
    pub rotations: DevicePtr<f32>,
    /// `[T]`.
    pub slots: DevicePtr<u32>,
    /// Query heads.
    pub n_heads: u32,
    /// Key and value heads.
    pub n_kv_heads: u32,
    /// Elements in a head.
    pub head_dim: u32,
    /// Added to the mean square in the head norms.
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
    /// Likewise.
    pub v_pool: DevicePtr<Element>,
    /// `[n_rows, table_stride]`.
    pub page_table: DevicePtr<u32>,
    /// Decode: those of one token come first.
    pub segments: DevicePtr<Segment>,
    /// Prefill only.
    pub tiles: DevicePtr<Tile>,
    /// Decode in more than one split only.
    pub partials: DevicePtr<f32>,
    /// Pages a row of the table.
    pub table_stride: u32,
    /// Tokens a page.
    pub page_size: u32,
    /// Query heads.
    pub n_heads: u32,
    /// Key and value heads.
    pub n_kv_heads: u32,
    /// Elements in a head.
    pub head_dim: u32,
    /// Tokens that a query sees, itself included; 0 for all before it.
    pub window: u32,
    /// Decode: parts into which each context is cut.
    pub n_splits: u32,
    /// Factor on scores, times log2(e).
    pub scale_log2: f32,
}

/// The use that a product makes of its result: `GemmWrite` of params.cuh.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GemmWrite {
    /// Stores elements.
    Store = 0,
    /// Stores f32.
    StoreF32 = 1,
    /// Adds to f32.
    AddF32 = 2,
}

/// `GemmParams` of params.cuh: `out[m, n] = x[m, k] * w[n, k]^T + bias[n]`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GemmParams {
    /// Elements or f32, as `write` says.
    pub out: DevicePtr<u8>,
    /// `[m, k]`.
    pub x: DevicePtr<Element>,
    /// `[n, k]`.
    pub w: DevicePtr<Element>,
    /// `[n]`, or null.
    pub bias: DevicePtr<f32>,
    /// Partial sums of split products.
    pub partials: DevicePtr<f32>,
    /// Rows.
    pub m: u32,
    /// Outputs.
    pub n: u32,
    /// Inputs.
    pub k: u32,
    /// The use of the result.
    pub write: GemmWrite,
    /// Parts of `k`.
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
