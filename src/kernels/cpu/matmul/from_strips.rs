//! Work items that widen weights once into strips and multiply many rows with them.

use std::array;
use std::ops::Range;

use super::super::ahead::{Ahead, LINE_WORDS};
use super::super::matrix::Matrix;
use super::super::panel::{MAX_PANELS, Sums};
use super::super::simd::Lanes;
use super::super::strips::{GroupPart, MOST_GROUPS, PART, WidenedWeights};
use super::item::{Item, Start};
use super::output::Panels;
use super::tiles::{Rows, Tile};

impl Item<'_> {
    /// Multiplies all groups with `n` panels, or as many pairs of them, from strips.
    #[inline(always)]
    pub fn multiply_in_strips<S: Lanes, T: Tile>(&self, panel: usize, n: usize) {
        let (panels, n_panels) = self.panels_from(panel, n);
        let mut widened = WidenedWeights::uninit();
        let mut sums = [[const { Sums::uninit() }; MOST_GROUPS]; 2];
        for first_group in self.groups.clone().step_by(MOST_GROUPS) {
            let n_groups = MOST_GROUPS.min(self.groups.end - first_group);
            let groups = &self.groups_from(first_group, n_groups)[..n_groups];
            for (i, sums) in sums[..n_panels].iter_mut().enumerate() {
                let then = match i + 1 < n_panels {
                    true => (self.weight, panels[i + 1]),
                    false if first_group + n_groups < self.groups.end => (self.weight, panels[0]),
                    false => self.panels_after(panel + n),
                };
                self.multiply_inputs::<S, T>(groups, (panels[i], then), &mut widened, sums);
            }
            for (i, (rows, _)) in groups.iter().enumerate() {
                self.put::<S>(rows.clone(), panels, [&sums[0][i], &sums[1][i]]);
            }
        }
    }

    /// Multiplies groups with all inputs of some panels; `then` are the panels to prefetch.
    #[inline(always)]
    fn multiply_inputs<S: Lanes, T: Tile>(
        &self,
        groups: &[Group<'_>],
        (panels, then): (Panels, (&Matrix, Panels)),
        widened: &mut WidenedWeights,
        sums: &mut [Sums],
    ) {
        let inputs = self.packed.row_words;
        let input_words = self.weight.panel_words / inputs;
        let part_lines = PART.min(inputs) * input_words / LINE_WORDS;
        let lines = part_lines.div_ceil(groups.len());
        for first in (0..inputs).step_by(PART) {
            let part = first..inputs.min(first + PART);
            let is_last = part.end == inputs;
            let (weight_next, panels_next) = if is_last { then } else { (self.weight, panels) };
            let next = NextPart {
                words: weight_next.words(),
                panels: panels_next,
                panel_words: weight_next.panel_words,
                first_word: part.end % inputs * input_words,
            };
            for (index, (rows, _)) in groups.iter().enumerate() {
                next.fetch::<S>(index * lines..part_lines.min((index + 1) * lines));
                if is_last {
                    self.output.fetch::<S>(rows.clone(), panels);
                }
                let group = group_part(groups, index, part.clone(), &mut sums[index]);
                // SAFETY: a part is a whole number of steps, which the rows have; `sums` are those of earlier parts;
                // `dispatch` detected the instruction set.
                unsafe {
                    match index {
                        0 => self.widen::<S, T>(panels, part.clone(), widened, group),
                        _ => widened.multiply::<S>(group, panels.n),
                    }
                }
            }
        }
    }

    /// The row indices and words of `n` groups, which are multiplied in turn with each part of the inputs. The last
    /// group comes first: it is rarely smaller than the others, and a full group best hides the filling of strips.
    #[inline(always)]
    fn groups_from(&self, first: usize, n: usize) -> [Group<'_>; MOST_GROUPS] {
        array::from_fn(|group| {
            if group < n {
                self.packed.group(first + n - 1 - group)
            } else {
                (0..0, &[][..])
            }
        })
    }

    /// Fills strips with some inputs of up to [`MAX_PANELS`] panels, and multiplies the first group with them.
    ///
    /// # Safety
    /// The inputs are whole steps, which the group has; the instruction set of `S` was detected.
    #[inline(always)]
    unsafe fn widen<S: Lanes, T: Tile>(
        &self,
        panels: Panels,
        part: Range<usize>,
        widened: &mut WidenedWeights,
        first: GroupPart<'_>,
    ) {
        let operands = self.operands(Rows::Group(std::ptr::null()), panels, Ahead::Nothing);
        // SAFETY: guaranteed by the caller; the operands are of `panels.n` panels, which have all inputs.
        unsafe {
            match panels.n {
                1 => T::widen::<S, 1>(&operands, part, widened, first),
                2 => T::widen::<S, 2>(&operands, part, widened, first),
                MAX_PANELS => T::widen::<S, MAX_PANELS>(&operands, part, widened, first),
                n => unreachable!("strips have 1, 2 or {MAX_PANELS} panels, not {n}"),
            }
        }
    }

    #[inline(always)]
    fn panels_after(&self, panel: usize) -> (&Matrix, Panels) {
        let Start {
            weight,
            panel,
            n_panels,
        } = self.after(panel);
        (
            weight,
            self.panels_from(panel, MAX_PANELS.min(n_panels)).0[0],
        )
    }
}

type Group<'a> = (Range<usize>, &'a [u32]);

/// A part of the inputs of a group's rows, with the start of the following group or part to prefetch.
#[inline(always)]
fn group_part<'a>(
    groups: &[Group<'_>],
    index: usize,
    part: Range<usize>,
    sums: &'a mut Sums,
) -> GroupPart<'a> {
    let (rows, words) = &groups[index];
    let (group_next, input_next) = if index + 1 < groups.len() {
        (index + 1, part.start)
    } else {
        (0, part.end % (words.len() / rows.len()))
    };
    let (rows_next, words_next) = &groups[group_next];
    let ahead = words_next.as_ptr();
    GroupPart {
        words: words[part.start * rows.len()..part.end * rows.len()].as_ptr(),
        n: rows.len(),
        inputs: part.len(),
        ahead: ahead.wrapping_add(input_next * rows_next.len()),
        begins: part.start == 0,
        sums,
    }
}

/// The weights of the next strips; each group prefetches a share of them.
struct NextPart<'a> {
    words: &'a [u32],
    panels: Panels,
    panel_words: usize,
    first_word: usize,
}

impl NextPart<'_> {
    #[inline(always)]
    fn fetch<S: Lanes>(&self, lines: Range<usize>) {
        for n in 0..self.panels.n {
            let start = self.panels.index(n) * self.panel_words + self.first_word;
            for line in lines.clone() {
                let word = start + line * LINE_WORDS;
                // SAFETY: only a hint; the item's caller detected the instruction set.
                unsafe { S::prefetch(self.words.as_ptr().wrapping_add(word)) };
            }
        }
    }
}
