//! Rows whose sampled tokens a [`Teacher`](crate::taught::Teacher) replaces.

use super::RowSampling;
use souffleur_state::sampling::Sampled;

impl RowSampling {
    /// The sampled token, or the one that the row is taught instead. Called once for each token that is taken, before
    /// it is recorded, returned or compared with a draft.
    pub(super) fn taught(&mut self, sampled: Sampled) -> Sampled {
        match &mut self.lesson {
            None => sampled,
            Some(lesson) => Sampled {
                token: lesson.take(),
                ..sampled
            },
        }
    }
}
