//! Random vectors for models without a checkpoint: norm weights are 1, biases and convolutions random like matrices.

use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::random::RandomTensor;

/// Log decay rate of recurrent states, which halves them in some tens of tokens.
const A_LOG: f32 = -3.5;

/// The elements of the vector `name`: ones, unless it is a bias, a convolution or a decay.
pub fn random_vector(name: &str, width: usize) -> Vec<f32> {
    let random = [".bias", "dt_bias", "conv1d.weight", "conv.weight"];
    if random.iter().any(|end| name.ends_with(end)) {
        let tensor = RandomTensor::new(name, &[width], Dtype::F32);
        return tensor.values().collect();
    }
    if name.ends_with("A_log") {
        vec![A_LOG; width]
    } else {
        vec![1.0; width]
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
