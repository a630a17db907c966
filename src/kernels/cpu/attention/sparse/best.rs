//! Selects the keys with the highest scores.

use super::super::super::simd::LANES;

/// Packs a score and a position into an integer that is larger for a better key: ties go to the lower position, NaN
/// counts as the lowest score, and positive and negative zero are equal.
fn entry(score: f32, position: u32) -> u64 {
    let score = if score.is_nan() {
        f32::NEG_INFINITY
    } else {
        score + 0.0
    };
    let bits = score.to_bits();
    let ordered = match bits >> 31 {
        0 => bits | 1 << 31,
        _ => !bits,
    };
    u64::from(ordered) << 32 | u64::from(u32::MAX - position)
}

fn score_of(entry: u64) -> f32 {
    let ordered = (entry >> 32) as u32;
    f32::from_bits(match ordered >> 31 {
        1 => ordered ^ 1 << 31,
        _ => !ordered,
    })
}

fn position_of(entry: u64) -> u32 {
    u32::MAX - entry as u32
}

#[derive(Default)]
pub struct Best {
    wanted: usize,
    /// The best `wanted` entries at the last pruning, then later candidates.
    entries: Vec<u64>,
    /// The score that a later key must exceed. Invalid before the first pruning.
    floor: f32,
    is_pruned: bool,
    chosen: Vec<u32>,
}

impl Best {
    pub fn begin(&mut self, wanted: usize) {
        self.wanted = wanted;
        self.entries.clear();
        self.entries.reserve(2 * wanted + LANES);
        self.floor = f32::NEG_INFINITY;
        self.is_pruned = false;
    }

    /// Adds the scores of consecutive positions from `first` on, which follow all positions added before.
    #[inline(always)]
    pub fn add_scores(&mut self, scores: &[f32], first: usize) {
        for (i, scores) in scores.chunks(LANES).enumerate() {
            let floor = self.floor;
            let any_exceeds = scores
                .iter()
                .fold(false, |any, score| any | (*score > floor));
            if any_exceeds || !self.is_pruned {
                self.push(scores, (first + i * LANES) as u32);
            }
        }
    }

    fn push(&mut self, scores: &[f32], first: u32) {
        if self.wanted == 0 {
            return;
        }
        for (position, &score) in (first..).zip(scores) {
            if score > self.floor || !self.is_pruned {
                self.entries.push(entry(score, position));
            }
        }
        if self.entries.len() >= 2 * self.wanted {
            self.prune();
        }
    }

    fn prune(&mut self) {
        let Some(last) = self.wanted.checked_sub(1) else {
            self.entries.clear();
            return;
        };
        let (.., least, _) = self.entries.select_nth_unstable_by(last, |a, b| b.cmp(a));
        self.floor = score_of(*least);
        self.is_pruned = true;
        self.entries.truncate(self.wanted);
    }

    /// The best entries so far, for [`Self::add_entries`].
    pub fn entries(&mut self) -> &[u64] {
        if self.entries.len() > self.wanted {
            self.prune();
        }
        &self.entries
    }

    /// Adds the best entries of a part of the keys; zeros are empty entries.
    pub fn add_entries(&mut self, entries: &[u64]) {
        let entries = entries.iter().copied();
        self.entries.extend(entries.filter(|entry| *entry != 0));
    }

    /// Chooses the best keys and the query's `own` position, in ascending order.
    pub fn choose(&mut self, own: usize) {
        self.entries();
        self.chosen.clear();
        self.chosen.reserve(self.wanted + 1);
        let positions = self.entries.iter().map(|entry| position_of(*entry));
        self.chosen.extend(positions);
        self.chosen.push(own as u32);
        self.chosen.sort_unstable();
    }

    pub fn chosen(&self) -> &[u32] {
        &self.chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(scores: &[f32], wanted: usize) -> Vec<u32> {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        let value = |i: usize| {
            if scores[i].is_nan() {
                f32::NEG_INFINITY
            } else {
                scores[i]
            }
        };
        order.sort_by(|a, b| value(*b).partial_cmp(&value(*a)).expect("no value is NaN"));
        order.truncate(wanted);
        order.push(scores.len());
        order.sort_unstable();
        order.into_iter().map(|i| i as u32).collect()
    }

    fn check(scores: &[f32], what: &str) {
        let (mut best, mut part) = (Best::default(), Best::default());
        for wanted in [0, 1, 2, 15, 16, 100, scores.len(), scores.len() + 7] {
            for cut in [scores.len().max(1), 128, 7] {
                best.begin(wanted);
                for (i, part) in scores.chunks(cut).enumerate() {
                    best.add_scores(part, i * cut);
                }
                best.choose(scores.len());
                let expected = sorted(scores, wanted);
                let parts: Vec<Vec<u64>> = (0..scores.len())
                    .step_by(cut)
                    .map(|first| {
                        part.begin(wanted);
                        part.add_scores(&scores[first..scores.len().min(first + cut)], first);
                        part.entries().to_vec()
                    })
                    .collect();
                part.begin(wanted);
                parts.iter().for_each(|entries| part.add_entries(entries));
                part.add_entries(&[0; 3]);
                part.choose(scores.len());
                assert_eq!(
                    part.chosen(),
                    expected,
                    "{what}: best {wanted}, merged from parts of {cut}"
                );
                assert_eq!(
                    best.chosen(),
                    expected,
                    "{what}: best {wanted}, scores in parts of {cut}"
                );
            }
        }
    }

    #[test]
    fn the_best_keys_match_a_stable_sort() {
        let mut state = 7_u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 20) as f32 - 8.0
        };
        let noise: Vec<f32> = (0..700).map(|_| random()).collect();
        check(&noise, "noise");
        let coarse: Vec<f32> = noise.iter().map(|score| score.round()).collect();
        check(&coarse, "many equal scores, zeros of both signs among them");
        check(&[1.5; 300], "all equal");
        let mut rising = noise.clone();
        rising.sort_by(f32::total_cmp);
        check(&rising, "rising");
        rising.reverse();
        check(&rising, "falling");
        let mut strange = noise;
        for (i, score) in strange.iter_mut().enumerate() {
            match i % 5 {
                0 => *score = f32::NAN,
                1 => *score = f32::NEG_INFINITY,
                2 if i > 400 => *score = f32::INFINITY,
                _ => {}
            }
        }
        check(&strange, "NaN and infinities");
        check(&[f32::NAN; 40], "NaN only");
        check(&[], "nothing");
    }
}
