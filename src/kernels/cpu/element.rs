//! Element types of weights and KV (f32, f16, bf16, int8), and the memory that holds them.

use std::marker::PhantomData;

use half::{bf16, f16};
use memmap2::MmapMut;

use super::kept::Kept;
use super::simd::{LANES, Lanes};
use souffleur_base::kv_layout::KvDtype;

/// An element type of storage; kernels widen it to f32 in registers.
pub trait Element: bytemuck::Pod + Default + Send + Sync {
    /// Rounds to nearest even.
    fn narrow(x: f32) -> Self;

    /// Reads and widens sixteen elements.
    ///
    /// # Safety
    /// `p` is valid for sixteen elements; the instruction set of `S` was detected.
    unsafe fn load<S: Lanes>(p: *const Self) -> S::V;

    /// Rounds and writes sixteen elements, as [`Self::narrow`] does.
    ///
    /// # Safety
    /// `p` is valid for sixteen elements; the instruction set of `S` was detected.
    #[inline(always)]
    unsafe fn store<S: Lanes>(p: *mut Self, v: S::V) {
        let mut wide = [0f32; LANES];
        // SAFETY: `wide` holds sixteen values, and so does `p`.
        unsafe {
            S::store(wide.as_mut_ptr(), v);
            super::simd::write(p, wide.map(Self::narrow));
        }
    }

    /// Reads and widens the `len` elements at `p`; the other lanes are zero.
    ///
    /// # Safety
    /// `p` is valid for `len` elements, `len` at most sixteen; the instruction set of `S` was detected.
    #[inline(always)]
    unsafe fn load_part<S: Lanes>(p: *const Self, len: usize) -> S::V {
        let mut padded = [Self::default(); LANES];
        // SAFETY: `p` is valid for `len` elements, and so is `padded`.
        unsafe {
            std::ptr::copy_nonoverlapping(p, padded.as_mut_ptr(), len);
            Self::load::<S>(padded.as_ptr())
        }
    }
}

impl Element for f32 {
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x
    }

    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const Self) -> S::V {
        // SAFETY: the caller guarantees the same.
        unsafe { S::load(p) }
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        Self::from_f32(x)
    }

    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const Self) -> S::V {
        // SAFETY: the caller guarantees the same.
        unsafe { S::load_bf16(p) }
    }

    #[inline(always)]
    unsafe fn store<S: Lanes>(p: *mut Self, v: S::V) {
        // SAFETY: the caller guarantees the same.
        unsafe { S::store_bf16(p, v) }
    }
}

impl Element for f16 {
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        Self::from_f32(x)
    }

    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const Self) -> S::V {
        // SAFETY: the caller guarantees the same.
        unsafe { S::load_f16(p) }
    }
}

/// Page-aligned elements, so each vector lies within one cache line.
pub struct Elements<T> {
    /// Memory of the elements; at least one byte, even if there are none.
    map: MmapMut,
    bytes: usize,
    element: PhantomData<T>,
}

impl<T> Elements<T> {
    /// Returns zeros, as [`Storage::zeros`] does.
    ///
    /// # Panics
    /// If the process has no address space left.
    pub fn zeros(len: usize) -> Self {
        let bytes = len * size_of::<T>();
        Self {
            map: MmapMut::map_anon(bytes.max(1)).expect("failed to map anonymous memory"),
            bytes,
            element: PhantomData,
        }
    }
}

impl<T: bytemuck::Pod> Elements<T> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.bytes]
    }
}

pub trait Borrowed {
    type Slice;

    fn slice(self) -> Self::Slice;
}

impl<'a, T: bytemuck::Pod> Borrowed for &'a Elements<T> {
    type Slice = &'a [T];

    fn slice(self) -> &'a [T] {
        bytemuck::cast_slice(&self.map[..self.bytes])
    }
}

impl<'a, T: bytemuck::Pod> Borrowed for &'a mut Elements<T> {
    type Slice = &'a mut [T];

