//! Loads the quantisation scales of a K/V block into a thread's buffers.

use half::bf16;

use super::kv_element::KvElement;
use super::scales::Scales;
use super::seen::BLOCK;
use super::sizes::Sizes;
use super::space::Workspace;
use super::tile::Work;
use crate::cpu::simd::Lanes;

impl Workspace {
    /// The scales of the last loaded block, and of the queries from record `first` on.
    #[inline(always)]
    pub fn scales(&mut self, sizes: Sizes, first: usize) -> Scales {
        let keys = self.kv_scales.as_ptr();
        Scales {
            keys,
            values: keys.wrapping_add(sizes.before_value_scales * BLOCK),
            are_finite: self.are_scales_finite,
            queries: self.query_scales.as_ptr().wrapping_add(first),
            weights: self.weight_scales.as_mut_ptr(),
            value_groups: sizes.value_scales,
        }
    }
}

impl<F: KvElement> Work<'_, F> {
    /// Loads the scales of a block of a head, if it has any.
    #[inline(always)]
    pub fn load_scales(&mut self, sizes: Sizes, slots: &[u32; BLOCK], head: usize) {
        if !F::SCALED {
            return;
        }
        let planes = self.step.planes;
        let first = planes.scales_of_key(self.item.heads.start as usize + head, 0);
        let from = &self.step.scales[first.start..][..planes.n_slots() * sizes.n_scales];
        let to = &mut self.space.kv_scales[..sizes.n_scales * BLOCK];
        // Most models have heads of 64, 128 or 256.
        let max_bits = match sizes.n_scales {
            4 => transpose::<4>(from, slots, to),
            8 => transpose::<8>(from, slots, to),
            16 => transpose::<16>(from, slots, to),
            n => transpose_any(n, from, slots, to),
        };
        self.space.are_scales_finite = max_bits < bf16::INFINITY.to_bits();
    }

    #[inline(always)]
    pub fn fetch_scales<S: Lanes>(&self, slots: &[u32; BLOCK], head: usize) {
        if !F::SCALED {
            return;
        }
        let head = self.item.heads.start as usize + head;
        for slot in slots {
            let at = self.step.planes.scales_of_key(head, *slot as usize).start;
            // SAFETY: only a hint; `dispatch` detected the instruction set.
            unsafe { S::prefetch(self.step.scales.as_ptr().wrapping_add(at)) };
        }
    }
}

/// Transposes the scales of the slots, a row for each group; returns the bits of the greatest.
#[inline(always)]
fn transpose<const N: usize>(from: &[bf16], slots: &[u32; BLOCK], to: &mut [f32]) -> u16 {
    let from = from.as_chunks::<N>().0;
    let to = to.as_chunks_mut::<BLOCK>().0;
    let mut max_bits = 0;
    for (i, slot) in slots.iter().enumerate() {
        let scales = from[*slot as usize];
        for group in 0..N {
            max_bits = max_bits.max(scales[group].to_bits());
            to[group][i] = widen(scales[group]);
        }
    }
    max_bits
}

fn transpose_any(n: usize, from: &[bf16], slots: &[u32; BLOCK], to: &mut [f32]) -> u16 {
    let mut max_bits = 0;
    for (i, slot) in slots.iter().enumerate() {
        let scales = &from[*slot as usize * n..][..n];
        for (group, scale) in scales.iter().enumerate() {
            max_bits = max_bits.max(scale.to_bits());
            to[group * BLOCK + i] = widen(*scale);
        }
    }
    max_bits
}

/// `bf16::to_f32` without its branch for NaN.
#[inline(always)]
fn widen(scale: bf16) -> f32 {
    f32::from_bits(u32::from(scale.to_bits()) << 16)
}
