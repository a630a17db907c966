//! Uploads prompt embeddings, which replace the looked-up embeddings of placeholder tokens, and other rows of activations
//! that the host computes.
//!
//! The embeddings of a step may be as large as its residual stream, so they pass through pinned memory of a fixed size,
//! which is allocated on first use.

use super::{CudaBackend, Tensor};
use crate::cuda::driver::{DriverError, Uploader};
use souffleur_base::prompt_vectors::VectorRun;

#[derive(Default)]
pub(super) struct EmbeddingUploads {
    /// Those of the step, until their last values are used.
    pub(super) runs: Vec<VectorRun>,
    uploader: Option<Uploader>,
}

impl CudaBackend {
    pub fn place_vectors(&mut self, runs: &mut Vec<VectorRun>) {
        self.embeddings.runs.clear();
        self.embeddings.runs.append(runs);
    }

    /// Enqueues the copy of the step's prompt embeddings to the rows of the tokens that they replace.
    pub(super) fn upload_embeddings(&mut self, residual: &Tensor) {
        let mut runs = std::mem::take(&mut self.embeddings.runs);
        let width = residual.width;
        for run in &runs {
            if run.prompt.width() == width {
                self.upload_rows(residual, run.first_token, run.values());
            } else {
                let values: Vec<f32> = run.columns(0, width).flatten().copied().collect();
                self.upload_rows(residual, run.first_token, &values);
            }
        }
        // The others have further vectors.
        runs.retain(|run| run.prompt.width() > width);
        self.embeddings.runs = runs;
    }

    /// Forgets what was placed for a step that failed.
    pub fn forget_images(&mut self) {
        self.embeddings.runs.clear();
        self.grid_tokens.clear();
    }

    /// Enqueues the copy of rows to a tensor of f32, from row `first` on.
    pub(super) fn upload_rows(&mut self, to: &Tensor, first: usize, values: &[f32]) {
        let first = first * to.width * size_of::<f32>();
        self.upload_bytes(to, first, bytemuck::cast_slice(values));
    }

    /// Enqueues the copy of bytes to a tensor, from byte `at` on.
    pub(super) fn upload_bytes(&mut self, to: &Tensor, at: usize, bytes: &[u8]) {
        if self.failure.is_none()
            && let Err(error) = self.try_upload(to, at, bytes)
        {
            self.failure = Some(error.into());
        }
    }

    fn try_upload(&mut self, to: &Tensor, at: usize, bytes: &[u8]) -> Result<(), DriverError> {
        let uploads = &mut self.embeddings;
        let uploader = match &mut uploads.uploader {
            Some(uploader) => uploader,
            None => {
                let made = Uploader::new(&self.device, self.stream.clone())?;
                uploads.uploader.insert(made)
            }
        };
        let start = to.start.address() - self.activations.ptr().address();
        let first = start as usize + at;
        uploader.upload(&self.activations, first, bytes.len(), |part, from| {
            part.copy_from_slice(&bytes[from..from + part.len()]);
        })
    }
}
