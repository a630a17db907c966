//! Positions of patches: learned position embeddings, which are added to the patches, and 2-D RoPE by row and column.
//!
//! Both are computed on the host, in f32, for each block of an image's patches.

use std::ops::Range;

use super::loader::TowerLoader;
use super::parts::{Part, Scope};
use super::{TowerConfig, TowerFamily, TowerGrid};
use souffleur_base::error::LoadError;
use souffleur_kernels::vision::VisionOps;

/// The learned vectors.
pub(super) struct Positions {
    /// `[position_rows, hidden]`; empty if the tower has none.
    table: Vec<f32>,
}

/// Rows or columns of a table, and their weights, that make the vector of a place on an axis.
type Taps = Vec<(usize, f32)>;

/// The taps of each place on an axis, from the positions of a table's axis and the number of places.
type Axis = fn(usize, usize) -> Vec<Taps>;

impl Positions {
    pub fn load<B: VisionOps>(loader: &TowerLoader<'_, B>) -> Result<Self, LoadError> {
        let table = match loader.config().position_rows() {
            0 => Vec::new(),
            _ => loader.values(Part::new(Scope::Tower, "positions", "weight"))?,
        };
        Ok(Self { table })
    }

    /// The vectors of some of an image's patches, `[patches.len(), hidden]`; empty if the tower has none.
    pub fn rows(&self, config: &TowerConfig, grid: TowerGrid, patches: Range<usize>) -> Vec<f32> {
        let axis: Axis = match config.family {
            TowerFamily::Pixtral => return Vec::new(),
            TowerFamily::Gemma4 => return self.sums_of_axes(config, grid, patches),
            TowerFamily::Gemma3 => identity,
            TowerFamily::Qwen => align_corners,
            TowerFamily::Lfm2 => antialias,
        };
        let (side, hidden) = (config.positions, config.hidden);
        let (down, across) = (axis(side, grid.h), axis(side, grid.w));
        let mut rows = vec![0.0; patches.len() * hidden];
        let places = places(config, grid, patches);
        for ((row, column), out) in places.zip(rows.chunks_exact_mut(hidden)) {
            for (from, weight) in &down[row] {
                for (at, share) in &across[column] {
                    let vector = &self.table[(from * side + at) * hidden..][..hidden];
                    let factor = weight * share;
                    let sums = out.iter_mut().zip(vector);
                    sums.for_each(|(sum, x)| *sum += factor * x);
                }
            }
        }
        rows
    }

    /// The sum of a vector for the column and one for the row.
    fn sums_of_axes(
        &self,
        config: &TowerConfig,
        grid: TowerGrid,
        patches: Range<usize>,
    ) -> Vec<f32> {
        let (side, hidden) = (config.positions, config.hidden);
        let vector = |index: usize| &self.table[index * hidden..][..hidden];
        let mut rows = Vec::with_capacity(patches.len() * hidden);
        for (row, column) in places(config, grid, patches) {
            let both = vector(column).iter().zip(vector(side + row));
            rows.extend(both.map(|(x, y)| x + y));
        }
        rows
    }
}

/// Row and column of some patches, by their indices in the order of an image's patches.
fn places(
    config: &TowerConfig,
    grid: TowerGrid,
    patches: Range<usize>,
) -> impl Iterator<Item = (usize, usize)> {
    let block = config.block();
    let across = grid.w / block;
    patches.map(move |patch| {
        let (square, i) = (patch / (block * block), patch % (block * block));
        let (row, column) = (square / across * block, square % across * block);
        (row + i / block, column + i % block)
    })
}

fn identity(_side: usize, n: usize) -> Vec<Taps> {
    (0..n).map(|at| vec![(at, 1.0)]).collect()
}

/// Linear interpolation with the first and last of `n` places at the first and last of `side` positions.
fn align_corners(side: usize, n: usize) -> Vec<Taps> {
    let last = side - 1;
    let taps = |at: usize| {
        let place = (at * last) as f32 / (n - 1).max(1) as f32;
        let floor = place.floor();
        let (from, share) = (floor as usize, place - floor);
        vec![(from.min(last), 1.0 - share), ((from + 1).min(last), share)]
    };
    (0..n).map(taps).collect()
}

