//! What a waiting request is matched by.

use std::sync::Arc;

use crate::ids::SeqId;
use crate::state::cache::namespace::Namespace;

/// One waiting request's key.
#[derive(Clone, Debug)]
pub struct ProbeKey {
    /// The request.
    pub seq: SeqId,
    /// Where its prefix may be shared.
    pub namespace: Namespace,
    /// Prompt and output so far.
    pub tokens: Arc<[u32]>,
    /// Longest prefix that may come from the cache.
    pub match_limit: usize,
}
