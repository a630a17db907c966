//! Texts in which every draft is wrong: the floor of speculation.

use std::collections::HashMap;

use fastrand::Rng;

/// Different tokens of a text: few, so that its last tokens nearly always occur earlier.
const SYMBOLS: usize = 16;
/// The longest run of last tokens whose earlier occurrence is taken into account. Longer ones occur once.
const LONGEST: usize = 8;

/// A text of `n` tokens below `vocab_size`. After each run of tokens that occurred before, it continues differently
/// than after the latest earlier occurrence, for each length of the run: the first draft of a match finder is always
/// wrong.
pub fn text(n: usize, vocab_size: u32, random: &mut Rng) -> Vec<u32> {
    let symbols: Vec<u32> = (0..SYMBOLS)
        .map(|_| random.u32(0..vocab_size.max(1)))
        .collect();
    let mut text: Vec<u32> = Vec::with_capacity(n);
    let mut followers: HashMap<Vec<u32>, u32> = HashMap::new();
    for _ in 0..n {
        let runs = (1..=LONGEST.min(text.len())).map(|len| &text[text.len() - len..]);
        let expected: Vec<u32> = runs
            .clone()
            .filter_map(|run| followers.get(run).copied())
            .collect();
        let others: Vec<u32> = symbols
            .iter()
            .copied()
            .filter(|symbol| !expected.contains(symbol))
            .collect();
        // At most LONGEST of the symbols are expected; a tiny vocabulary may leave none.
        let next = random.choice(others).unwrap_or(symbols[0]);
        for run in runs {
            followers.insert(run.to_vec(), next);
        }
        text.push(next);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The token after the latest of the longest earlier occurrences of the last tokens, at least `least` of them.
    fn draft(text: &[u32], least: usize) -> Option<u32> {
        let len_at = |end: usize| {
            let earlier = text[..end].iter().rev();
            let equal = earlier.zip(text.iter().rev()).take_while(|(a, b)| a == b);
            equal.count()
        };
        let ends = (1..text.len()).filter(|end| len_at(*end) >= least);
        let best = ends.max_by_key(|end| (len_at(*end), *end))?;
        Some(text[best])
    }

    #[test]
    fn a_match_finder_drafts_often_and_is_never_right() {
        let text = text(600, 1000, &mut Rng::with_seed(1));
        assert_eq!(text.len(), 600);
        for least in 1..=2 {
            let mut drafts = 0;
            for n in 300..text.len() {
                if let Some(draft) = draft(&text[..n], least) {
                    drafts += 1;
                    assert_ne!(draft, text[n], "{n}, {least}");
                }
            }
            assert!(drafts > 150, "{drafts}, {least}");
        }
    }

    #[test]
    fn a_vocabulary_of_one_token_gives_a_text() {
        assert_eq!(text(3, 1, &mut Rng::with_seed(1)), [0, 0, 0]);
    }
}
