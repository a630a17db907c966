//! A tower on a backend.

use std::ops::Range;

use super::cut::{Cut, UNIT_FLOPS};
use super::deepstack::DeepstackMerger;
use super::encoding::Encoding;
use super::layer::{ImageRotations, TowerLayer, TowerNorm, heads};
use super::loader::TowerLoader;
use super::parts::Scope;
use super::positions::{Positions, rotary_block, rotations};
use super::projector::Projector;
use super::{TowerCheckpoint, TowerConfig, TowerError, TowerFamily, TowerGrid};
use souffleur_base::error::LoadError;
use souffleur_kernels::Linear;
use souffleur_kernels::vision::{Columns, ImageKeys, VisionOps};

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
    /// The most operations of a unit of work.
    unit_flops: u64,
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
            unit_flops: UNIT_FLOPS,
        })
    }

    /// Cuts the work on images into units of at most `unit_flops` operations, as [`TowerConfig::work`] does, in place of
    /// [`UNIT_FLOPS`].
    pub fn with_unit_flops(self, unit_flops: u64) -> Self {
        Self { unit_flops, ..self }
    }

    pub fn config(&self) -> &TowerConfig {
        &self.config
    }

    /// Begins to encode an image, whose patches are read when they are embedded.
    ///
    /// # Errors
    /// [`TowerError`], before memory is allocated.
    pub fn begin(&self, grid: TowerGrid) -> Result<Encoding<B>, TowerError> {
        self.config.n_vectors(grid)?;
        Ok(Encoding::new(grid, self.cut(grid)))
    }

    fn upload(&self, backend: &mut B, patches: &[f32]) -> B::Tensor {
        let dim = self.config.patch_dim();
        match self.config.family {
            TowerFamily::Gemma4 => {
                // From 0..=1 to -1..=1.
                let scaled: Vec<f32> = patches.iter().map(|x| 2.0 * (x - 0.5)).collect();
                backend.upload(&scaled, dim)
            }
            _ => backend.upload(patches, dim),
        }
    }

    pub(super) fn cut(&self, grid: TowerGrid) -> Cut {
        Cut::new(&self.config, grid, self.unit_flops)
    }

    /// The embedded patches of a block, and their RoPE factors. `rows`: the patches' indices in the image.
    ///
    /// # Shapes
    /// `patches: [rows.len(), patch_dim]`.
    ///
    /// # Errors
    /// [`TowerError::WrongValues`] for another number of values.
    pub(super) fn embed(
        &self,
        backend: &mut B,
        patches: &[f32],
        grid: TowerGrid,
        rows: Range<usize>,
    ) -> Result<(B::Tensor, Option<ImageRotations<B>>), TowerError> {
        let (got, expected) = (patches.len(), rows.len() * self.config.patch_dim());
        if got != expected {
            return Err(TowerError::WrongValues { got, expected });
        }
        let patches = self.upload(backend, patches);
        let operand = backend.operand(&patches, &self.patch.weight);
        let mut x = backend.project(&operand, &self.patch);
        drop((operand, patches));
        let positions = self.positions.rows(&self.config, grid, rows.clone());
        if !positions.is_empty() {
            let positions = backend.upload(&positions, self.config.hidden);
            backend.add_scaled(&mut x, &positions, 1.0);
        }
        if let Some(norm) = &self.norm {
            x = norm.rows(backend, &x);
        }
        let rotations = self.config.rotates().then(|| {
            let values = rotations(&self.config, grid, rows);
            ImageRotations {
                rows: backend.upload(&values, self.config.head_dim),
                block: rotary_block(&self.config),
            }
        });
        Ok((kept(backend, &x, self.config.hidden), rotations))
    }

    /// Memory for the keys and values of a layer.
    pub(super) fn keys(&self, backend: &mut B, grid: TowerGrid) -> ImageKeys<B> {
        backend.image_keys(grid.n_patches(), &heads(&self.config))
    }

    pub(super) fn layer(&self, layer: usize) -> &TowerLayer<B> {
        &self.layers[layer]
    }

    /// A block of the further vectors that the output of a layer gives.
    pub(super) fn deepstack(
        &self,
        backend: &mut B,
        set: usize,
        x: &[&B::Tensor],
        vectors: Range<usize>,
    ) -> B::Tensor {
        let vectors = self.deepstack[set].vectors(backend, x, vectors);
        kept(backend, &vectors, self.config.text_width)
    }

    /// A block of the image's vectors, from the residual stream of all patches.
    pub(super) fn project(
        &self,
        backend: &mut B,
        x: &[&B::Tensor],
        grid: TowerGrid,
        vectors: Range<usize>,
    ) -> B::Tensor {
        let vectors = self.projector.project(backend, x, grid, vectors);
        kept(backend, &vectors, self.config.text_width)
    }
}

/// A copy of all columns that lasts until the image is encoded.
fn kept<B: VisionOps>(backend: &mut B, x: &B::Tensor, width: usize) -> B::Tensor {
    backend.keep(Columns { rows: x, first: 0 }, width)
}
