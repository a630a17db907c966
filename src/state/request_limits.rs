//! How long the lists and names of one request may be.

/// Limits of a request's parameters. The defaults are those of the configuration's keys of the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Most stop strings.
    pub max_stop_strings: usize,
    /// Longest stop string, in bytes.
    pub max_stop_bytes: usize,
    /// Most stop token ids.
    pub max_stop_token_ids: usize,
    /// Most tokens with a bias.
    pub max_logit_bias: usize,
    /// Most alternatives a position, for top log probabilities and for chosen tokens alike.
    pub max_logprobs: usize,
    /// Longest `extra_key` and longest `cache_salt`, in bytes.
    pub max_extra_key_bytes: usize,
}

impl RequestLimits {
    /// No limits: for what is trusted, or checked later.
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
