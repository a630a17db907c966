//! The pixels of an image, until the tower needs their patches.

use std::ops::Range;
use std::sync::Arc;

use souffleur_images::{Prepared, Processor};
use souffleur_request::ImageGrid;
use souffleur_state::prompt_images::ImageInput;

#[derive(Debug)]
pub(super) struct Pixels {
    processor: Arc<Processor>,
    prepared: Prepared,
}

impl Pixels {
    pub(super) fn new(processor: Arc<Processor>, prepared: Prepared) -> Self {
        Self {
            processor,
            prepared,
        }
    }
}

impl ImageInput for Pixels {
    fn n_views(&self) -> usize {
        self.prepared.views.len()
    }

    fn grid(&self, view: usize) -> ImageGrid {
        let grid = self.prepared.layout.views[view].grid;
        ImageGrid {
            rows: grid.h,
            columns: grid.w,
        }
    }

    fn patches(&self, view: usize) -> Vec<f32> {
        self.processor.patches(&self.prepared, view).values
    }

    fn patches_in(&self, view: usize, indices: Range<usize>) -> Vec<f32> {
        let patches = self.processor.patches_in(&self.prepared, view, indices);
        patches.values
    }

    fn bytes(&self) -> usize {
        let views = self.prepared.views.iter();
        views.map(|view| view.pixels().len()).sum()
    }
}
