//! Name and shape of a tensor that a model needs.

/// A tensor that a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in the files.
    pub name: String,
    /// Its shape, outermost dimension first.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Makes a spec.
    pub fn new(name: impl Into<String>, shape: &[usize]) -> Self {
        Self {
            name: name.into(),
            shape: shape.to_vec(),
        }
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|&size| size as u64).product()
    }
}
