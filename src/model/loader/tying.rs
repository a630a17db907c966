//! Whether the embedding is the output projection too, by the tensors in the files.

use crate::config::tying::Tying;
use crate::weights::Weights;

const EMBEDDING: &str = "model.embed_tokens.weight";
const OUTPUT: &str = "lm_head.weight";

/// As transformers 5 decides: an output projection that differs from the embedding is used whatever the keys say.
/// `shape` is that of both; names are the internal ones.
pub(super) fn is_tied(tying: Tying, weights: &Weights, shape: [usize; 2]) -> bool {
    let is_output = |name: &str| name.starts_with("lm_head.");
    let is_tied = if !weights.names().any(is_output) {
        tying.may_lack_output
    } else if tying.is_nested && tying.ties {
        !weights.differ([EMBEDDING, OUTPUT], shape)
    } else {
        tying.ties
    };
    if is_tied != tying.ties {
        tracing::warn!(
            tie_word_embeddings = tying.ties,
            is_tied,
            "config.json and the tensors disagree on the output projection: the tensors decide"
        );
    }
    is_tied
}
