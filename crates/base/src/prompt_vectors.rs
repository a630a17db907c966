//! Prompt embeddings (`input_embeds`): vectors, each of which replaces a token's embedding.
//!
//! The prefix cache neither serves nor stores the K/V of such prompts. A vector counts as one token, with the id
//! [`PLACEHOLDER_TOKEN`].
//!
//! Requests and row starts carry the vectors in an `Arc`. Only the executor reads them, and a row drops its `Arc` after
//! the step that uses the last vector. The message log records only their number, because a replay runs no model.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::FieldError;

pub const PLACEHOLDER_TOKEN: u32 = 0;

const FIELD: &str = "input_embeds";

/// Vectors of equal width, one per position of a prompt. All values are finite.
#[derive(PartialEq)]
pub struct PromptVectors {
    width: usize,
    values: Vec<f32>,
}

impl PromptVectors {
    /// `values` are concatenated vectors.
    ///
    /// # Errors
    /// [`FieldError`] on `input_embeds` if `values` is empty, ends inside a vector, or has a value that is not finite.
    pub fn new(width: usize, values: Vec<f32>) -> Result<Self, FieldError> {
        if width == 0 || values.is_empty() {
            let text = format!("{FIELD} has no values: send at least one vector");
            return Err(FieldError::new(FIELD, text));
        }
        let rest = values.len() % width;
        if rest != 0 {
            let n_values = values.len();
            let text = format!(
                "{FIELD} has {n_values} values, not a multiple of the vector width {width}: {rest} are left over"
            );
            return Err(FieldError::new(FIELD, text));
        }
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(Self { width, values }),
            Some(at) => {
                let (vector, value) = (at / width, values[at]);
                let text = format!("{FIELD}[{vector}] holds {value}: send finite numbers");
                Err(FieldError::new(FIELD, text))
            }
        }
    }

    pub fn len(&self) -> usize {
        self.values.len() / self.width
    }

    /// Always false: there is at least one vector.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// Bytes of the values.
    pub fn bytes(&self) -> usize {
        size_of_val(self.values.as_slice())
    }

    /// The values of a range of vectors, concatenated.
    ///
    /// # Panics
    /// If `vectors` ends after [`Self::len`].
    pub fn values(&self, vectors: Range<usize>) -> &[f32] {
        &self.values[vectors.start * self.width..vectors.end * self.width]
    }

    pub fn placeholders(&self) -> Arc<[u32]> {
        std::iter::repeat_n(PLACEHOLDER_TOKEN, self.len()).collect()
    }

    /// # Errors
    /// If [`Self::width`] is not `hidden_size`.
    pub fn check_width(&self, hidden_size: usize) -> Result<(), FieldError> {
        if self.width == hidden_size {
            Ok(())
        } else {
            let width = self.width;
            let text = format!(
                "{FIELD} has vectors of {width} values, but the model's have {hidden_size}"
            );
            Err(FieldError::new(FIELD, text))
        }
    }
}

impl fmt::Debug for PromptVectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PromptVectors({} of {})", self.len(), self.width)
    }
}

/// Vectors that replace consecutive tokens of a step.
#[derive(Clone, Debug)]
pub struct VectorRun {
    /// Index of the first replaced token in the step.
    pub first_token: usize,
    pub prompt: Arc<PromptVectors>,
    /// Range of the prompt's vectors, one per token.
    pub vectors: Range<usize>,
}

impl VectorRun {
    /// The values of the vectors, concatenated.
    pub fn values(&self) -> &[f32] {
        self.prompt.values(self.vectors.clone())
    }

    /// For each vector its values from `first` on, `width` of them. Nothing if the vectors end before.
    pub fn columns(&self, first: usize, width: usize) -> impl Iterator<Item = &[f32]> {
        let vectors = self.values().chunks_exact(self.prompt.width());
        vectors.filter_map(move |vector| vector.get(first..first + width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_vectors_of_finite_values_are_accepted() {
        let valid = PromptVectors::new(2, vec![1.0, -2.0, 0.0, f32::MAX]).expect("valid vectors");
        assert_eq!((valid.len(), valid.width()), (2, 2));
        assert_eq!(valid.values(1..2), [0.0, f32::MAX]);
        let refused = [
            (2, vec![]),
            (0, vec![1.0]),
            (2, vec![1.0; 3]),
            (2, vec![0.0, 1.0, f32::NAN, 0.0]),
            (1, vec![f32::INFINITY]),
        ];
        for (width, values) in refused {
            let error = PromptVectors::new(width, values.clone()).expect_err("invalid vectors");
            assert_eq!(error.field(), FIELD, "{values:?}");
        }
        assert!(valid.check_width(2).is_ok() && valid.check_width(3).is_err());
    }

    #[test]
    fn columns_of_a_run_are_those_of_its_vectors() {
        let values = (0..12).map(|value| value as f32).collect();
        let run = VectorRun {
            first_token: 7,
            prompt: Arc::new(PromptVectors::new(4, values).expect("valid vectors")),
            vectors: 1..3,
        };
        let columns = |first| run.columns(first, 2).flatten().copied().collect::<Vec<_>>();
        assert_eq!(columns(0), [4.0, 5.0, 8.0, 9.0]);
        assert_eq!(columns(2), [6.0, 7.0, 10.0, 11.0]);
        assert!(columns(4).is_empty());
    }
}
