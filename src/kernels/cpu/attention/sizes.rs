//! Operand sizes of an attention work item.

use super::kv_element::KvElement;
use super::seen::BLOCK;
use super::state::record_len;
use crate::HeadShape;
use souffleur_base::kv_layout::{SCALE_GROUP, Values};

#[derive(Clone, Copy)]
pub struct Sizes {
    /// Queries of a key head: tokens times heads of a group.
    pub rows: usize,
    pub group: usize,
    /// Words of a query, padded to a multiple of [`KvElement::CHUNK`] elements.
    pub query_words: usize,
    /// Words of a query or key without padding.
    pub depth: usize,
    /// Elements of a value, padded to a multiple of [`KvElement::CHUNK`].
    pub width: usize,
    /// Values of a softmax record.
    pub record: usize,
    /// Scales of a key and its value.
    pub n_scales: usize,
    /// Scales of a value, and the number of scales before them.
    pub value_scales: usize,
    pub before_value_scales: usize,
    /// Words of a row's weights for a block; int8 values have separate weights for each group with a scale.
    pub weight_words: usize,
}

impl Sizes {
    pub fn of<F: KvElement>(heads: &HeadShape, n_tokens: usize) -> Self {
        let group = heads.group();
        let width = F::padded(heads.values.dim());
        let scales = |dim: usize| {
            if F::SCALED {
                dim.div_ceil(SCALE_GROUP)
            } else {
                0
            }
        };
        let value_scales = scales(heads.values.dim());
        Self {
            rows: n_tokens * group,
            group,
            query_words: F::padded(heads.key_dim) / F::PER_WORD,
            depth: F::depth(heads.key_dim),
            width,
            record: record_len(width),
            n_scales: scales(heads.key_dim) + scales(heads.values.stored_dim()),
            value_scales,
            before_value_scales: match heads.values {
                Values::Own { .. } => scales(heads.key_dim),
                Values::InKeys { .. } => 0,
            },
            weight_words: BLOCK / F::PER_WORD * value_scales.max(1),
        }
    }
}
