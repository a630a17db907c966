//! Expert routing: from a router's logits to a token's experts and their weights.

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    pub n_experts: usize,
    /// Experts per token, from 1 to `n_experts`.
    pub n_used: usize,
    pub score: Score,
    /// If set, a token's experts come from its best groups only.
    pub groups: Option<Groups>,
    pub sum: WeightSum,
    pub scale: f32,
}

pub const MAX_GROUPS: usize = 64;

/// Groups of consecutive expert ids, of equal size: a token uses experts of the best groups only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// At most [`MAX_GROUPS`].
    pub n_groups: usize,
    /// Groups per token; together they have at least [`Routing::n_used`] experts.
    pub n_used: usize,
    pub score: GroupScore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    Best,
    BestTwo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    Softmax,
    SoftmaxOfChosen,
    /// `1 / (1 + e^-logit)`.
    Sigmoid,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WeightSum {
    AsScored,
    /// Weights are divided by their sum plus a small number.
    One {
        /// Avoids division by zero.
        added: f32,
    },
}

impl Routing {
    /// Softmax over all logits; `renormalised` divides the weights of the chosen experts by their sum.
    pub fn softmax(n_experts: usize, n_used: usize, renormalised: bool) -> Self {
        Self {
            n_experts,
            n_used,
            score: Score::Softmax,
            groups: None,
            sum: if renormalised {
                WeightSum::One { added: 0.0 }
            } else {
                WeightSum::AsScored
            },
            scale: 1.0,
        }
    }

    /// Chooses the experts with the largest logits, in descending order and by lower id among equals, and their
    /// weights. NaN counts as the lowest logit, and makes weights NaN.
    ///
    /// With a `correction`, the experts with the largest sums of score and correction are chosen; weights exclude it.
    ///
    /// # Shapes
    /// `logits` and `correction: [n_experts]`, `experts` and `weights: [n_used]`.
    pub fn choose(
        &self,
        logits: &[f32],
        correction: Option<&[f32]>,
        experts: &mut [u32],
        weights: &mut [f32],
    ) {
        let value = |expert: usize| match correction {
            None => logits[expert],
            Some(correction) => self.score_of(logits, expert) + correction[expert],
        };
        match self.groups {
            None => choose_largest(0..self.n_experts, value, experts, weights),
            Some(groups) => {
                let (mut best, mut scores) = ([0; MAX_GROUPS], [0.0; MAX_GROUPS]);
                let best = &mut best[..groups.n_used];
                let size = self.n_experts / groups.n_groups;
                let score = |group: usize| {
                    groups
                        .score
                        .of((group * size..(group + 1) * size).map(value))
                };
                choose_largest(0..groups.n_groups, score, best, &mut scores);
                best.sort_unstable();
                let members = best.iter().flat_map(|group| {
                    let first = *group as usize * size;
                    first..first + size
                });
                choose_largest(members, value, experts, weights);
            }
        }
        self.weigh(logits, experts, weights);
    }

    /// The score that a correction is added to: the sigmoid or, for softmax, the logit itself.
    fn score_of(&self, logits: &[f32], expert: usize) -> f32 {
        match self.score {
            Score::Sigmoid => sigmoid(logits[expert]),
            Score::Softmax | Score::SoftmaxOfChosen => logits[expert],
        }
    }

