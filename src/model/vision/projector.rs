//! The end of a tower: blocks of patches become vectors as wide as the text model's embeddings.
//!
//! Families differ in where norms are, and in whether a block is joined or averaged: a norm of patches, the reduction,
//! a norm of blocks, and linear layers with activations between them.

use std::ops::Range;

use super::layer::TowerNorm;
use super::loader::TowerLoader;
use super::parts::{Part, Scope, Source, projector_stems};
use super::{TowerConfig, TowerFamily, TowerGrid};
use souffleur_base::error::LoadError;
use souffleur_kernels::Linear;
use souffleur_kernels::vision::{Activation, JoinOrder, VisionOps};

/// Products, each with the activation that follows it.
type Linears<B> = Vec<(Linear<B>, Option<Activation>)>;

/// How the patches of a block become one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reduction {
    /// Patches of a block are adjacent rows.
    JoinAdjacent,
    /// Patches are in rows of the image.
    JoinSquares(JoinOrder),
    Mean,
}

pub(super) struct Projector<B: VisionOps> {
    /// Norm of patches.
    before: Option<TowerNorm<B>>,
    reduction: Reduction,
    merge: usize,
    /// Factor on the rows after the reduction.
    factor: Option<f32>,
    /// Bias and factor of each column.
    standard: Option<(B::Vector, B::Vector)>,
    /// Norm of the rows after the reduction.
    after: Option<TowerNorm<B>>,
    linears: Linears<B>,
}

impl<B: VisionOps> Projector<B> {
    pub fn load(loader: &mut TowerLoader<'_, B>) -> Result<Self, LoadError> {
        let config = loader.config();
        Ok(Self {
            before: before(loader)?,
            reduction: match config.family {
                TowerFamily::Qwen => Reduction::JoinAdjacent,
                TowerFamily::Pixtral => Reduction::JoinSquares(JoinOrder::Columns),
                TowerFamily::Lfm2 => Reduction::JoinSquares(JoinOrder::Rows),
                TowerFamily::Gemma3 | TowerFamily::Gemma4 => Reduction::Mean,
            },
            merge: config.merge,
            factor: match config.family {
                TowerFamily::Gemma4 => Some((config.hidden as f32).sqrt()),
                _ => None,
            },
            standard: if config.standardizes {
                let bias = loader.vector(Part::new(Scope::Tower, "std_bias", ""))?;
                let factor = loader.vector(Part::new(Scope::Tower, "std_scale", ""))?;
                Some((bias, factor))
            } else {
                None
            },
            after: after(loader)?,
            linears: linears(loader)?,
        })
    }

    /// The vectors of these indices.
    ///
    /// # Shapes
    /// `x`: blocks of all patches of the image, `[n, hidden]` each; result `[vectors.len(), text_width]`.
    pub fn project(
        &self,
        backend: &mut B,
        x: &[&B::Tensor],
        grid: TowerGrid,
        vectors: Range<usize>,
    ) -> B::Tensor {
        let n_vectors = vectors.len();
        let patches = backend.gather_rows(x, &self.patches_of(grid, vectors));
        let normed = self
            .before
            .as_ref()
            .map(|norm| norm.rows(backend, &patches));
        let x = normed.as_ref().unwrap_or(&patches);
        let mut rows = self.reduce(backend, x, n_vectors);
        drop(normed);
        drop(patches);
        if let Some(factor) = self.factor {
            backend.scale(&mut rows, factor);
        }
        if let Some((bias, factor)) = &self.standard {
            backend.standardize(&mut rows, bias, factor);
        }
        if let Some(norm) = &self.after {
            rows = norm.rows(backend, &rows);
        }
        for (linear, activation) in &self.linears {
            let operand = backend.operand(&rows, &linear.weight);
            rows = backend.project(&operand, linear);
            if let Some(activation) = activation {
                backend.activate(&mut rows, *activation);
            }
        }
        rows
    }

    /// The patches of each vector, one vector after another.
    fn patches_of(&self, grid: TowerGrid, vectors: Range<usize>) -> Vec<u32> {
        let group = self.merge * self.merge;
        match self.reduction {
            Reduction::JoinAdjacent => {
                let patches = vectors.start * group..vectors.end * group;
                patches.map(|patch| patch as u32).collect()
            }
            Reduction::JoinSquares(_) | Reduction::Mean => squares(grid, self.merge, vectors),
        }
    }

