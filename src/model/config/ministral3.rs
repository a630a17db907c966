//! The defaults of Ministral 3, where its configuration does not say them.

use crate::model::rope::{RopeConfig, RopeScaling, Yarn};

/// The default rotation.
pub(super) fn rope() -> RopeConfig {
    RopeConfig {
        theta: 1e6,
        scaling: RopeScaling::Yarn(Yarn {
            factor: 16.0,
            original_max_position_embeddings: 16_384,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            mscale: Some(1.0),
            mscale_all_dim: Some(1.0),
            truncate: true,
        }),
    }
}
