//! Items whose weights are widened once for many rows.

use super::super::simd::Lanes;
use super::super::strips::{self, Widened};
use super::super::tile::{self, Ahead, MAX_PANELS, Sums};
use super::item::Item;
use super::output::Panels;
use super::tiles::Tile;

impl Item<'_> {
    /// Multiplies all groups with [`MAX_PANELS`] panels, or as many pairs of them, from strips.
    #[inline(always)]
    pub fn in_strips<S: Lanes, T: Tile>(&self, panel: usize) {
        let (panels, n_panels) = self.panels_from(panel, MAX_PANELS);
        let inputs = self.packed.row_words;
        let mut widened = Widened::uninit();
        let mut sums = [[const { Sums::uninit() }; strips::MOST_GROUPS]; 2];
        for first_group in self.groups.clone().step_by(strips::MOST_GROUPS) {
            let groups = first_group..self.groups.end.min(first_group + strips::MOST_GROUPS);
            for (i, (sums, panels_now)) in sums.iter_mut().zip(&panels[..n_panels]).enumerate() {
                let panels_next = match i + 1 < n_panels {
                    true => panels[i + 1],
                    false if groups.end < self.groups.end => panels[0],
                    false => self.panels_from(panel + MAX_PANELS, MAX_PANELS).0[0],
                };
                for first in (0..inputs).step_by(strips::PART) {
                    let part = first..inputs.min(first + strips::PART);
                    let next = match part.end < inputs {
                        true => (*panels_now, part.end),
                        false => (panels_next, 0),
                    };
                    let operands = self.operands::<S>(&[], *panels_now, Ahead::Nothing);
                    // SAFETY: the panels have all inputs, a whole number of steps; `dispatch` detected the instruction set.
                    unsafe { T::widen::<S>(&operands, part.clone(), &mut widened) };
                    for (group, sums) in groups.clone().zip(sums.iter_mut()) {
                        let (rows, words) = self.packed.group(group);
                        self.fetch_part::<S>(next, group - groups.start, groups.len());
                        if part.end == inputs {
                            self.output.fetch::<S>(rows.clone(), *panels_now);
                        }
                        let words = words[first * rows.len()..part.end * rows.len()].as_ptr();
                        // SAFETY: the rows have these words, and `sums` those of the parts before; as before.
                        unsafe {
                            let rows = (words, rows.len());
                            widened.multiply::<S>(rows, part.len(), first == 0, sums);
                        }
                    }
                }
            }
            for (i, group) in groups.enumerate() {
                let (rows, _) = self.packed.group(group);
                self.put::<S>(rows, panels, [&sums[0][i], &sums[1][i]]);
            }
        }
    }

    /// Brings the share of a group of the weights near that strips are made of next, from an input of some panels on.
    #[inline(always)]
    fn fetch_part<S: Lanes>(
        &self,
        (panels, first): (Panels, usize),
        group: usize,
        n_groups: usize,
    ) {
        let inputs = self.packed.row_words;
        let words = self.weight.panel_words();
        if panels.index(panels.n - 1) >= self.weight.panels().len() {
            return;
        }
        let lines = strips::PART.min(inputs) * (words / inputs) / tile::LINE_WORDS;
        for n in 0..panels.n {
            let start = panels.index(n) * words + first * (words / inputs);
            for line in group * lines / n_groups..(group + 1) * lines / n_groups {
                let line = start + line * tile::LINE_WORDS;
                // SAFETY: only a hint; the instruction set was detected by whoever runs the item.
                unsafe { S::prefetch(self.weight.words().as_ptr().wrapping_add(line)) };
            }
        }
    }
}
