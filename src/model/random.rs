//! Vectors of a model without a checkpoint: norms' weights are 1, biases are random as matrices are.

use crate::kernels::dtype::Dtype;
use crate::kernels::random::RandomTensor;

/// What a norm's weight or a bias of this name is made of, in f32.
pub fn random_vector(name: &str, width: usize) -> Vec<f32> {
    match name.ends_with(".bias") {
        true => RandomTensor::new(name, &[width], Dtype::F32)
            .values()
            .collect(),
        false => vec![1.0; width],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_are_ones_and_biases_are_not() {
        assert_eq!(random_vector("model.norm.weight", 3), [1.0; 3]);
        let bias = random_vector("model.layers.0.self_attn.q_proj.bias", 3);
        assert!(bias.iter().all(|value| value.abs() < 0.04) && bias[0] != bias[1]);
    }
}
