//! From a router's logits to the experts of a token, and how much each of them counts.

/// The formula by which a router's logits become experts and weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Experts that there are.
    pub n_experts: usize,
    /// Experts that a token goes through, at least one and at most all.
    pub n_used: usize,
    /// The score that weights are made of.
    pub score: Score,
    /// Whether the weights of the chosen are divided by their sum.
    pub sum: WeightSum,
    /// Factor on the weights.
    pub scale: f32,
}

/// How a logit becomes a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Softmax over the logits of all experts.
    Softmax,
    /// Softmax over the logits of the chosen ones.
    SoftmaxOfChosen,
    /// `1 / (1 + e^-logit)`.
    Sigmoid,
}

/// The sum of the weights of a token's experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WeightSum {
    /// The sum of the scores.
    AsScored,
    /// One: they are divided by their sum and this small number.
    One {
        /// Keeps a sum of zero from dividing.
        added: f32,
    },
}

impl Routing {
    /// Softmax over all logits; the weights of the chosen are divided by their sum, or not.
    pub fn softmax(n_experts: usize, n_used: usize, renormalised: bool) -> Self {
        Self {
            n_experts,
            n_used,
            score: Score::Softmax,
            sum: match renormalised {
                true => WeightSum::One { added: 0.0 },
                false => WeightSum::AsScored,
            },
            scale: 1.0,
        }
    }

    /// Chooses the experts with the largest logits, the largest first and of equals the lower id, and their weights. A
    /// NaN counts as the least logit, and makes weights of NaN.
    ///
    /// # Shapes
    /// `logits: [n_experts]`, `experts` and `weights: [n_used]`.
    pub fn choose(&self, logits: &[f32], experts: &mut [u32], weights: &mut [f32]) {
        choose_largest(logits, experts);
        let chosen = || experts.iter().map(|expert| logits[*expert as usize]);
        match self.score {
            Score::Softmax => softmax(logits.iter().copied(), chosen(), weights),
            Score::SoftmaxOfChosen => softmax(chosen(), chosen(), weights),
            Score::Sigmoid => {
                for (weight, logit) in weights.iter_mut().zip(chosen()) {
                    *weight = 1.0 / (1.0 + (-logit).exp());
                }
            }
        }
        let divisor = match self.sum {
            WeightSum::AsScored => 1.0,
            WeightSum::One { added } => weights.iter().sum::<f32>() + added,
        };
        for weight in weights {
            *weight = *weight / divisor * self.scale;
        }
    }
}

/// Finds the largest logits, in falling order, by insertion: few are chosen of many.
fn choose_largest(logits: &[f32], experts: &mut [u32]) {
    let at = |expert: u32| match logits[expert as usize] {
        logit if logit.is_nan() => f32::NEG_INFINITY,
        logit => logit,
    };
    for expert in 0..logits.len() {
        let logit = at(expert as u32);
        let n = expert.min(experts.len());
        let place = experts[..n].partition_point(|other| at(*other) >= logit);
        if place < experts.len() {
            let end = experts.len().min(n + 1);
            experts[place..end].rotate_right(1);
            experts[place] = expert as u32;
        }
    }
}

