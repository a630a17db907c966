//! Activation tensors, whose memory comes from a free list of reused buffers.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::memory::Lines;

/// Buffers of so few values are reused for all smaller ones: they are a page of memory.
const LEAST_VALUES: usize = 1024;

/// Buffers for reuse. A decoder allocates the same few sizes in every layer, so after the first layer of the largest
/// step nothing is allocated.
#[derive(Clone, Default)]
pub struct Scratch {
    free: Arc<Mutex<Vec<Lines<f32>>>>,
}

impl Scratch {
    /// Returns a tensor with arbitrary content.
    pub fn tensor(&self, rows: usize, width: usize) -> Tensor {
        let len = rows * width;
        let mut free = self.lock();
        let fitting = smallest(&free, len..=usize::MAX);
        let chosen = fitting.or_else(|| (0..free.len()).max_by_key(|&i| free[i].len()));
        let data = chosen.map(|i| free.swap_remove(i)).unwrap_or_default();
        drop(free);
        self.tensor_in(data, [rows, width])
    }

    /// As [`tensor`](Self::tensor), but its buffer is at most about twice as long as it needs.
    fn close_tensor(&self, rows: usize, width: usize) -> Tensor {
        let len = rows * width;
        let mut free = self.lock();
        let fitting = smallest(&free, len..=(2 * len).max(LEAST_VALUES));
        let data = fitting.map(|i| free.swap_remove(i)).unwrap_or_default();
        drop(free);
        self.tensor_in(data, [rows, width])
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Lines<f32>>> {
        let free = self.free.lock();
        free.expect("no thread may panic while it holds the lock")
    }

    fn tensor_in(&self, mut data: Lines<f32>, [rows, width]: [usize; 2]) -> Tensor {
        data.grow_to(rows * width);
        Tensor {
            rows,
            width,
            data,
            scratch: self.clone(),
        }
    }
}

/// The index of the smallest buffer of these lengths.
fn smallest(free: &[Lines<f32>], lens: RangeInclusive<usize>) -> Option<usize> {
    let fitting = (0..free.len()).filter(|&i| lens.contains(&free[i].len()));
    fitting.min_by_key(|&i| free[i].len())
}

/// Buffers of tensors that last for several steps. They are reused, but none for a tensor of less than half its length:
/// that would keep the rest of the memory from others. They are freed with the last tensor.
#[derive(Default)]
pub struct LastingScratch {
    free: Weak<Mutex<Vec<Lines<f32>>>>,
}

impl LastingScratch {
    /// Returns a tensor with arbitrary content.
    pub fn tensor(&mut self, rows: usize, width: usize) -> Tensor {
        let scratch = match self.free.upgrade() {
            Some(free) => Scratch { free },
            None => Scratch::default(),
        };
        self.free = Arc::downgrade(&scratch.free);
        scratch.close_tensor(rows, width)
    }
}

pub struct Tensor {
    pub rows: usize,
    pub width: usize,
    /// At least `rows * width` values.
    data: Lines<f32>,
    scratch: Scratch,
}

impl Tensor {
    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn values(&self) -> &[f32] {
        &self.data[..self.rows * self.width]
    }

    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.data[..self.rows * self.width]
    }

    pub fn row(&self, row: usize) -> &[f32] {
        &self.values()[row * self.width..(row + 1) * self.width]
    }

    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let width = self.width;
        &mut self.values_mut()[row * width..(row + 1) * width]
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        if let Ok(mut free) = self.scratch.free.lock() {
            free.push(std::mem::take(&mut self.data));
        }
    }
}

/// A slice whose disjoint parts are written by the items of one kernel.
#[derive(Clone, Copy)]
pub struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    borrow: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` whose users guarantee, at each use, that their parts are disjoint.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            borrow: std::marker::PhantomData,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// # Panics
    /// If `start` is beyond the end.
    pub fn after(self, start: usize) -> Self {
        assert!(start <= self.len, "{start} is beyond {} elements", self.len);
        Self {
            start: self.start.wrapping_add(start),
            len: self.len - start,
            ..self
        }
    }

    #[inline(always)]
    pub fn at(&self, index: usize) -> *const T {
        self.start.wrapping_add(index)
    }

    /// # Safety
    /// No two parts that live at the same time overlap.
    ///
    /// # Panics
    /// If the part reaches beyond the slice.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub unsafe fn part(&self, start: usize, len: usize) -> &'a mut [T] {
        let end = start.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "range {start}+{len} is outside a slice of {}",
            self.len
        );
        // SAFETY: in bounds by the line above, disjoint as the caller guarantees.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_lasting_tensors_are_reused_until_the_last_one_is_dropped() {
        let mut scratch = LastingScratch::default();
        let (first, second) = (scratch.tensor(2, 3), scratch.tensor(2, 3));
        let place = first.values().as_ptr();
        drop(first);
        assert_eq!(scratch.tensor(1, 4).values().as_ptr(), place);
        drop(second);
        assert!(scratch.free.upgrade().is_none());
    }

    #[test]
    fn a_lasting_tensor_takes_no_buffer_of_more_than_twice_its_length() {
        let mut scratch = LastingScratch::default();
        let (long, _kept) = (scratch.tensor(8, 1000), scratch.tensor(1, 1));
        let place = long.values().as_ptr();
        drop(long);
        let short = scratch.tensor(3, 1000);
        assert_ne!(short.values().as_ptr(), place);
        assert!(short.data.len() < 3016);
        assert_eq!(scratch.tensor(4, 1000).values().as_ptr(), place);
        // The short one's buffer does not grow: another one is made.
        drop(short);
        let longer = scratch.tensor(9, 1000);
        assert!(longer.data.len() < 9016 && longer.values().as_ptr() != place);
    }
}
