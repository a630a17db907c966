//! Recall of double sparsity: the share of a query's highest-scoring keys that labels find, to evaluate channel files.

use std::sync::Arc;

use super::batch::CpuBatch;
use super::element::{Borrowed, Element, Storage};
use super::kv::PageTable;
use super::planes::Planes;
use super::tensor::Tensor;
use crate::HeadShape;
use crate::sparsity::{DoubleSparsity, LabelChannels};

/// Counts of keys over some queries of all layers with labels, except the queries' own tokens, which are always
/// selected.
#[derive(Clone, Debug)]
pub struct Recall {
    rules: Arc<DoubleSparsity>,
    /// Only positions that are multiples of this are examined.
    interval: usize,
    found: u64,
    best: u64,
}

struct Keys<'a, E> {
    keys: &'a [E],
    planes: Planes,
    slots: &'a [usize],
}

impl Recall {
    /// Counts only sparse queries whose position is a multiple of `interval`.
    pub fn new(rules: Arc<DoubleSparsity>, interval: usize) -> Self {
        Self {
            rules,
            interval: interval.max(1),
            found: 0,
            best: 0,
        }
    }

    /// The share of the best keys that labels find; `None` if no key was counted.
    pub fn share(&self) -> Option<f64> {
        (self.best > 0).then(|| self.found as f64 / self.best as f64)
    }

    pub(super) fn add(
        &mut self,
        (layer, heads): (usize, &HeadShape),
        q: &Tensor,
        (keys, table): (&Storage, &PageTable),
        batch: &CpuBatch,
    ) {
        match keys {
            Storage::F32(keys) => self.count((layer, heads), q, (keys.slice(), table), batch),
            Storage::F16(keys) => self.count((layer, heads), q, (keys.slice(), table), batch),
            Storage::BF16(keys) => self.count((layer, heads), q, (keys.slice(), table), batch),
            Storage::I8(..) => panic!("label recall needs keys that are not quantised"),
        }
    }

    fn count<E: Element + Into<f32>>(
        &mut self,
        (layer, heads): (usize, &HeadShape),
        q: &Tensor,
        (keys, table): (&[E], &PageTable),
        batch: &CpuBatch,
    ) {
        let rules = self.rules.clone();
        let Some(channels) = &rules.layers[layer] else {
            return;
        };
        for segment in batch.segments() {
            let first = segment.first_position;
            for position in first.max(rules.first_position())..segment.end_position() {
                if position % self.interval != 0 {
                    continue;
                }
                let mut slots = Vec::with_capacity(position);
                table.for_slots(segment.row, 0..position, |_, slot| slots.push(slot));
                let keys = Keys {
                    keys,
                    planes: Planes::of(heads, keys.len()),
                    slots: &slots,
                };
                self.count_query(
                    q.row(segment.first_token + position - first),
                    heads,
                    &keys,
                    channels,
                );
            }
        }
    }

    fn count_query<E: Element + Into<f32>>(
        &mut self,
        q: &[f32],
        heads: &HeadShape,
        keys: &Keys<'_, E>,
        channels: &LabelChannels,
    ) {
        let all: Vec<u16> = (0..heads.key_dim as u16).collect();
        for (head, q) in q.chunks(heads.key_dim).enumerate() {
            let kv_head = head / heads.group();
            let best = keys.best(q, kv_head, &all, self.rules.tokens - 1);
            let found = keys.best(q, kv_head, channels.head(kv_head), self.rules.tokens - 1);
            self.best += best.len() as u64;
            self.found += best
                .iter()
                .filter(|at| found.binary_search(at).is_ok())
                .count() as u64;
        }
    }
}

impl<E: Element + Into<f32>> Keys<'_, E> {
    /// The positions with the highest scores by some channels, ascending.
    fn best(&self, q: &[f32], kv_head: usize, channels: &[u16], wanted: usize) -> Vec<usize> {
        let score = |slot: &usize| -> f32 {
            let key = &self.keys[self.planes.keys(kv_head) + self.planes.slot(*slot)..];
            let products = channels.iter().map(|channel| {
                let channel = usize::from(*channel);
                q[channel] * key[channel].into()
            });
            products.sum()
        };
        let scores: Vec<f32> = self.slots.iter().map(score).collect();
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        order.truncate(wanted);
        order.sort_unstable();
        order
    }
}
