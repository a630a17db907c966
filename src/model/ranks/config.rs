//! The configuration of a rank's part of a model.

use crate::config::ModelConfig;
use crate::config::recurrent::Recurrence;
use souffleur_base::error::ConfigError;
use souffleur_kernels::shard::{Rank, Share};

/// The configuration of the part of the model that `rank` has: its heads, and its share of the width of MLPs, experts
/// and delta nets. The vocabulary and the embeddings are whole.
///
/// # Errors
/// If the ranks cannot share heads or widths: names the key of the model that does not divide.
pub fn of_rank(config: &ModelConfig, rank: Rank) -> Result<ModelConfig, ConfigError> {
    let mut part = config.clone();
    let equal = |key: &str, size: usize| share(Share::Equal, (key, size), rank);
    let key_heads = |key: &str, size: usize| share(Share::Replicated, (key, size), rank);
    part.num_attention_heads = equal("num_attention_heads", config.num_attention_heads)?;
    if config.latent.is_none() {
        part.num_key_value_heads = key_heads("num_key_value_heads", config.num_key_value_heads)?;
    }
    if has_mlp(config) {
        part.intermediate_size = equal("intermediate_size", config.intermediate_size)?;
    }
    if let Some(experts) = &mut part.experts {
        experts.width = equal("moe_intermediate_size", experts.width)?;
        if let Some(width) = &mut experts.shared_width {
            *width = equal("shared expert width", *width)?;
        }
    }
    if let Some(recurrent) = &mut part.recurrent {
        if let Some(width) = &mut recurrent.shared_expert {
            *width = equal("shared_expert_intermediate_size", *width)?;
        }
        if let Recurrence::DeltaNet { shape, .. } = &mut recurrent.recurrence {
            let per_key = shape.value_heads / shape.key_heads;
            shape.key_heads = equal("linear_num_key_heads", shape.key_heads)?;
            shape.value_heads = shape.key_heads * per_key;
        }
    }
    let gemma = part.gemma.as_mut();
    if let Some(gemma4) = gemma.and_then(|gemma| gemma.gemma4.as_mut()) {
        gemma4.full_kv_heads = key_heads("num_global_key_value_heads", gemma4.full_kv_heads)?;
    }
    Ok(part)
}

/// Whether some layer has an MLP as wide as the configuration says.
fn has_mlp(config: &ModelConfig) -> bool {
    let in_layer = |layer| match &config.experts {
        Some(experts) => config.gemma.is_some() || !experts.are_in(layer),
        None => true,
    };
    (0..config.num_hidden_layers).any(in_layer)
}

fn share(share: Share, (key, size): (&str, usize), rank: Rank) -> Result<usize, ConfigError> {
    let part = share.of(size, rank).map(|units| units.len());
    part.ok_or_else(|| {
        let expected = match share {
            Share::Replicated => "a multiple or a divisor",
            Share::Equal | Share::Padded => "a multiple",
        };
        ConfigError {
            key: "tp_size".to_owned(),
            reason: format!(
                "is {}, but the model's {key} is {size}, which must be {expected} of tp_size: choose another tp_size",
                rank.count()
            ),
        }
    })
}