    /// `x` has the patches of each vector, one vector after another.
    fn reduce(&self, backend: &mut B, x: &B::Tensor, n_vectors: usize) -> B::Tensor {
        let side = self.merge;
        let order = match self.reduction {
            Reduction::JoinAdjacent => JoinOrder::Rows,
            Reduction::JoinSquares(order) => order,
            Reduction::Mean => {
                // The squares, one below another.
                let (h, w) = (n_vectors * side, side);
                return backend.pool(x, TowerGrid { h, w }, side);
            }
        };
        let group = side * side;
        let rows: Vec<u32> = (0..(n_vectors * group) as u32).collect();
        backend.join_rows(x, &rows, group, order)
    }
}

/// The patches of some squares, which are numbered row by row: those of a square are row by row too.
fn squares(grid: TowerGrid, side: usize, squares: Range<usize>) -> Vec<u32> {
    let across = grid.w / side;
    let within = |square: usize| {
        let (top, left) = (square / across * side, square % across * side);
        (0..side * side).map(move |i| ((top + i / side) * grid.w + left + i % side) as u32)
    };
    squares.flat_map(within).collect()
}

fn before<B: VisionOps>(
    loader: &mut TowerLoader<'_, B>,
) -> Result<Option<TowerNorm<B>>, LoadError> {
    Ok(match loader.config().family {
        TowerFamily::Qwen | TowerFamily::Gemma3 | TowerFamily::Lfm2 => {
            Some(TowerNorm::load(loader, Scope::Tower, "post_norm")?)
        }
        TowerFamily::Pixtral if loader.config().projector_norm => {
            let weight = loader.vector(Part::new(Scope::Projector, "norm", "weight"))?;
            Some(TowerNorm::Rms(weight, loader.config().projector_eps))
        }
        TowerFamily::Pixtral | TowerFamily::Gemma4 => None,
    })
}

fn after<B: VisionOps>(loader: &mut TowerLoader<'_, B>) -> Result<Option<TowerNorm<B>>, LoadError> {
    let config = loader.config();
    let eps = config.projector_eps;
    Ok(match config.family {
        TowerFamily::Gemma3 => {
            let mut weight = loader.values(Part::new(Scope::Projector, "norm", "weight"))?;
            // Checkpoints store the weight minus one.
            if loader.checkpoint.source == Source::Safetensors {
                weight.iter_mut().for_each(|weight| *weight += 1.0);
            }
            Some(TowerNorm::Rms(loader.made_vector(&weight), eps))
        }
        TowerFamily::Gemma4 => {
            let ones = loader.made_vector(&vec![1.0; config.hidden]);
            Some(TowerNorm::Rms(ones, eps))
        }
        TowerFamily::Lfm2 if config.projector_norm => {
            let norm = loader.layer_norm(Scope::Projector, "norm", eps)?;
            Some(TowerNorm::Layer(norm))
        }
        TowerFamily::Lfm2 | TowerFamily::Qwen | TowerFamily::Pixtral => None,
    })
}

fn linears<B: VisionOps>(loader: &mut TowerLoader<'_, B>) -> Result<Linears<B>, LoadError> {
    let config = loader.config();
    let mut linears = Vec::new();
    for &stem in projector_stems(config) {
        let linear = match config.family {
            TowerFamily::Gemma3 => transposed(loader, config)?,
            _ => {
                let has_bias = config.projector_bias && stem != "merge";
                loader.linear(Scope::Projector, &[stem], has_bias)?
            }
        };
        let activation = (stem == "linear1").then_some(config.projector_activation);
        linears.push((linear, activation));
    }
    Ok(linears)
}

/// Gemma 3's projection, which files store as `[hidden, text_width]`.
fn transposed<B: VisionOps>(
    loader: &mut TowerLoader<'_, B>,
    config: &TowerConfig,
) -> Result<Linear<B>, LoadError> {
    let (hidden, width) = (config.hidden, config.text_width);
    let stored = loader.values(Part::new(Scope::Projector, "projection", "weight"))?;
    let output = |output: usize| (0..hidden).map(move |input| input * width + output);
    let order = (0..width).flat_map(output);
    let values: Vec<f32> = order.map(|from| stored[from]).collect();
    Ok(Linear {
        weight: loader.made_matrix(&values, [width, hidden]),
        bias: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_are_read_row_by_row() {
        let grid = TowerGrid { h: 2, w: 4 };
        assert_eq!(squares(grid, 2, 0..2), [0, 1, 4, 5, 2, 3, 6, 7]);
        assert_eq!(squares(grid, 2, 1..2), [2, 3, 6, 7]);
        assert_eq!(squares(grid, 1, 0..8), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
