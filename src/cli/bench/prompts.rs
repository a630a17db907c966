//! Generates random prompts from a seed. They share no prefixes, so that no prefix cache speeds them up.

use fastrand::Rng;

/// Words that are one token in most vocabularies, together with the space before them.
const WORDS: [&str; 64] = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "measurement",
    "government",
    "number",
    "night",
    "point",
    "home",
    "water",
    "room",
    "mother",
    "area",
    "money",
    "story",
    "fact",
    "month",
    "lot",
    "right",
    "study",
    "book",
    "eye",
    "job",
    "word",
    "business",
    "issue",
    "side",
    "kind",
    "head",
    "house",
    "service",
    "friend",
    "father",
    "power",
    "hour",
    "game",
    "line",
    "end",
    "member",
    "law",
];

pub struct Prompts {
    random: Rng,
    vocab_size: u32,
}

impl Prompts {
    pub fn new(seed: u64, vocab_size: u32) -> Self {
        Self {
            random: Rng::with_seed(seed),
            vocab_size: vocab_size.max(1),
        }
    }

    pub fn ids(&mut self, n: usize) -> Vec<u32> {
        (0..n)
            .map(|_| self.random.u32(0..self.vocab_size))
            .collect()
    }

    /// A text of `n` words, which has about `n` tokens.
    pub fn text(&mut self, n: usize) -> String {
        let words: Vec<&str> = (0..n)
            .map(|_| WORDS[self.random.usize(0..WORDS.len())])
            .collect();
        words.join(" ")
    }

    /// Seconds until the next arrival of a Poisson process; 0 if the rate is infinite.
    pub fn arrival_gap_s(&mut self, per_second: f64) -> f64 {
        if per_second.is_finite() {
            -(1.0 - self.random.f64()).ln() / per_second
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_prompts_and_different_seeds_different_ones() {
        let draw = |seed| Prompts::new(seed, 1000).ids(64);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let mut prompts = Prompts::new(1, 1000);
        assert_ne!(prompts.ids(64), prompts.ids(64));
        assert!(prompts.ids(1000).iter().all(|id| *id < 1000));
        assert_eq!(Prompts::new(1, 0).ids(3), [0, 0, 0]);
    }

    #[test]
    fn text_has_the_requested_number_of_words() {
        let mut prompts = Prompts::new(1, 1);
        assert_eq!(prompts.text(17).split(' ').count(), 17);
        assert_eq!(prompts.text(0), "");
    }

    #[test]
    fn arrivals_have_the_requested_rate_on_average() {
        let mut prompts = Prompts::new(1, 1);
        let sum: f64 = (0..10_000).map(|_| prompts.arrival_gap_s(4.0)).sum();
        assert!((sum / 10_000.0 - 0.25).abs() < 0.01, "{sum}");
        assert_eq!(prompts.arrival_gap_s(f64::INFINITY), 0.0);
    }
}
