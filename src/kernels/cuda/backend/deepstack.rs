//! Further vectors of images (DeepStack), which are added to the outputs of the first layers: a product does it.
//!
//! The vectors of some tokens are the columns of a matrix. Rows of the identity times this matrix are the vectors, which
//! the product adds to the residual stream. In bfloat16 the vectors are rounded, as weights are.

use half::bf16;

use super::{CudaBackend, Tensor};
use crate::cuda::driver::DevicePtr;
use crate::cuda::params::{ElementType, GemmParams, GemmWrite};
use souffleur_base::prompt_vectors::VectorRun;

/// Tokens of a product.
const BLOCK: usize = 64;

impl CudaBackend {
    /// Adds set `set` of the step's further vectors to the rows of their tokens.
    pub(super) fn add_set(&mut self, residual: &Tensor, set: usize) {
        let mut runs = std::mem::take(&mut self.embeddings.runs);
        for run in &runs {
            self.add_run(residual, run, set);
        }
        runs.retain(|run| run.prompt.width() > (2 + set) * residual.width);
        self.embeddings.runs = runs;
    }

    fn add_run(&mut self, residual: &Tensor, run: &VectorRun, set: usize) {
        let width = residual.width;
        let vectors: Vec<&[f32]> = run.columns((1 + set) * width, width).collect();
        let blocks = || vectors.chunks(BLOCK);
        let ones = (0..BLOCK * BLOCK).map(|at| f32::from(u8::from(at % (BLOCK + 1) == 0)));
        let identity = self.uploaded([BLOCK, BLOCK], ones);
        let columns = blocks().flat_map(|block| {
            (0..width).flat_map(move |value| {
                (0..BLOCK).map(move |token| block.get(token).map_or(0.0, |vector| vector[value]))
            })
        });
        // Uploaded last: products read their weights before the kernel before them has ended, but not before a copy.
        let columns = self.uploaded([blocks().len() * width, BLOCK], columns);
        let block_bytes = width * BLOCK * self.element.bytes();
        for (index, block) in blocks().enumerate() {
            let first = run.first_token + index * BLOCK;
            let params = GemmParams {
                out: residual.start.add(first * width * size_of::<f32>()),
                x: identity.elements(),
                w: columns.start.add(index * block_bytes).cast(),
                bias: DevicePtr::NULL,
                partials: DevicePtr::NULL,
                m: block.len() as u32,
                n: width as u32,
                k: BLOCK as u32,
                write: GemmWrite::AddF32,
                n_splits: 1,
            };
            // SAFETY: the run's tokens are rows of the residual stream, and the operands have the shapes of the
            // parameters; all of them are used on this stream only.
            self.launch(|launches, stream| unsafe { launches.products.multiply(stream, &params) });
        }
    }

    /// A matrix of elements with values of the host.
    fn uploaded(&mut self, [rows, width]: [usize; 2], values: impl Iterator<Item = f32>) -> Tensor {
        let tensor = self.elements(rows, width);
        let bytes: Vec<u8> = match self.element {
            ElementType::F32 => values.flat_map(f32::to_le_bytes).collect(),
            ElementType::Bf16 => values
                .flat_map(|value| bf16::from_f32(value).to_le_bytes())
                .collect(),
        };
        self.upload_bytes(&tensor, 0, &bytes);
        tensor
    }
}
