//! GGUF metadata keys of one architecture.

use std::ops::RangeInclusive;

use souffleur_base::error::LoadError;
use souffleur_gguf::Metadata;

pub(crate) const SCORE_SCALE: &str = "attention.scale";
pub(crate) const EMBEDDING_SCALE: &str = "embedding_scale";
pub(crate) const RESIDUAL_SCALE: &str = "residual_scale";
pub(crate) const LOGITS_DIVISOR: &str = "logit_scale";
/// Slope of the factor on queries, which grows with the position.
pub(crate) const QUERY_SLOPE: &str = "attention.temperature_scale";
pub(crate) const SCORE_CAP: &str = "attn_logit_softcapping";
pub(crate) const LOGITS_CAP: &str = "final_logit_softcapping";
pub(crate) const GATING: &str = "expert_gating_func";
pub(crate) const WEIGHTS_SCALE: &str = "expert_weights_scale";
pub(crate) const SHARED_EXPERT: &[&str] =
    &["expert_shared_count", "expert_shared_feed_forward_length"];
pub(crate) const ROUTER_NUMBERS: &[&str] = &[
    GATING,
    WEIGHTS_SCALE,
    SHARED_EXPERT[0],
    SHARED_EXPERT[1],
    "expert_group_count",
    "interleave_moe_layer_step",
];
pub(crate) const KV_HEADS: &str = "attention.head_count_kv";

/// The norm of attention's output, in families with one: the internal name, the file's name.
pub(crate) const POST_ATTENTION: (&str, &str) = ("post_attention_layernorm", "post_attention_norm");
/// The norm before the feed-forward block, and the final norm: the usual name, and the name in some files.
pub(crate) const OTHER_NORMS: &[(&str, &str)] = &[
    ("ffn_norm.weight", "post_attention_norm.weight"),
    ("output_norm.weight", "token_embd_norm.weight"),
];

/// Metadata keys with the architecture's prefix.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub metadata: Metadata<'a>,
    pub architecture: &'a str,
}

impl<'a> Keys<'a> {
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>, LoadError> {
        self.metadata.text(&self.key(name))
    }

    pub fn number(
        &self,
        name: &str,
        limits: RangeInclusive<f64>,
    ) -> Result<Option<f64>, LoadError> {
        self.metadata.number(&self.key(name), limits)
    }

    /// A scalar, or a list with the same value for all layers.
    pub fn size(
        &self,
        name: &str,
        limits: RangeInclusive<usize>,
    ) -> Result<Option<usize>, LoadError> {
        let key = self.key(name);
        if !self.metadata.is_list(&key) {
            return self.metadata.size(&key, limits);
        }
        let within = *limits.start() as i64..=*limits.end() as i64;
        let sizes = self.metadata.integers(&key, within)?.unwrap_or_default();
        match sizes.as_slice() {
            [] => Err(self.error(
                name,
                "is an empty list, expected a number for each layer: convert the model again",
            )),
            [first, rest @ ..] => match rest.iter().find(|size| *size != first) {
                None => Ok(Some(*first as usize)),
                Some(other) => {
                    let reason = format!(
                        "is {first} in the first layer and {other} in another: all layers must have the same value"
                    );
                    Err(self.error(name, reason))
                }
            },
        }
    }

    /// Flags or integers for each of `layers` layers. Later entries are ignored.
    pub fn flags(&self, name: &str, layers: usize) -> Result<Option<Vec<bool>>, LoadError> {
        let Some(mut flags) = self.metadata.flags(&self.key(name))? else {
            return Ok(None);
        };
        if flags.len() < layers {
            let reason = format!(
                "has {} entries, expected one for each of {layers} layers: convert the model again",
                flags.len()
            );
            return Err(self.error(name, reason));
        }
        flags.truncate(layers);
        Ok(Some(flags))
    }

    pub fn required(&self, name: &str, limits: RangeInclusive<usize>) -> Result<usize, LoadError> {
        self.size(name, limits)?
            .ok_or_else(|| self.error(name, "is missing: convert the model again"))
    }

    pub fn error(&self, name: &str, reason: impl std::fmt::Display) -> LoadError {
        self.metadata.error(&self.key(name), reason)
    }
}