    fn slice(self) -> &'a mut [T] {
        bytemuck::cast_slice_mut(&mut self.map[..self.bytes])
    }
}

/// Reads at most sixteen values; the other lanes are zero.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn load_up_to<S: Lanes>(values: &[f32]) -> S::V {
    let mut padded = [0f32; LANES];
    let values = match values.len() {
        LANES => values,
        len => {
            padded[..len].copy_from_slice(values);
            &padded
        }
    };
    // SAFETY: both hold sixteen values.
    unsafe { S::load(values.as_ptr()) }
}

/// Writes as many lanes as `out` has elements, at most sixteen.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn store_up_to<S: Lanes>(v: S::V, out: &mut [f32]) {
    // SAFETY: both hold sixteen values.
    unsafe {
        if out.len() == LANES {
            return S::store(out.as_mut_ptr(), v);
        }
        let mut padded = [0f32; LANES];
        S::store(padded.as_mut_ptr(), v);
        out.copy_from_slice(&padded[..out.len()]);
    }
}

#[inline(always)]
pub fn narrow_into<E: Element, S: Lanes>(values: &[f32], out: &mut [E]) {
    let whole = values.len() / LANES * LANES;
    for (out, values) in out.chunks_exact_mut(LANES).zip(values.chunks_exact(LANES)) {
        // SAFETY: both hold sixteen values; `dispatch` detected the instruction set.
        unsafe { E::store::<S>(out.as_mut_ptr(), S::load(values.as_ptr())) };
    }
    for (out, value) in out[whole..].iter_mut().zip(&values[whole..]) {
        *out = E::narrow(*value);
    }
}

pub enum Storage {
    F32(Elements<f32>),
    F16(Elements<f16>),
    BF16(Elements<bf16>),
    /// Signed bytes, followed by [`Kept::SLACK`], and their scales.
    I8(Elements<i8>, Elements<bf16>),
}

/// Evaluates `$body` with slices of a [`Storage`]: `$data` are its elements, `$scales` their scales, empty for floats.
#[doc(hidden)]
#[macro_export]
macro_rules! with_elements {
    ($storage:expr, $data:ident, $scales:ident => $body:expr) => {{
        use $crate::cpu::element::{Borrowed, Storage};
        match $storage {
            Storage::F32(elements) => {
                let ($data, $scales) = (elements.slice(), Default::default());
                $body
            }
            Storage::F16(elements) => {
                let ($data, $scales) = (elements.slice(), Default::default());
                $body
            }
            Storage::BF16(elements) => {
                let ($data, $scales) = (elements.slice(), Default::default());
                $body
            }
            Storage::I8(elements, scales) => {
                let ($data, $scales) = (elements.slice(), scales.slice());
                $body
            }
        }
    }};
}
pub use with_elements;

impl Storage {
    /// Returns zeros. The system zeroes pages when they are first touched, so a large pool costs no time.
    ///
    /// # Panics
    /// If the process has no address space left.
    pub fn zeros(dtype: KvDtype, len: usize, n_scales: usize) -> Self {
        match dtype {
            KvDtype::F32 => Self::F32(Elements::zeros(len)),
            KvDtype::F16 => Self::F16(Elements::zeros(len)),
            KvDtype::BF16 => Self::BF16(Elements::zeros(len)),
            KvDtype::Int8 => Self::I8(
                Elements::zeros(len + <i8 as Kept>::SLACK),
                Elements::zeros(n_scales),
            ),
        }
    }

    /// The bytes of the elements and of their scales, which are empty for floats. Both are page-aligned.
    pub fn bytes_mut(&mut self) -> [&mut [u8]; 2] {
        match self {
            Self::F32(elements) => [elements.bytes_mut(), &mut []],
            Self::F16(elements) => [elements.bytes_mut(), &mut []],
            Self::BF16(elements) => [elements.bytes_mut(), &mut []],
            Self::I8(elements, scales) => [elements.bytes_mut(), scales.bytes_mut()],
        }
    }
}
