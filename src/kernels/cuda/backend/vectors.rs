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
    runs: Vec<VectorRun>,
    uploader: Option<Uploader>,
}

impl CudaBackend {
    pub fn place_vectors(&mut self, runs: &mut Vec<VectorRun>) {
        self.embeddings.runs.clear();
        self.embeddings.runs.append(runs);
    }

    /// Enqueues the copy of the step's prompt embeddings to the rows of the tokens that they replace.
    pub(super) fn upload_embeddings(&mut self, residual: &Tensor) {
        for run in std::mem::take(&mut self.embeddings.runs) {
            self.upload_rows(residual, run.first_token, run.values());
        }
    }

    /// Enqueues the copy of rows to a tensor of f32, from row `first` on.
    pub(super) fn upload_rows(&mut self, to: &Tensor, first: usize, values: &[f32]) {
        if self.failure.is_none()
            && let Err(error) = self.try_upload_rows(to, first, values)
        {
            self.failure = Some(error.into());
        }
    }

    fn try_upload_rows(
        &mut self,
        to: &Tensor,
        first: usize,
        values: &[f32],
    ) -> Result<(), DriverError> {
        let uploads = &mut self.embeddings;
        let uploader = match &mut uploads.uploader {
            Some(uploader) => uploader,
            None => {
                let made = Uploader::new(&self.device, self.stream.clone())?;
                uploads.uploader.insert(made)
            }
        };
        let row_bytes = to.width * size_of::<f32>();
        let start = to.start.address() - self.activations.ptr().address();
        let first = start as usize + first * row_bytes;
        let bytes: &[u8] = bytemuck::cast_slice(values);
        uploader.upload(&self.activations, first, bytes.len(), |part, from| {
            part.copy_from_slice(&bytes[from..from + part.len()]);
        })
    }
}
