//! Loads vectors: norms, biases, convolutions, decays, and single numbers.

use super::Loader;
use super::read::Read;
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
        let whole = parts.iter().map(|&(name, width)| {
            let shape = self.checkpoint.whole_shape(name, [width]);
            weights.tensor(name, &shape)
        });
        let whole = whole.collect::<Result<Vec<_>, LoadError>>()?;
        let read = whole.iter().zip(parts);
        let read = read.map(|(view, (name, _))| self.read(*view, name));
        let read: Vec<Read<'_>> = read.collect();
        let views: Vec<TensorView<'_>> = read.iter().map(Read::view).collect();
        let vector = self.backend.vector(&views);
        self.report(bytes_of(&whole));
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
        let part = self.checkpoint.parts.get(name);
        let (mut values, bytes) = match &self.checkpoint.weights {
            Some(weights) => {
                let whole = part.map_or(shape, |part| part.whole.as_slice());
                let view = weights.tensor(name, whole)?;
                let read = Read::part(view, part);
                (read.view().to_f32(), view.bytes.len())
            }
            None => self.random_values(name, shape),
        };
        map(&mut values);
        let shape = [values.len()];
        let view = TensorView::plain(Dtype::F32, &shape, bytemuck::cast_slice(&values));
        let vector = self.backend.vector(&[view]);
        self.report(bytes);
        Ok(vector)
    }

    fn random_vector(&mut self, parts: &[(&str, usize)]) -> B::Vector {
        let mut values = Vec::new();
        for &(name, width) in parts {
            let (part, bytes) = self.random_values(name, &[width]);
            values.extend(part);
            self.report(bytes);
        }
        let shape = [values.len()];
        let bytes = bytemuck::cast_slice(&values);
        let view = TensorView::plain(Dtype::F32, &shape, bytes);
        self.backend.vector(&[view])
    }

    /// The values, or those of the rank's part, and the bytes of the whole tensor.
    fn random_values(&self, name: &str, shape: &[usize]) -> (Vec<f32>, usize) {
        let element_bytes = self.checkpoint.dtype.bytes();
        let Some(part) = self.checkpoint.parts.get(name) else {
            let values = random_vector(name, shape.iter().product());
            let bytes = values.len() * element_bytes;
            return (values, bytes);
        };
        let whole = random_vector(name, part.whole.iter().product());
        let view = TensorView::plain(Dtype::F32, &part.whole, bytemuck::cast_slice(&whole));
        let values = Read::part(view, Some(part)).view().to_f32();
        (values, whole.len() * element_bytes)
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