    fn weigh(&self, logits: &[f32], experts: &[u32], weights: &mut [f32]) {
        let chosen = || experts.iter().map(|expert| logits[*expert as usize]);
        match self.score {
            Score::Softmax => softmax(logits.iter().copied(), chosen(), weights),
            Score::SoftmaxOfChosen => softmax(chosen(), chosen(), weights),
            Score::Sigmoid => {
                for (weight, logit) in weights.iter_mut().zip(chosen()) {
                    *weight = sigmoid(logit);
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

impl GroupScore {
    fn of(self, values: impl Iterator<Item = f32>) -> f32 {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for value in values {
            if value > first {
                (first, second) = (value, first)
            } else {
                second = second.max(value)
            }
        }
        match self {
            Self::Best => first,
            Self::BestTwo => first + second,
        }
    }
}

fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// Chooses the candidates with the largest values, in descending order: by insertion sort, as few of many are chosen.
/// Candidates must ascend; the first of equal candidates wins. `values` is scratch memory.
fn choose_largest(
    candidates: impl Iterator<Item = usize>,
    value: impl Fn(usize) -> f32,
    chosen: &mut [u32],
    values: &mut [f32],
) {
    for (n_before, candidate) in candidates.enumerate() {
        let value = match value(candidate) {
            value if value.is_nan() => f32::NEG_INFINITY,
            value => value,
        };
        let mut place = n_before;
        if n_before >= chosen.len() {
            place = chosen.len() - 1;
            if values[place] >= value {
                continue;
            }
        }
        while place > 0 && values[place - 1] < value {
            (chosen[place], values[place]) = (chosen[place - 1], values[place - 1]);
            place -= 1;
        }
        (chosen[place], values[place]) = (candidate as u32, value);
    }
}

/// Writes the softmax weights of the `chosen` logits, normalised over `all` logits, which are summed in order.
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
            groups: None,
            sum,
            scale: 1.0,
        }
    }

    fn chosen(routing: Routing, logits: [f32; 5]) -> ([u32; 2], [f32; 2]) {
        let (mut experts, mut weights) = ([9; 2], [9.0; 2]);
        routing.choose(&logits, None, &mut experts, &mut weights);
        (experts, weights)
    }

    fn near(got: [f32; 2], expected: [f64; 2]) -> bool {
        let mut pairs = got.iter().zip(expected);
        pairs.all(|(got, expected)| (f64::from(*got) - expected).abs() < 1e-6)
    }

    #[test]
    fn the_largest_logits_win_and_ties_go_to_the_lower_id() {
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
    fn choices_match_a_sort_by_logit_and_id() {
        for seed in 0..200_u32 {
            let hash = |i: u32| (seed * 31 + i * 17).wrapping_mul(2_654_435_761_u32);
            // Few distinct values, so that some are equal.
            let logit = |i: u32| (hash(i) >> 29) as f32;
            let logits: Vec<f32> = (0..13).map(logit).collect();
            for used in [1, 3, 12, 13] {
                let (mut experts, mut values) = (vec![0; used], vec![0.0; used]);
                choose_largest(0..13, |i| logits[i], &mut experts, &mut values);
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
    fn weights_match_the_formulas() {
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

    fn grouped(score: GroupScore, n_used: usize) -> Routing {
        Routing {
            n_experts: 6,
            groups: Some(Groups {
                n_groups: 3,
                n_used,
                score,
            }),
            ..routing(Score::Sigmoid, WeightSum::AsScored)
        }
    }

    #[test]
    fn experts_come_from_the_best_groups() {
        let of = |routing: Routing, logits: [f32; 6]| {
            let (mut experts, mut weights) = ([9; 2], [9.0; 2]);
            routing.choose(&logits, None, &mut experts, &mut weights);
            experts
        };
        let logits = [3.0, -5.0, 2.0, 1.9, 2.5, -9.0];
        assert_eq!(of(grouped(GroupScore::Best, 1), logits), [0, 1]);
        assert_eq!(of(grouped(GroupScore::BestTwo, 1), logits), [2, 3]);
        assert_eq!(of(grouped(GroupScore::Best, 2), logits), [0, 4]);
        assert_eq!(of(grouped(GroupScore::BestTwo, 2), logits), [0, 2]);
        assert_eq!(of(grouped(GroupScore::Best, 3), logits), [0, 4]);
        // The first of equal groups.
        assert_eq!(of(grouped(GroupScore::Best, 1), [1.0; 6]), [0, 1]);
        assert_eq!(of(grouped(GroupScore::Best, 1), [f32::NAN; 6]), [0, 1]);
    }

    #[test]
    fn a_correction_affects_the_choice_but_not_the_weights() {
        let plain = routing(Score::Sigmoid, WeightSum::AsScored);
        let logits = [0.5, -1.0, 2.0, 1.0, 0.0];
        let correction = [0.0, 0.9, -0.7, 0.0, 0.0];
        let (mut experts, mut weights) = ([9; 2], [9.0; 2]);
        plain.choose(&logits, Some(&correction), &mut experts, &mut weights);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        // The corrected scores are .62, 1.17, .18, .73 and .5.
        assert_eq!(experts, [1, 3]);
        assert!(near(weights, [sigmoid(-1.0), sigmoid(1.0)]), "{weights:?}");
        // A group's score is the sum of its two best corrected scores.
        let (mut experts, mut weights) = ([9; 2], [9.0; 2]);
        let routing = grouped(GroupScore::BestTwo, 1);
        let correction = [0.0, 0.0, 0.0, 0.0, 0.0, 5.0];
        let logits = [3.0, -5.0, 2.0, 1.9, 2.5, -9.0];
        routing.choose(&logits, Some(&correction), &mut experts, &mut weights);
        assert_eq!(experts, [5, 4]);
    }
}
