//! Loads per-head matrices: rows of a tensor with all heads, as stored or transposed.

use super::read::Read;
use super::{Loader, view_of};
use souffleur_base::error::LoadError;
use souffleur_kernels::Backend;
use souffleur_kernels::dtype::{Dtype, MatrixRole};
use souffleur_kernels::random::RandomTensor;
use souffleur_kernels::tensor_view::TensorView;

/// Rows `first..first + len` of the `rows` rows that each head has in the tensor `name`.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'a> {
    pub name: &'a str,
    pub rows: usize,
    pub width: usize,
    pub first: usize,
    pub len: usize,
    pub orientation: Orientation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orientation {
    AsStored,
    Transposed,
}

impl HeadRows<'_> {
    fn shape(&self) -> [usize; 2] {
        match self.orientation {
            Orientation::AsStored => [self.len, self.width],
            Orientation::Transposed => [self.width, self.len],
        }
    }
}

impl<B: Backend> Loader<'_, B> {
    pub fn head_matrices(
        &mut self,
        n_heads: usize,
        spec: &HeadRows<'_>,
    ) -> Result<B::HeadMatrices, LoadError> {
        let Some(weights) = &self.checkpoint.weights else {
            return Ok(self.random_heads(n_heads, spec));
        };
        let shape = [n_heads * spec.rows, spec.width];
        let shape = self.checkpoint.whole_shape(spec.name, shape);
        let source = weights.matrix(spec.name, &shape)?;
        let converted = source.converted(self.target(MatrixRole::Inner));
        let whole = view_of(&source, converted.as_ref());
        let read = Read::part(whole, self.checkpoint.parts.get(spec.name));
        let all = read.view();
        let heads = (0..n_heads).map(|head| {
            let row_bytes = all.stored.row_bytes(spec.width);
            let first = (head * spec.rows + spec.first) * row_bytes;
            let part = TensorView {
                shape: &[spec.len, spec.width],
                bytes: &all.bytes[first..first + spec.len * row_bytes],
                ..all
            };
            match spec.orientation {
                Orientation::AsStored => self.backend.matrix(&[part], &[MatrixRole::Inner]),
                Orientation::Transposed => {
                    let values = transposed(&part.to_f32(), spec.width);
                    let shape = spec.shape();
                    let bytes = bytemuck::cast_slice(&values);
                    let view = TensorView::plain(Dtype::F32, &shape, bytes);
                    self.backend.matrix(&[view], &[MatrixRole::Inner])
                }
            }
        });
        let heads = heads.collect();
        let bytes = source.file_bytes() * spec.len / spec.rows;
        if spec.first + spec.len == spec.rows {
            weights.release(spec.name);
        }
        self.report(bytes);
        Ok(self.backend.head_matrices(heads))
    }

    fn random_heads(&mut self, n_heads: usize, spec: &HeadRows<'_>) -> B::HeadMatrices {
        let dtype = self.checkpoint.dtype;
        let part = self.checkpoint.parts.get(spec.name);
        let first = part.map_or(0, |part| part.rows[0].start / spec.rows);
        let heads = (first..first + n_heads).map(|head| {
            let name = format!("{}.{}.{head}", spec.name, spec.first);
            let part = RandomTensor::new(&name, &spec.shape(), dtype);
            self.backend.random_matrix(&[part], &[MatrixRole::Inner])
        });
        let heads = heads.collect();
        self.report(n_heads * spec.len * spec.width * dtype.bytes());
        self.backend.head_matrices(heads)
    }
}

fn transposed(values: &[f32], width: usize) -> Vec<f32> {
    let column = |column| values.iter().skip(column).step_by(width).copied();
    (0..width).flat_map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::transposed;

    #[test]
    fn rows_become_columns() {
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        assert_eq!(transposed(&values, 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!(transposed(&values, 1), values);
    }
}
