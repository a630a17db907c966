//! Log probabilities: the request's selection, the results, and their computation from raw logits.

use std::cmp::Ordering;
use std::sync::Arc;

use souffleur_base::prompt_images::is_key;

/// The log probabilities that a request selects. Names follow SGLang. Clones share the list.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LogprobWish {
    /// First prompt position whose logits are used; `None` for the output's log probabilities only.
    pub start: Option<u32>,
    /// Number of most likely tokens to return per position.
    pub top: u32,
    pub token_ids: Arc<[u32]>,
}

/// Log probabilities of one row in one step, or the embedding of its prompt, which comes with the prompt's last token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowLogprobs {
    /// For each prefilled position `p` at or after the selection's start with `p + 1 < prompt_tokens`: the log
    /// probabilities at `p + 1`, from the logits at `p`. (The first token of the selected range has none.)
    pub input: Vec<TokenLogprobs>,
    pub output: Vec<TokenLogprobs>,
    pub embedding: Option<Arc<[f32]>>,
}

/// The log probability of one token, and of alternatives at its position.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TokenLogprobs {
    pub token: u32,
    /// Its log probability in nats, before temperature and penalties; `None` for the first token of a prompt, and for
    /// keys of images.
    pub logprob: Option<f32>,
    /// The most likely tokens at this position, in descending order.
    pub top: Vec<(u32, f32)>,
    pub chosen: Vec<(u32, f32)>,
}

/// Returns the log probabilities of `token`, of the `top` most likely tokens and of the tokens `ids`.
///
/// `logits` are raw: before temperature, penalties and masks. The softmax is summed in f64 in token order, so the
/// result depends only on the logits. Ties rank by lower id. An id outside the vocabulary gets minus infinity. The key
/// of an image has no log probability, and no other token has one in its place.
pub fn token_logprobs(logits: &[f32], token: u32, top: u32, ids: &[u32]) -> TokenLogprobs {
    if is_key(token) {
        return TokenLogprobs {
            token,
            ..TokenLogprobs::default()
        };
    }
    let log_normalizer = log_sum_exp(logits);
    let logprob = |id: u32| match logits.get(id as usize) {
        Some(&logit) => (f64::from(logit) - log_normalizer) as f32,
        None => f32::NEG_INFINITY,
    };
    TokenLogprobs {
        token,
        logprob: Some(logprob(token)),
        top: most_likely(logits, top as usize)
            .into_iter()
            .map(|id| (id, logprob(id)))
            .collect(),
        chosen: ids.iter().map(|&id| (id, logprob(id))).collect(),
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits
        .iter()
        .map(|&logit| (f64::from(logit) - max).exp())
        .sum();
    max + sum.ln()
}

/// Above this number of tokens, sorting the whole vocabulary is cheaper than inserting into a sorted list.
const MAX_INSERTED: usize = 64;

fn most_likely(logits: &[f32], top: usize) -> Vec<u32> {
    let top = top.min(logits.len());
    if top == 0 {
        return Vec::new();
    }
    let by_rank = |a: &u32, b: &u32| rank(logits, *a, *b);
    if top > MAX_INSERTED || logits.iter().any(|logit| logit.is_nan()) {
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        if top < ids.len() {
            ids.select_nth_unstable_by(top - 1, by_rank);
            ids.truncate(top);
        }
        ids.sort_unstable_by(by_rank);
        return ids;
    }
    let mut ids: Vec<u32> = Vec::with_capacity(top + 1);
    let mut lowest = f32::NEG_INFINITY;
    for (id, &logit) in (0u32..).zip(logits) {
        // Ties rank after the lower ids already in the list.
        if ids.len() == top && logit <= lowest {
            continue;
        }
        let place = ids.partition_point(|other| logits[*other as usize] >= logit);
        ids.insert(place, id);
        ids.truncate(top);
        lowest = logits[ids[ids.len() - 1] as usize];
    }
    ids
}

/// Orders tokens by descending logit, ties by id. NaN values rank by their bits, in any order.
fn rank(logits: &[f32], a: u32, b: u32) -> Ordering {
    let (x, y) = (logits[a as usize], logits[b as usize]);
    if x == y {
        a.cmp(&b)
    } else {
        y.total_cmp(&x).then(a.cmp(&b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logprobs_are_the_log_softmax_of_the_raw_logits() {
        let logits = [1.0f32, 3.0, 2.0, 3.0, -1.0];
        let got = token_logprobs(&logits, 2, 3, &[4, 0, 99]);
        let normalizer: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
        let expect = |id: usize| (f64::from(logits[id]) - normalizer) as f32;
        let close = |a: f32, b: f32| assert!((a - b).abs() < 1e-6, "{a} {b}");
        close(
            got.logprob.expect("always set for a sampled token"),
            expect(2),
        );
        assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3, 2]);
        close(got.top[0].1, expect(1));
        close(got.chosen[0].1, expect(4));
        close(got.chosen[1].1, expect(0));
        assert_eq!(got.chosen[2], (99, f32::NEG_INFINITY));
    }

    #[test]
    fn keys_of_images_have_no_log_probabilities() {
        let token = souffleur_base::prompt_images::KEY_BIT + 5;
        let got = token_logprobs(&[0.0, 1.0], token, 2, &[0]);
        let none = TokenLogprobs {
            token,
            ..TokenLogprobs::default()
        };
        assert_eq!(got, none);
    }

    #[test]
    fn top_is_bounded_by_the_vocabulary() {
        assert_eq!(token_logprobs(&[0.0, 1.0], 0, 20, &[]).top.len(), 2);
        assert!(token_logprobs(&[0.0, 1.0], 0, 0, &[]).top.is_empty());
    }

    #[test]
    fn insertion_agrees_with_sorting() {
        let noise = |i: u32| (i.wrapping_mul(2_654_435_761) >> 22) as f32;
        let logits: Vec<f32> = (0..3000).map(noise).collect();
        let mut sorted: Vec<u32> = (0..3000).collect();
        sorted.sort_by(|a, b| rank(&logits, *a, *b));
        for top in [1, 5, MAX_INSERTED, MAX_INSERTED + 1, 3000] {
            assert_eq!(most_likely(&logits, top), sorted[..top], "top {top}");
        }
    }

    #[test]
    fn signed_zeros_rank_by_id() {
        let top = token_logprobs(&[0.0, -0.0, 0.0], 0, 3, &[]).top;
        assert_eq!(top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