/// The weights of `chosen` in the softmax over `all`, which is summed in its order.
fn softmax(
    all: impl Iterator<Item = f32> + Clone,
    chosen: impl Iterator<Item = f32>,
    weights: &mut [f32],
) {
    let max = all.clone().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = all.map(|logit| (logit - max).exp()).sum();
    for (weight, logit) in weights.iter_mut().zip(chosen) {
        *weight = (logit - max).exp() / sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routing(score: Score, sum: WeightSum) -> Routing {
        Routing {
            n_experts: 5,
            n_used: 2,
            score,
            sum,
            scale: 1.0,
        }
    }

    fn chosen(routing: Routing, logits: [f32; 5]) -> ([u32; 2], [f32; 2]) {
        let (mut experts, mut weights) = ([9; 2], [9.0; 2]);
        routing.choose(&logits, &mut experts, &mut weights);
        (experts, weights)
    }

    fn near(got: [f32; 2], expected: [f64; 2]) -> bool {
        let mut pairs = got.iter().zip(expected);
        pairs.all(|(got, expected)| (f64::from(*got) - expected).abs() < 1e-6)
    }

    #[test]
    fn the_largest_are_chosen_and_of_equals_the_lower_id() {
        let plain = routing(Score::Softmax, WeightSum::AsScored);
        let of = |logits| chosen(plain, logits).0;
        assert_eq!(of([1.0, 5.0, 3.0, 4.0, 2.0]), [1, 3]);
        assert_eq!(of([2.0, 1.0, 2.0, 2.0, 0.0]), [0, 2]);
        assert_eq!(of([0.0; 5]), [0, 1]);
        assert_eq!(of([-1.0, -2.0, -3.0, -4.0, 9.0]), [4, 0]);
        assert_eq!(of([f32::NAN, 1.0, f32::NAN, 0.0, -1.0]), [1, 3]);
        assert_eq!(of([f32::NAN; 5]), [0, 1]);
    }

    #[test]
    fn every_choice_is_a_sort_by_logit_and_id() {
        for seed in 0..200_u32 {
            let hash = |i: u32| (seed * 31 + i * 17).wrapping_mul(2_654_435_761_u32);
            // Few values, so that some are equal.
            let logit = |i: u32| (hash(i) >> 29) as f32;
            let logits: Vec<f32> = (0..13).map(logit).collect();
            for used in [1, 3, 12, 13] {
                let mut experts = vec![0; used];
                choose_largest(&logits, &mut experts);
                let mut sorted: Vec<u32> = (0..13).collect();
                sorted.sort_by(|a, b| {
                    let by_logit = logits[*b as usize].total_cmp(&logits[*a as usize]);
                    by_logit.then(a.cmp(b))
                });
                assert_eq!(experts, sorted[..used], "{logits:?}");
            }
        }
    }

    #[test]
    fn weights_are_those_of_the_formulas() {
        let logits = [0.5, -1.0, 2.0, 1.0, 0.0];
        let e = |x: f64| x.exp();
        let all = e(0.5) + e(-1.0) + e(2.0) + e(1.0) + 1.0;
        let pair = e(2.0) + e(1.0);
        let one = WeightSum::One { added: 0.0 };
        let of = |score, sum| chosen(routing(score, sum), logits).1;
        let plain = of(Score::Softmax, WeightSum::AsScored);
        assert!(near(plain, [e(2.0) / all, e(1.0) / all]), "{plain:?}");
        let divided = of(Score::Softmax, one);
        assert!(near(divided, [e(2.0) / pair, e(1.0) / pair]), "{divided:?}");
        let few = of(Score::SoftmaxOfChosen, WeightSum::AsScored);
        assert!(near(few, [e(2.0) / pair, e(1.0) / pair]), "{few:?}");
        let sigmoid = |x: f64| 1.0 / (1.0 + e(-x));
        let each = of(Score::Sigmoid, WeightSum::AsScored);
        assert!(near(each, [sigmoid(2.0), sigmoid(1.0)]), "{each:?}");
        let sum = sigmoid(2.0) + sigmoid(1.0) + 0.5;
        let scaled = Routing {
            scale: 2.5,
            ..routing(Score::Sigmoid, WeightSum::One { added: 0.5 })
        };
        let scaled = chosen(scaled, logits).1;
        let expected = [2.5 * sigmoid(2.0) / sum, 2.5 * sigmoid(1.0) / sum];
        assert!(near(scaled, expected), "{scaled:?}");
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let one = WeightSum::One { added: 0.0 };
        let (experts, weights) =
            chosen(routing(Score::Softmax, one), [1e30, 0.0, 1e30, -1e30, 5.0]);
        assert_eq!((experts, weights), ([0, 2], [0.5, 0.5]));
    }
}