/// Linear interpolation with centres of pixels, which averages where it scales down.
///
/// # Source
/// The antialiased bilinear filter of torch, which is Pillow's: a triangle as wide as two positions, or two places
/// where those are wider.
fn antialias(side: usize, n: usize) -> Vec<Taps> {
    let scale = side as f32 / n as f32;
    let support = scale.max(1.0);
    let taps = |at: usize| {
        let centre = scale * (at as f32 + 0.5);
        let first = (centre - support + 0.5).max(0.0) as usize;
        let end = ((centre + support + 0.5) as usize).min(side);
        let weight = |from: usize| {
            let distance = (from as f32 - centre + 0.5) / support;
            (1.0 - distance.abs()).max(0.0)
        };
        let sum: f32 = (first..end).map(weight).sum();
        (first..end)
            .map(|from| (from, weight(from) / sum))
            .collect()
    };
    (0..n).map(taps).collect()
}

/// The elements of a head in whose halves pairs are rotated.
pub(super) fn rotary_block(config: &TowerConfig) -> usize {
    match config.family {
        TowerFamily::Gemma4 => config.head_dim / 2,
        _ => config.head_dim,
    }
}

/// Cosines of a head's pairs and then their sines, for some patches: `[patches.len(), head_dim]`. The first half of the
/// pairs rotates by one axis, the second half by the other.
pub(super) fn rotations(config: &TowerConfig, grid: TowerGrid, patches: Range<usize>) -> Vec<f32> {
    let quarter = config.head_dim / 4;
    let frequency = |numerator: usize, denominator: usize| {
        let exponent = numerator as f32 / denominator as f32;
        1.0 / config.theta.powf(exponent)
    };
    let dim = config.head_dim;
    let frequencies = |axis: usize| -> Vec<f32> {
        let of_pair = |pair: usize| match config.family {
            // Rows have the even frequencies of a whole head, columns the odd ones.
            TowerFamily::Pixtral => frequency(2 * (2 * pair + axis), dim),
            _ => frequency(2 * pair, dim / 2),
        };
        (0..quarter).map(of_pair).collect()
    };
    let frequencies = [frequencies(0), frequencies(1)];
    let mut rotations = Vec::with_capacity(patches.len() * dim);
    for (row, column) in places(config, grid, patches) {
        let coordinates = match config.family {
            TowerFamily::Gemma4 => [column, row],
            _ => [row, column],
        };
        let axes = coordinates.iter().zip(&frequencies);
        let angles = axes.flat_map(|(at, own)| own.iter().map(move |f| *at as f32 * f));
        let angles: Vec<f32> = angles.collect();
        rotations.extend(angles.iter().map(|angle| angle.cos()));
        rotations.extend(angles.iter().map(|angle| angle.sin()));
    }
    rotations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpolation_keeps_a_grid_of_the_same_size() {
        let all: [Axis; 3] = [identity, align_corners, antialias];
        for axis in all {
            for (at, taps) in axis(6, 6).into_iter().enumerate() {
                let sum: f32 = taps.iter().map(|(_, weight)| weight).sum();
                assert!((sum - 1.0).abs() < 1e-6, "{at}: {taps:?}");
                let own: f32 = taps.iter().filter(|tap| tap.0 == at).map(|tap| tap.1).sum();
                assert!((own - 1.0).abs() < 1e-6, "{at}: {taps:?}");
            }
        }
    }

    #[test]
    fn corners_are_aligned_and_one_place_is_the_first() {
        assert_eq!(align_corners(3, 5)[1], [(0, 0.5), (1, 0.5)]);
        assert_eq!(align_corners(3, 5)[4], [(2, 1.0), (2, 0.0)]);
        assert_eq!(align_corners(3, 1)[0], [(0, 1.0), (1, 0.0)]);
    }

    #[test]
    fn antialiased_positions_are_averaged_where_there_are_fewer_places() {
        let one = &antialias(4, 1)[0];
        let weights: Vec<f32> = one.iter().map(|tap| tap.1).collect();
        // A triangle around the middle, as wide as twice the table.
        let expected = [0.625, 0.875, 0.875, 0.625].map(|weight: f32| weight / 3.0);
        assert_eq!(weights.len(), expected.len());
        for (got, expected) in weights.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-6, "{weights:?}");
        }
    }
}
