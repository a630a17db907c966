//! The key by which the cache matches a waiting request.

use std::sync::Arc;

use crate::cache::namespace::Namespace;
use souffleur_base::ids::{IntakeId, SeqId};

#[derive(Clone, Debug)]
pub struct ProbeKey {
    pub seq: SeqId,
    pub intake: IntakeId,
    pub namespace: Namespace,
    /// Prompt and output so far.
    pub tokens: Arc<[u32]>,
    /// Longest prefix that may come from the cache.
    pub match_limit: usize,
}
