//! The operations of a rank's backend that need the other ranks.

use super::CpuBackend;
use super::ranks::{RankLink, RanksLost};
use super::tensor::Tensor;

impl CpuBackend {
    /// Makes this the backend of the link's rank, whose part of the model it must have. Without a link, it must have
    /// the whole model.
    pub fn join(&mut self, link: Option<RankLink>) {
        self.link = link;
    }

    /// See [`RankLink::rejoin`].
    pub fn rejoin(&mut self) {
        if let Some(link) = &mut self.link {
            link.rejoin();
        }
    }

    /// See [`RankLink::fail`].
    pub fn fail_ranks(&self, reason: &str) {
        if let Some(link) = &self.link {
            link.fail(reason);
        }
    }

    /// Replaces `values` by rank 0's, of which there are as many, if other ranks have parts of the model.
    pub fn take_first_rank(&mut self, values: &mut [f32]) {
        if self.has_ranks()
            && let Err(lost) = self.link().broadcast(values)
        {
            end_step(lost);
        }
    }

    /// Whether other ranks have parts of the model.
    pub fn has_ranks(&self) -> bool {
        let link = self.link.as_ref();
        link.is_some_and(|link| link.rank().count() > 1)
    }

    pub(super) fn sum_over_ranks(&mut self, rows: &mut Tensor) {
        if let Err(lost) = self.link().sum(rows.values_mut()) {
            end_step(lost);
        }
    }

    pub(super) fn gather_from_ranks(&mut self, part: &Tensor) -> Tensor {
        let scratch = self.scratch.clone();
        match self.link().gather(part, &scratch) {
            Ok(gathered) => gathered,
            Err(lost) => end_step(lost),
        }
    }

    /// Applies RMSNorms to adjacent columns of each row, as wide as the weights, which are parts of wider rows: the
    /// other ranks have the rest. All ranks have equally wide parts, and each column in equally many.
    pub(super) fn norm_over_ranks(&mut self, rows: &mut Tensor, weights: &[&[f32]], eps: f32) {
        let mut means = self.scratch.tensor(rows.rows(), weights.len());
        for row in 0..rows.rows() {
            let mut rest = rows.row(row);
            for (mean, weight) in means.row_mut(row).iter_mut().zip(weights) {
                let (part, after) = rest.split_at(weight.len());
                let squares: f32 = part.iter().map(|value| value * value).sum();
                *mean = squares / part.len() as f32;
                rest = after;
            }
        }
        self.sum_over_ranks(&mut means);
        let count = self.link().rank().count() as f32;
        for row in 0..rows.rows() {
            let mut rest = rows.row_mut(row);
            for (sum, weight) in means.row(row).iter().zip(weights) {
                let (part, after) = rest.split_at_mut(weight.len());
                let scale = 1.0 / (sum / count + eps).sqrt();
                let pairs = part.iter_mut().zip(weight.iter());
                pairs.for_each(|(value, weight)| *value *= scale * weight);
                rest = after;
            }
        }
    }

    fn link(&mut self) -> &mut RankLink {
        let link = self.link.as_mut();
        link.expect("a divided matrix must be in the backend of a rank")
    }
}

/// Unwinds a rank's step after another rank was lost. This is no error of this rank, so panic hooks are not called.
fn end_step(lost: RanksLost) -> ! {
    std::panic::resume_unwind(Box::new(lost))
}
