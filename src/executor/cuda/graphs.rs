//! CUDA graphs of decode steps, one for each padded batch size (bucket).

use std::collections::BTreeMap;

use souffleur_kernels::cuda::backend::Tensor;
use souffleur_kernels::cuda::driver::{DevicePtr, Graph};

/// Batch sizes up to this one are powers of two, larger ones its multiples; the last is always `max_rows`.
const BUCKET_STEP: usize = 8;

/// Logits on the device.
#[derive(Clone, Copy)]
pub(super) struct Logits {
    pub(super) start: DevicePtr<f32>,
    /// Elements from one row of logits to the next; ranks may pad the vocabulary.
    pub(super) stride: u32,
}

impl Logits {
    pub(super) const NULL: Self = Self {
        start: DevicePtr::NULL,
        stride: 0,
    };

    pub(super) fn of(tensor: &Tensor) -> Self {
        Self {
            start: tensor.f32(),
            stride: tensor.width() as u32,
        }
    }
}

pub(super) struct DecodeGraph {
    pub(super) graph: Graph,
    /// The logits, which are valid until the next launch.
    pub(super) logits: Logits,
}

pub(super) struct Graphs {
    buckets: Vec<usize>,
    recorded: BTreeMap<usize, DecodeGraph>,
}

impl Graphs {
    pub(super) fn new(max_rows: usize) -> Self {
        Self {
            buckets: buckets(max_rows),
            recorded: BTreeMap::new(),
        }
    }

    pub(super) fn buckets(&self) -> &[usize] {
        &self.buckets
    }

    pub(super) fn bucket(&self, n_rows: usize) -> Option<usize> {
        if n_rows == 0 {
            return None;
        }
        let found = self.buckets.partition_point(|bucket| *bucket < n_rows);
        self.buckets.get(found).copied()
    }

    pub(super) fn get(&self, bucket: usize) -> Option<&DecodeGraph> {
        self.recorded.get(&bucket)
    }

    pub(super) fn insert(&mut self, bucket: usize, graph: DecodeGraph) {
        self.recorded.insert(bucket, graph);
    }

    pub(super) fn clear(&mut self) {
        self.recorded.clear();
    }
}

/// Batch sizes 1, 2, 4, 8, 16, 24, 32 and so on, as in SGLang, and `max_rows`.
fn buckets(max_rows: usize) -> Vec<usize> {
    let small = [1, 2, 4].into_iter();
    let large = (BUCKET_STEP..=max_rows).step_by(BUCKET_STEP);
    let mut buckets: Vec<usize> = small.chain(large).collect();
    buckets.retain(|bucket| *bucket < max_rows);
    buckets.extend((max_rows > 0).then_some(max_rows));
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_counts_get_the_smallest_bucket_that_holds_them() {
        assert!(buckets(0).is_empty());
        assert_eq!(buckets(1), [1]);
        assert_eq!(buckets(3), [1, 2, 3]);
        assert_eq!(buckets(8), [1, 2, 4, 8]);
        assert_eq!(buckets(27), [1, 2, 4, 8, 16, 24, 27]);
        let graphs = Graphs::new(27);
        let found = [0, 1, 3, 4, 9, 25, 27, 28].map(|n_rows| graphs.bucket(n_rows));
        let expected = [
            None,
            Some(1),
            Some(4),
            Some(4),
            Some(16),
            Some(27),
            Some(27),
            None,
        ];
        assert_eq!(found, expected);
    }
}
