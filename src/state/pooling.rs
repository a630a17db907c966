//! Pools the final normalised hidden states of a prompt's tokens into its embedding, a unit vector.

use std::sync::Arc;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Pooling {
    #[default]
    Last,
    Mean,
}

impl Pooling {
    /// The names in requests.
    pub const NAMES: [&'static str; 2] = ["last", "mean"];

    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "last" => Some(Self::Last),
            "mean" => Some(Self::Mean),
            _ => None,
        }
    }
}

/// Running sum of a prompt's hidden states; for [`Pooling::Last`] the last state. States are added one by one in the
/// order of positions, so that the result does not depend on chunk boundaries.
#[derive(Debug)]
pub struct PoolSum {
    pooling: Pooling,
    sum: Vec<f64>,
}

impl PoolSum {
    pub fn new(pooling: Pooling) -> Self {
        Self {
            pooling,
            sum: Vec::new(),
        }
    }

    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    pub fn add(&mut self, state: &[f32]) {
        if self.sum.len() != state.len() || self.pooling == Pooling::Last {
            self.sum.clear();
            self.sum.resize(state.len(), 0.0);
        }
        for (sum, value) in self.sum.iter_mut().zip(state) {
            *sum += f64::from(*value);
        }
    }

    /// The normalised sum, which is also the normalised mean; `None` if the sum is zero or not finite.
    pub fn embedding(&self) -> Option<Arc<[f32]>> {
        let length = self
            .sum
            .iter()
            .map(|value| value * value)
            .sum::<f64>()
            .sqrt();
        let has_direction = length.is_finite() && length > 0.0;
        has_direction.then(|| {
            self.sum
                .iter()
                .map(|value| (value / length) as f32)
                .collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_are_unit_vectors_along_the_pooled_states() {
        let states = [[3.0, 0.0], [0.0, 8.0]];
        let embedding = |pooling| {
            let mut sum = PoolSum::new(pooling);
            states.iter().for_each(|state| sum.add(state));
            sum.embedding()
                .expect("the sum is finite and not zero")
                .to_vec()
        };
        assert_eq!(embedding(Pooling::Last), [0.0, 1.0]);
        let mean = embedding(Pooling::Mean);
        assert!((mean[0] * 8.0 - mean[1] * 3.0).abs() < 1e-6, "{mean:?}");
        assert!((mean[0].hypot(mean[1]) - 1.0).abs() < 1e-6, "{mean:?}");
    }

    #[test]
    fn zero_or_non_finite_states_have_no_embedding() {
        for state in [[0.0, 0.0], [f32::NAN, 1.0], [f32::INFINITY, 1.0]] {
            let mut sum = PoolSum::new(Pooling::Last);
            sum.add(&state);
            assert_eq!(sum.embedding(), None, "{state:?}");
        }
        assert_eq!(PoolSum::new(Pooling::Mean).embedding(), None);
    }
}
