//! Loads vectors: norms, biases, convolutions, decays, and single numbers.

use super::Loader;
use crate::config::recurrent::StoredForm;
use crate::random::random_vector;
use souffleur_base::error::LoadError;
use souffleur_kernels::Backend;
use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::tensor_view::TensorView;

impl<B: Backend> Loader<'_, B> {
    /// Loads vectors `(name, width)`, concatenated.
    pub fn vector(&mut self, parts: &[(&str, usize)]) -> Result<B::Vector, LoadError> {
        let Some(weights) = &self.checkpoint.weights else {
            return Ok(self.random_vector(parts));
        };
        let parts = parts.iter().map(|&(name, width)| {
            let view = weights.tensor(name, &[width])?;
            Ok(self.ordered(view, name))
        });
        let parts = parts.collect::<Result<Vec<_>, LoadError>>()?;
        let vector = self.backend.vector(&parts);
        self.report(bytes_of(&parts));
        Ok(vector)
    }

    /// Loads a norm's weight. Some families store it minus one.
    pub fn norm(&mut self, name: &str, width: usize) -> Result<B::Vector, LoadError> {
        if self.config().stores_norms_minus_one() && self.checkpoint.weights.is_some() {
            self.mapped_vector(name, &[width], |values| {
                values.iter_mut().for_each(|value| *value += 1.0);
            })
        } else {
            self.vector(&[(name, width)])
        }
    }

    /// Loads the weight of a convolution, transposed from `[channels, 1, n_taps]` to `[n_taps, channels]`.
    pub fn taps(
        &mut self,
        name: &str,
        channels: usize,
        n_taps: usize,
    ) -> Result<B::Vector, LoadError> {
        self.mapped_vector(name, &[channels, 1, n_taps], |values| {
            let taps = |tap: usize| (0..channels).map(move |channel| channel * n_taps + tap);
            let order = (0..n_taps).flat_map(taps);
            *values = order.map(|from| values[from]).collect();
        })
    }

    /// `-exp(A_log)`, which GGUF files store directly.
    pub fn decays(&mut self, name: &str, heads: usize) -> Result<B::Vector, LoadError> {
        let recurrent = self.config().recurrent.as_ref();
        match recurrent.map(|recurrent| recurrent.stored_form) {
            Some(StoredForm::Gguf) if self.checkpoint.weights.is_some() => {
                self.vector(&[(name, heads)])
            }
            _ => self.mapped_vector(name, &[heads], |values| {
                values.iter_mut().for_each(|value| *value = -value.exp());
            }),
        }
    }

    fn mapped_vector(
        &mut self,
        name: &str,
        shape: &[usize],
        map: impl FnOnce(&mut Vec<f32>),
    ) -> Result<B::Vector, LoadError> {
        let (mut values, bytes) = match &self.checkpoint.weights {
            Some(weights) => {
                let view = weights.tensor(name, shape)?;
                (view.to_f32(), view.bytes.len())
            }
            None => {
                let values = random_vector(name, shape.iter().product());
                let bytes = values.len() * self.checkpoint.dtype.bytes();
                (values, bytes)
            }
        };
        map(&mut values);
        let shape = [values.len()];
        let view = TensorView::plain(Dtype::F32, &shape, bytemuck::cast_slice(&values));
        let vector = self.backend.vector(&[view]);
        self.report(bytes);
        Ok(vector)
    }

    fn random_vector(&mut self, parts: &[(&str, usize)]) -> B::Vector {
        let values = parts
            .iter()
            .flat_map(|&(name, width)| random_vector(name, width));
        let values: Vec<f32> = values.collect();
        self.report(values.len() * self.checkpoint.dtype.bytes());
        let shape = [values.len()];
        let bytes = bytemuck::cast_slice(&values);
        let view = TensorView::plain(Dtype::F32, &shape, bytes);
        self.backend.vector(&[view])
    }

    pub fn vector_after_zeros(
        &mut self,
        zeros: usize,
        (name, width): (&str, usize),
    ) -> Result<B::Vector, LoadError> {
        let Some(weights) = &self.checkpoint.weights else {
            return Ok(self.random_vector(&[(name, zeros + width)]));
        };
        let view = self.ordered(weights.tensor(name, &[width])?, name);
        let bytes = vec![0; zeros * Dtype::F32.bytes()];
        let shape = [zeros];
        let before = TensorView::plain(Dtype::F32, &shape, &bytes);
        let vector = self.backend.vector(&[before, view]);
        self.report(view.bytes.len());
        Ok(vector)
    }

    pub fn number(&mut self, name: &str) -> Result<f32, LoadError> {
        let Some(weights) = &self.checkpoint.weights else {
            return Ok(1.0);
        };
        let view = weights.tensor(name, &[1])?;
        let (number, bytes) = (view.to_f32()[0], view.bytes.len());
        self.report(bytes);
        Ok(number)
    }

    pub fn scaled_norm(
        &mut self,
        name: &str,
        width: usize,
        factor: f32,
    ) -> Result<B::Vector, LoadError> {
        self.mapped_vector(name, &[width], |values| {
            values.iter_mut().for_each(|value| *value *= factor);
        })
    }
}

fn bytes_of(parts: &[TensorView<'_>]) -> usize {
    parts.iter().map(|part| part.bytes.len()).sum()
}
