//! Limits on the lists and names of a request.

/// Limits of a request's parameters. The defaults are those of the configuration keys with the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Upper bound of stop strings.
    pub max_stop_strings: usize,
    /// Upper bound of a stop string's bytes.
    pub max_stop_bytes: usize,
    /// Upper bound of stop token ids.
    pub max_stop_token_ids: usize,
    /// Upper bound of tokens with a bias.
    pub max_logit_bias: usize,
    /// Upper bound of alternatives per position, for top log probabilities and for requested tokens alike.
    pub max_logprobs: usize,
    /// Upper bound of the bytes of `extra_key` and of `cache_salt`.
    pub max_extra_key_bytes: usize,
}

impl RequestLimits {
    /// No limits: for trusted input, or input checked later.
    pub const NONE: Self = Self {
        max_stop_strings: usize::MAX,
        max_stop_bytes: usize::MAX,
        max_stop_token_ids: usize::MAX,
        max_logit_bias: usize::MAX,
        max_logprobs: usize::MAX,
        max_extra_key_bytes: usize::MAX,
    };
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            max_stop_strings: 32,
            max_stop_bytes: 1024,
            max_stop_token_ids: 1024,
            max_logit_bias: 1024,
            max_logprobs: 1024,
            max_extra_key_bytes: 256,
        }
    }
}
