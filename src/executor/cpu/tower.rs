//! The vision tower on the CPU, as the executor's slices run it: its units of work are those of an image's views, one
//! view after another.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::CpuExecutor;
use crate::vision::{Encoder, ImageTower, refuse_slice};
use souffleur_base::error::{LoadError, StepError};
use souffleur_kernels::cpu::CpuBackend;
use souffleur_model::vision::{
    Encoding, Tower, TowerCheckpoint, TowerConfig, TowerError, TowerGrid, UNIT_FLOPS,
};
use souffleur_state::prompt_images::{ImageGrid, ImageInput};
use souffleur_state::step::StepPlan;

struct CpuTower {
    tower: Tower<CpuBackend>,
    /// The views whose encoding has not ended, in order.
    views: VecDeque<Encoding<CpuBackend>>,
    /// The index of the first of `views`.
    view: usize,
    /// The vectors of the views that precede `views`.
    vectors: Vec<f32>,
}

/// The opened files of a vision tower.
pub struct TowerFiles {
    pub checkpoint: TowerCheckpoint,
    /// The file or folder that errors name.
    pub source: PathBuf,
}

/// The work on an image: the operations of each unit of each view.
pub fn tower_work(config: &TowerConfig, input: &dyn ImageInput) -> Arc<[u64]> {
    let views = (0..input.n_views()).map(|view| tower_grid(input.grid(view)));
    views
        .flat_map(|grid| config.work(grid, UNIT_FLOPS))
        .collect()
}

fn tower_grid(grid: ImageGrid) -> TowerGrid {
    TowerGrid {
        h: grid.rows as usize,
        w: grid.columns as usize,
    }
}

impl ImageTower<CpuBackend> for CpuTower {
    fn begin(&mut self, _: &mut CpuBackend, input: &dyn ImageInput) -> Result<(), String> {
        self.forget();
        for view in 0..input.n_views() {
            let begun = self.tower.begin(tower_grid(input.grid(view)));
            self.views.push_back(begun.map_err(unencodable)?);
        }
        Ok(())
    }

    fn advance(&mut self, backend: &mut CpuBackend, input: &dyn ImageInput) -> Result<(), String> {
        let view = self.views.front_mut().ok_or("has no further unit")?;
        let index = self.view;
        let patches = |indices: Range<usize>| input.patches_in(index, indices);
        let advanced = view.advance(&self.tower, backend, 1, &patches);
        advanced.map_err(unencodable)?;
        if view.is_done()
            && let Some(view) = self.views.pop_front()
        {
            self.view += 1;
            self.vectors.append(&mut view.into_vectors(backend));
        }
        Ok(())
    }

    fn finish(&mut self, _: &mut CpuBackend) -> Result<Vec<f32>, String> {
        if !self.views.is_empty() {
            return Err("has units that were not computed".to_owned());
        }
        Ok(std::mem::take(&mut self.vectors))
    }

    fn forget(&mut self) {
        self.views.clear();
        self.view = 0;
        self.vectors = Vec::new();
    }
}

fn unencodable(error: TowerError) -> String {
    format!("cannot be encoded: {error}")
}

impl CpuExecutor {
    /// Enables slices of images in plans: `tower` encodes them on the compute threads.
    pub fn with_tower(self, tower: Box<dyn ImageTower<CpuBackend>>) -> Self {
        Self {
            encoder: Some(Encoder::new(tower, self.image_width)),
            ..self
        }
    }

    pub(super) fn check_slice(&self, plan: &StepPlan) -> Result<(), StepError> {
        match (&self.encoder, &plan.vision) {
            (Some(encoder), Some(slice)) => encoder.check(slice),
            (Some(_), None) => Ok(()),
            (None, _) => refuse_slice(plan),
        }
    }

    /// Frees the memory of an image whose requests were cancelled, before the step computes.
    pub(super) fn forget_unwanted_image(&mut self) {
        if let Some(encoder) = &mut self.encoder {
            encoder.forget_unwanted();
        }
    }

    pub(super) fn forget_image(&mut self) {
        if let Some(encoder) = &mut self.encoder {
            encoder.forget();
        }
    }

    /// Loads a vision tower, which encodes the images of slices. `source` is the file that errors name.
    ///
    /// # Errors
    /// If the tower is another model's, or its files have changed.
    pub fn load_tower(
        mut self,
        checkpoint: &TowerCheckpoint,
        source: &Path,
    ) -> Result<Self, LoadError> {
        let of = (checkpoint, source);
        let widths = (self.hidden_size, self.image_width);
        let tower = load_tower(of, widths, &mut self.backend)?;
        Ok(self.with_tower(tower))
    }
}

/// Loads a tower for a text model with this hidden size. Each position of an image has the given number of values.
pub(super) fn load_tower(
    (checkpoint, source): (&TowerCheckpoint, &Path),
    (hidden_size, image_width): (usize, usize),
    backend: &mut CpuBackend,
) -> Result<Box<dyn ImageTower<CpuBackend>>, LoadError> {
    let n_sets = image_width / hidden_size - 1;
    checkpoint.config.check_width(source, hidden_size)?;
    checkpoint.config.check_deepstack(source, n_sets)?;
    Ok(Box::new(CpuTower {
        tower: Tower::load(checkpoint, backend)?,
        views: VecDeque::new(),
        view: 0,
        vectors: Vec::new(),
    }))
}
