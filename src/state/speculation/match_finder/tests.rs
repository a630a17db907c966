use super::*;

const N_IDS: u32 = 1000;

/// A generator of the same numbers on every machine (Knuth's MMIX).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(limit)) as u32
    }

    /// Random tokens, with copies of earlier parts, and placeholders.
    fn text(&mut self, n_tokens: usize, n_letters: u32) -> Vec<u32> {
        let mut text: Vec<u32> = Vec::new();
        while text.len() < n_tokens {
            let start = self.below(text.len() as u32 + 1) as usize;
            match self.below(8) {
                0 => text.extend_from_within(start..text.len().min(start + 20)),
                1 => text.push(N_IDS + self.below(2)),
                _ => text.push(self.below(n_letters)),
            }
        }
        text.truncate(n_tokens);
        text
    }
}

fn finder(text: &[u32], max_match: usize) -> MatchFinder {
    let mut finder = MatchFinder::new(text.len(), max_match, N_IDS);
    for token in text {
        assert_eq!(finder.push(*token), 0);
    }
    finder
}

/// The longest occurrence that a search over all ends finds, the latest of equally long ones.
fn brute_force(finder: &MatchFinder, context: &[u32]) -> Option<Match> {
    let text = finder.tokens();
    let is_followed = |end: &usize| text[*end] < N_IDS;
    let matches = (0..text.len()).filter(is_followed).map(|end| Match {
        n_tokens: n_common(context, &text[..end], finder.max_match),
        end,
    });
    let longest = matches.max_by_key(|found| (found.n_tokens, found.end))?;
    if longest.n_tokens >= CHAINED {
        return Some(longest);
    }
    // Of pairs with one hash, only the latest is known.
    let pair = finder.pair_of(context)?;
    let same_hash = |end: &usize| finder.pair_of(&text[..*end]) == Some(pair);
    let end = (0..text.len()).rev().find(same_hash)?;
    let n_tokens = n_common(context, &text[..end], finder.max_match);
    (n_tokens >= MIN_MATCH && is_followed(&end)).then_some(Match { n_tokens, end })
}

#[test]
fn finds_what_a_search_over_all_ends_finds() {
    let mut numbers = Numbers(1);
    let mut n_found = 0;
    for round in 0..60 {
        let n_letters = 2 + round % 7;
        let text = numbers.text(200, n_letters);
        let max_match = 2 + round as usize % 12;
        for n_tokens in (0..=text.len()).step_by(3) {
            let mut finder = finder(&text[..n_tokens], max_match);
            finder.max_links = usize::MAX;
            let found = finder.find(finder.tokens());
            assert_eq!(found, brute_force(&finder, finder.tokens()), "{text:?}");
            n_found += usize::from(found.is_some());
        }
    }
    assert!(n_found > 1000, "{n_found}");
}

#[test]
fn finds_another_text() {
    let mut numbers = Numbers(2);
    let mut n_found = 0;
    for _ in 0..40 {
        let mut finder = finder(&numbers.text(150, 5), 12);
        finder.max_links = usize::MAX;
        for n_tokens in [1, 2, 3, 20, 40] {
            let context = numbers.text(n_tokens, 5);
            let found = finder.find(&context);
            assert_eq!(found, brute_force(&finder, &context));
            n_found += usize::from(found.is_some());
        }
    }
    assert!(n_found > 50, "{n_found}");
}

#[test]
fn a_loop_is_followed_in_its_own_copy() {
    let finder = finder(&[9, 1, 2, 1, 2, 1, 2], 12);
    let found = finder.find(finder.tokens()).expect("the loop is found");
    assert_eq!((found.n_tokens, found.end), (4, 5));
    let following: Vec<u32> = finder.following_in_loop(found.end).take(7).collect();
    assert_eq!(following, [1, 2, 1, 2, 1, 2, 1]);
    assert_eq!(finder.following(found.end).count(), 2);
}

#[test]
fn short_texts_have_no_occurrence() {
    for n_tokens in 0..3 {
        let finder = finder(&[7; 3][..n_tokens], 12);
        assert_eq!(finder.find(finder.tokens()), None);
    }
    let finder = finder(&[7; 3], 12);
    let found = finder.find(finder.tokens());
    assert_eq!(
        found,
        Some(Match {
            n_tokens: 2,
            end: 2
        })
    );
}

#[test]
fn a_long_chain_ends_after_its_most_links() {
    let mut text = vec![50, 1, 2, 3, 60];
    for other in 0..MAX_LINKS as u32 {
        text.extend([100 + other, 1, 2, 3]);
    }
    text.extend([50, 1, 2, 3]);
    let mut finder = finder(&text, 12);
    let found = finder.find(finder.tokens()).expect("three tokens recur");
    assert_eq!(found.n_tokens, 3);
    finder.max_links = usize::MAX;
    let found = finder.find(finder.tokens()).expect("four tokens recur");
    assert_eq!((found.n_tokens, found.end), (4, 4));
}

#[test]
fn a_full_text_loses_its_first_half() {
    let text = Numbers(3).text(700, 6);
    let mut finder = MatchFinder::new(0, 12, N_IDS);
    finder.max_links = usize::MAX;
    let mut start = 0;
    for (index, token) in text.iter().enumerate() {
        let is_full = index - start == MIN_CAPACITY;
        let dropped = finder.push(*token);
        assert_eq!(dropped, if is_full { MIN_CAPACITY / 2 } else { 0 });
        start += dropped;
        assert_eq!(finder.tokens(), &text[start..=index]);
        let found = finder.find(finder.tokens());
        assert_eq!(found, brute_force(&finder, finder.tokens()));
    }
    assert!(start > 0);
    assert_eq!(finder.tokens.capacity(), MIN_CAPACITY);
    assert_eq!(finder.links.capacity(), MIN_CAPACITY);
}

#[test]
fn the_index_has_at_most_twelve_bytes_a_token() {
    for capacity in [256, 1000, 4096, 32_768, 40_000] {
        let finder = MatchFinder::new(capacity, 12, N_IDS);
        assert!(finder.index_bytes() <= 12 * capacity);
    }
}
