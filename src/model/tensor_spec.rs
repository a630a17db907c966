//! Name and shape of a tensor that a model needs.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    pub fn new(name: impl Into<String>, shape: &[usize]) -> Self {
        Self {
            name: name.into(),
            shape: shape.to_vec(),
        }
    }

    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|&size| size as u64).product()
    }
}
