//! Properties of sampling parameters, shared by the samplers of CPU and GPU.

use super::params::SamplingParams;

/// Below this temperature sampling is greedy.
pub(super) const GREEDY_TEMPERATURE: f32 = 1e-6;

impl SamplingParams {
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_TEMPERATURE || self.top_k == 1 || self.top_p <= 0.0
    }

    pub fn seed(&self) -> u64 {
        self.sampling_seed.unwrap_or(0)
    }

    /// Whether a penalty depends on token counts in the output.
    pub fn has_output_penalty(&self) -> bool {
        self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// Whether a penalty depends on the set of tokens in prompt and output.
    pub fn has_repetition_penalty(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    /// Whether any penalty is set: only then are a row's tokens counted.
    pub fn has_penalty(&self) -> bool {
        self.has_output_penalty() || self.has_repetition_penalty()
    }

    /// Whether end tokens are banned after `output_tokens` tokens of output.
    pub fn bans_ends(&self, output_tokens: u64) -> bool {
        output_tokens < u64::from(self.min_new_tokens)
    }

    /// The tokens banned while [`Self::bans_ends`], ascending: `eos_ids` and stop tokens.
    pub fn banned_ends(&self, eos_ids: &[u32], vocab_size: usize) -> Vec<u32> {
        if !self.bans_ends(0) {
            return Vec::new();
        }
        let ends = eos_ids.iter().chain(self.stop_token_ids.iter()).copied();
        let mut banned: Vec<u32> = ends
            .filter(|&token| (token as usize) < vocab_size)
            .collect();
        banned.sort_unstable();
        banned.dedup();
        banned
    }

    /// Whether this token ends the output: EOS, or a stop token of the request.
    pub fn ends_at(&self, token: u32, eos_ids: &[u32]) -> bool {
        !self.ignore_eos && (eos_ids.contains(&token) || self.stop_token_ids.contains(&token))
    }

    /// The number of most likely tokens that `top_k` keeps; `None` for all.
    pub fn rank_limit(&self) -> Option<u32> {
        u32::try_from(self.top_k).ok().filter(|limit| *limit > 0)
    }

    pub fn has_nucleus(&self) -> bool {
        self.top_p < 1.0
    }

    pub fn filters_by_rank(&self, vocab_size: usize) -> bool {
        let drops = |limit| (limit as usize) < vocab_size;
        self.rank_limit().is_some_and(drops) || self.has_nucleus()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_banned_until_the_output_is_long_enough() {
        let params = SamplingParams {
            min_new_tokens: 2,
            stop_token_ids: [7, 900, 3].into(),
            ..SamplingParams::default()
        };
        assert!(params.bans_ends(1) && !params.bans_ends(2));
        assert_eq!(params.banned_ends(&[5, 7], 100), [3, 5, 7]);
        let none = SamplingParams {
            min_new_tokens: 0,
            ..params
        };
        assert!(!none.bans_ends(0) && none.banned_ends(&[5, 7], 100).is_empty());
    }

    #[test]
    fn tokens_are_ranked_only_where_a_filter_drops_some() {
        let params = |top_k, top_p| SamplingParams {
            top_k,
            top_p,
            ..SamplingParams::default()
        };
        assert!(!params(-1, 1.0).filters_by_rank(10));
        assert!(!params(10, 1.0).filters_by_rank(10));
        assert!(params(9, 1.0).filters_by_rank(10));
        assert!(params(-1, 0.9).filters_by_rank(10));
        assert_eq!(params(-1, 1.0).rank_limit(), None);
        assert!(!params(0, 1.0).filters_by_rank(10));
        assert_eq!(params(0, 1.0).rank_limit(), None);
    }

    #[test]
    fn a_top_p_of_zero_keeps_only_the_most_likely_token() {
        let params = |top_p| SamplingParams {
            top_p,
            ..SamplingParams::default()
        };
        assert!(params(0.0).is_greedy() && params(-0.0).is_greedy());
        assert!(!params(f32::MIN_POSITIVE).is_greedy());
    }

    #[test]
    fn tokens_are_counted_for_penalties_only() {
        let plain = SamplingParams::default();
        assert!(!plain.has_penalty());
        let repeated = SamplingParams {
            repetition_penalty: 1.1,
            ..plain.clone()
        };
        assert!(repeated.has_penalty() && !repeated.has_output_penalty());
        let counted = SamplingParams {
            presence_penalty: -0.5,
            ..plain
        };
        assert!(counted.has_penalty() && !counted.has_repetition_penalty());
    }
}
