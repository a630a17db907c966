//! Patches: the tower's input, in the order of transformers.

use std::ops::Range;

use super::normalise::Normalisation;
use super::{Prepared, Processor};
use crate::picture::Picture;
use crate::resample::Filter;

/// The order of patches, and of the values within one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Patches are ordered by block of `merge` x `merge` patches, row by row within each; values by channel, frame, row,
    /// column. A picture repeats its pixels in all frames.
    Blocks {
        /// Side of a block in patches.
        merge: u32,
        /// Frames of a patch.
        frames: u32,
    },
    /// Patches are ordered row by row; values by channel, row, column, as the weights of a convolution.
    ChannelsFirst,
    /// Patches are ordered row by row; values by row, column, channel.
    ChannelsLast,
}

/// The patches of a view.
#[derive(Debug, Clone, PartialEq)]
pub struct Patches {
    /// The number of patches.
    pub n: usize,
    /// The values of a patch.
    pub dim: usize,
    /// Shape: (n, dim).
    pub values: Vec<f32>,
}

/// Appends the normalised values of the patches whose top left pixels are at `(left, top)`.
struct Cutter<'a> {
    picture: &'a Picture,
    table: &'a [[f32; 256]; 3],
    side: usize,
}

impl Cutter<'_> {
    fn row(&self, left: usize, y: usize) -> &[u8] {
        let start = (y * self.picture.width() as usize + left) * 3;
        &self.picture.pixels()[start..start + self.side * 3]
    }

    fn channels_first(&self, (left, top): (usize, usize), frames: u32, values: &mut Vec<f32>) {
        for (channel, floats) in self.table.iter().enumerate() {
            for _ in 0..frames {
                for y in top..top + self.side {
                    let pixels = self.row(left, y).chunks_exact(3);
                    values.extend(pixels.map(|pixel| floats[usize::from(pixel[channel])]));
                }
            }
        }
    }

    fn channels_last(&self, (left, top): (usize, usize), values: &mut Vec<f32>) {
        for y in top..top + self.side {
            for pixel in self.row(left, y).chunks_exact(3) {
                let floats = pixel.iter().zip(self.table);
                values.extend(floats.map(|(sample, floats)| floats[usize::from(*sample)]));
            }
        }
    }
}

impl Processor {
    /// The filter that scales pictures.
    pub fn filter(&self) -> Filter {
        match self {
            Self::Qwen(settings) => settings.filter,
            Self::Gemma3(settings) => settings.filter,
            Self::Gemma4(settings) => settings.filter,
            Self::Pixtral(settings) => settings.filter,
            Self::Lfm2(settings) => settings.filter,
        }
    }

    /// How samples become floats.
    pub fn normalisation(&self) -> Normalisation {
        match self {
            Self::Qwen(settings) => settings.normalisation,
            Self::Gemma3(settings) => settings.normalisation,
            Self::Gemma4(settings) => settings.normalisation,
            Self::Pixtral(settings) => settings.normalisation,
            Self::Lfm2(settings) => settings.normalisation,
        }
    }

    /// The order of patches and of their values.
    pub fn order(&self) -> Order {
        match self {
            Self::Qwen(settings) => Order::Blocks {
                merge: settings.merge,
                frames: settings.frames,
            },
            Self::Gemma3(_) | Self::Pixtral(_) => Order::ChannelsFirst,
            Self::Gemma4(_) | Self::Lfm2(_) => Order::ChannelsLast,
        }
    }

    /// Side of a patch in pixels.
    pub fn patch(&self) -> u32 {
        match self {
            Self::Qwen(settings) => settings.patch,
            Self::Gemma3(settings) => settings.patch,
            Self::Gemma4(settings) => settings.patch,
            Self::Pixtral(settings) => settings.patch,
            Self::Lfm2(settings) => settings.patch,
        }
    }

    /// The patches of view `view` of a prepared picture. They take four bytes a value, and each frame repeats the
    /// pixels.
    ///
    /// # Panics
    /// If the picture was prepared by another processor, or has no such view.
    pub fn patches(&self, prepared: &Prepared, view: usize) -> Patches {
        let n_patches = prepared.layout.views[view].grid.n_patches();
        self.patches_in(prepared, view, 0..n_patches as usize)
    }

    /// Those of a view's patches with these indices, in [`order`](Self::order).
    ///
    /// # Panics
    /// As [`patches`](Self::patches), and if the view has fewer patches.
    pub fn patches_in(&self, prepared: &Prepared, view: usize, indices: Range<usize>) -> Patches {
        let grid = prepared.layout.views[view].grid;
        let cutter = Cutter {
            picture: &prepared.views[view],
            table: &self.normalisation().table(),
            side: self.patch() as usize,
        };
        let order = self.order();
        let (merge, frames) = match order {
            Order::Blocks { merge, frames } => (merge as usize, frames),
            Order::ChannelsFirst | Order::ChannelsLast => (1, 1),
        };
        let blocks_across = grid.w as usize / merge;
        let dim = cutter.side * cutter.side * 3 * frames as usize;
        let n = indices.len();
        let mut values = Vec::with_capacity(n * dim);
        for index in indices {
            let (block, i) = (index / (merge * merge), index % (merge * merge));
            let row = block / blocks_across * merge + i / merge;
            let column = block % blocks_across * merge + i % merge;
            let corner = (column * cutter.side, row * cutter.side);
            match order {
                Order::ChannelsLast => cutter.channels_last(corner, &mut values),
                _ => cutter.channels_first(corner, frames, &mut values),
            }
        }
        Patches { n, dim, values }
    }
}
