//! Memory that begins on a cache line.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// What a vector register holds, where it lies in one cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u32; 16]);

// SAFETY: words are valid when zero.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: sixteen words fill the 64 bytes, so there is no padding, and any bits are valid.
unsafe impl bytemuck::Pod for Line {}

/// Numbers of 32 bits; it only grows. A vector at a multiple of sixteen of them lies in one cache line.
pub struct Buffer<T> {
    lines: Vec<Line>,
    number: PhantomData<T>,
}

impl<T> Default for Buffer<T> {
    fn default() -> Self {
        Self {
            lines: Vec::new(),
            number: PhantomData,
        }
    }
}

impl<T: bytemuck::Pod> Buffer<T> {
    /// Makes room for at least `len` numbers; new ones are zero.
    pub fn fit(&mut self, len: usize) {
        let lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        if self.lines.len() < lines {
            self.lines.resize(lines, bytemuck::Zeroable::zeroed());
        }
    }
}

impl<T: bytemuck::Pod> Deref for Buffer<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.lines)
    }
}

impl<T: bytemuck::Pod> DerefMut for Buffer<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.lines)
    }
}
