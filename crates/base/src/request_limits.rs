//! Limits on the sizes of a request's parameters.

/// The defaults are those of the configuration keys with the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    pub max_stop_strings: usize,
    pub max_stop_bytes: usize,
    pub max_stop_token_ids: usize,
    pub max_logit_bias: usize,
    /// Alternatives per position, for top log probabilities and for requested tokens alike.
    pub max_logprobs: usize,
    /// Bytes of `extra_key` and of `cache_salt`.
    pub max_extra_key_bytes: usize,
}

impl RequestLimits {
    /// For trusted input, or input checked later.
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
