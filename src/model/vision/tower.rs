//! A tower on a backend.

use super::deepstack::DeepstackMerger;
use super::encoding::Encoding;
use super::layer::{ImageRotations, TowerLayer, TowerNorm};
use super::loader::TowerLoader;
use super::parts::Scope;
use super::positions::{Positions, rotary_block, rotations};
use super::projector::Projector;
use super::{TowerCheckpoint, TowerConfig, TowerError, TowerFamily, TowerGrid};
use souffleur_base::error::LoadError;
use souffleur_kernels::Linear;
use souffleur_kernels::vision::VisionOps;

/// The weights of a tower and its projector.
pub struct Tower<B: VisionOps> {
    config: TowerConfig,
    patch: Linear<B>,
    positions: Positions,
    /// Norm of patches before the layers.
    norm: Option<TowerNorm<B>>,
    layers: Vec<TowerLayer<B>>,
    deepstack: Vec<DeepstackMerger<B>>,
    projector: Projector<B>,
}

impl<B: VisionOps> Tower<B> {
    /// Loads all weights, in the backend's formats.
    ///
    /// # Errors
    /// [`LoadError::Format`], [`LoadError::MissingTensor`] and [`LoadError::WrongShape`], if the files have changed
    /// since they were checked.
    pub fn load(checkpoint: &TowerCheckpoint, backend: &mut B) -> Result<Self, LoadError> {
        let mut loader = TowerLoader {
            checkpoint,
            backend,
        };
        let loader = &mut loader;
        let config = checkpoint.config.clone();
        let layers = (0..config.n_layers).map(|layer| TowerLayer::load(loader, layer));
        Ok(Self {
            layers: layers.collect::<Result<_, _>>()?,
            deepstack: DeepstackMerger::load_all(loader)?,
            patch: loader.patch_embedding()?,
            positions: Positions::load(loader)?,
            norm: match config.family {
                TowerFamily::Pixtral => Some(TowerNorm::load(loader, Scope::Tower, "pre_norm")?),
                _ => None,
            },
            projector: Projector::load(loader)?,
            config,
        })
    }

    pub fn config(&self) -> &TowerConfig {
        &self.config
    }

    /// Begins to encode an image, and copies its patches. They are in the order, and their values in the order and
    /// range, that the model's image processor gives them.
    ///
    /// # Shapes
    /// `patches: [grid.h * grid.w, patch_dim]`.
    ///
    /// # Errors
    /// [`TowerError`], before memory is allocated.
    pub fn begin(
        &self,
        backend: &mut B,
        patches: &[f32],
        grid: TowerGrid,
    ) -> Result<Encoding<B>, TowerError> {
        let n_vectors = self.config.n_vectors(grid)?;
        let (got, expected) = (patches.len(), grid.n_patches() * self.config.patch_dim());
        if got != expected {
            return Err(TowerError::WrongValues { got, expected });
        }
        let rows = match self.config.family {
            TowerFamily::Gemma4 => {
                // From 0..=1 to -1..=1.
                let scaled: Vec<f32> = patches.iter().map(|x| 2.0 * (x - 0.5)).collect();
                backend.upload(&scaled, self.config.patch_dim())
            }
            _ => backend.upload(patches, self.config.patch_dim()),
        };
        let sizes = (n_vectors, self.config.n_stages());
        Ok(Encoding::new(grid, rows, sizes))
    }

    /// The first stage: the vectors of patches, and the rotations of heads.
    pub(super) fn embed(
        &self,
        backend: &mut B,
        patches: &B::Tensor,
        grid: TowerGrid,
    ) -> (B::Tensor, Option<ImageRotations<B>>) {
        let operand = backend.operand(patches, &self.patch.weight);
        let mut x = backend.project(&operand, &self.patch);
        drop(operand);
        let positions = self.positions.rows(&self.config, grid);
        if !positions.is_empty() {
            let positions = backend.upload(&positions, self.config.hidden);
            backend.add_scaled(&mut x, &positions, 1.0);
        }
        if let Some(norm) = &self.norm {
            x = norm.rows(backend, &x);
        }
        let rotations = self.config.rotates().then(|| ImageRotations {
            rows: backend.upload(&rotations(&self.config, grid), self.config.head_dim),
            block: rotary_block(&self.config),
        });
        (x, rotations)
    }

    pub(super) fn add_layer(
        &self,
        backend: &mut B,
        layer: usize,
        x: &mut B::Tensor,
        rotations: Option<&ImageRotations<B>>,
    ) {
        self.layers[layer].add(backend, x, rotations);
    }

    /// The further vectors that the output of a layer gives, if it does.
    pub(super) fn deepstack(
        &self,
        backend: &mut B,
        layer: usize,
        x: &B::Tensor,
        grid: TowerGrid,
    ) -> Option<B::Tensor> {
        let merger = self.deepstack.iter().find(|merger| merger.reads(layer))?;
        Some(merger.vectors(backend, x, grid))
    }

    /// The last stage.
    pub(super) fn project(&self, backend: &mut B, x: &B::Tensor, grid: TowerGrid) -> B::Tensor {
        self.projector.project(backend, x, grid)
    }
}
