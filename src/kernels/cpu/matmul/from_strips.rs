//! Items whose weights are widened once for many rows.

use std::array;
use std::ops::Range;

use super::super::simd::Lanes;
use super::super::strips::{MOST_GROUPS, PART, Widened};
use super::super::tile::{Ahead, LINE_WORDS, MAX_PANELS, Sums};
use super::item::Item;
use super::output::Panels;
use super::section::panels_of;
use super::tiles::Tile;

impl Item<'_> {
    /// Multiplies all groups with `n` panels, or as many pairs of them, from strips.
    #[inline(always)]
    pub fn in_strips<S: Lanes, T: Tile>(&self, panel: usize, n: usize) {
        let (panels, n_panels) = self.panels_from(panel, n);
        let (inputs, panel_words) = (self.packed.row_words, self.weight.panel_words());
        let input_words = panel_words / inputs;
        let mut widened = Widened::uninit();
        let mut sums = [[const { Sums::uninit() }; MOST_GROUPS]; 2];
        for first_group in self.groups.clone().step_by(MOST_GROUPS) {
            let n_groups = MOST_GROUPS.min(self.groups.end - first_group);
            let groups = self.groups_from(first_group, n_groups);
            let part_lines = PART.min(inputs) * input_words / LINE_WORDS;
            let lines = part_lines.div_ceil(n_groups);
            for (i, (sums, panels_now)) in sums.iter_mut().zip(&panels[..n_panels]).enumerate() {
                let panels_next = match i + 1 < n_panels {
                    true => panels[i + 1],
                    false if first_group + n_groups < self.groups.end => panels[0],
                    false => self.panels_after(panel + n),
                };
                for first in (0..inputs).step_by(PART) {
                    let part = first..inputs.min(first + PART);
                    let (panels, next_input) = match part.end < inputs {
                        true => (*panels_now, part.end),
                        false => (panels_next, 0),
                    };
                    let next = NextPart {
                        words: self.weight.words(),
                        panels,
                        panel_words,
                        first_word: next_input * input_words,
                    };
                    // SAFETY: a part is a whole number of steps.
                    unsafe { self.widen::<S, T>(*panels_now, part.clone(), &mut widened) };
                    for (index, sums) in sums[..n_groups].iter_mut().enumerate() {
                        let (rows, words) = groups[index].clone();
                        next.fetch::<S>(index * lines..part_lines.min((index + 1) * lines));
                        if part.end == inputs {
                            self.output.fetch::<S>(rows.clone(), *panels_now);
                        }
                        let words = words[first * rows.len()..part.end * rows.len()].as_ptr();
                        let rows = (words, rows.len());
                        // SAFETY: the rows have these words, and `sums` those of the parts before; `dispatch` detected the
                        // instruction set.
                        unsafe { widened.multiply::<S>(rows, n, part.len(), first == 0, sums) };
                    }
                }
            }
            for (i, (rows, _)) in groups[..n_groups].iter().enumerate() {
                self.put::<S>(rows.clone(), panels, [&sums[0][i], &sums[1][i]]);
            }
        }
    }

    /// The rows of `n` groups by their numbers, and their words; each part of the inputs goes through all of them.
    #[inline(always)]
    fn groups_from(&self, first: usize, n: usize) -> [(Range<usize>, &[u32]); MOST_GROUPS] {
        array::from_fn(|group| match group < n {
            true => self.packed.group(first + group),
            false => (0..0, &[][..]),
        })
    }

    /// Fills strips with some inputs of up to [`MAX_PANELS`] panels.
    ///
    /// # Safety
    /// The inputs are whole steps; the instruction set of `S` was detected.
    #[inline(always)]
    unsafe fn widen<S: Lanes, T: Tile>(
        &self,
        panels: Panels,
        part: Range<usize>,
        widened: &mut Widened,
    ) {
        let operands = self.operands::<S>(&[], panels, Ahead::Nothing);
        // SAFETY: the caller's promise; the operands are of so many panels, which have all inputs.
        unsafe {
            match panels.n {
                1 => T::widen::<S, 1>(&operands, part, widened),
                2 => T::widen::<S, 2>(&operands, part, widened),
                MAX_PANELS => T::widen::<S, MAX_PANELS>(&operands, part, widened),
                n => unreachable!("strips of {n} panels"),
            }
        }
    }

    /// The panels, first of them if gated, that whoever multiplies in order meets after those before `panel`.
    #[inline(always)]
    fn panels_after(&self, panel: usize) -> Panels {
        let all = panels_of(self.weight, self.output.write);
        self.panels_from(panel, MAX_PANELS.min(all - panel)).0[0]
    }
}

/// The weights that strips are made of next, which each group brings a share of near.
struct NextPart<'a> {
    words: &'a [u32],
    panels: Panels,
    panel_words: usize,
    /// Where the part begins in each panel.
    first_word: usize,
}

impl NextPart<'_> {
    /// Brings some lines of each panel near.
    #[inline(always)]
    fn fetch<S: Lanes>(&self, lines: Range<usize>) {
        for n in 0..self.panels.n {
            let start = self.panels.index(n) * self.panel_words + self.first_word;
            for line in lines.clone() {
                let word = start + line * LINE_WORDS;
                // SAFETY: only a hint; the instruction set was detected by whoever runs the item.
                unsafe { S::prefetch(self.words.as_ptr().wrapping_add(word)) };
            }
        }
    }
}
