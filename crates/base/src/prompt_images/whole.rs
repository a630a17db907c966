//! Runs of vectors that attend to each other in both directions: a step computes all of a run that is not cached.
//!
//! A token sees the keys that its own step and earlier ones have stored. So a chunk of a prefill never ends within a
//! run. A cached prefix may: its keys and values are final, as the step that computed them had the whole run.
//!
//! Source: `create_masks_for_vision_model` of Gemma 3 and Gemma 4 in transformers 5. Marks are not part of runs, and
//! images without a mark between them are one run.

use std::ops::Range;
use std::sync::Arc;

use super::PromptImages;

impl PromptImages {
    /// The positions with vectors, as long as possible runs in order.
    pub fn runs(&self) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::with_capacity(self.spans.len());
        for run in self
            .spans
            .iter()
            .flat_map(|span| span.runs(span.pads.clone()))
        {
            match runs.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => runs.push(run),
            }
        }
        runs
    }

    /// Whether a chunk that ends before `position` would cut a run.
    pub fn cuts_run(&self, position: u32) -> bool {
        let has_vector = |position: u32| {
            let span = self.at(position);
            span.is_some_and(|span| span.mark_at(position).is_none())
        };
        has_vector(position) && position.checked_sub(1).is_some_and(has_vector)
    }

    /// The same images, for a model whose runs must not be cut: plans then heed [`Self::whole`].
    pub fn kept_whole(self) -> Self {
        let whole = Some(self.runs().into());
        Self { whole, ..self }
    }

    /// The runs that chunks must not cut, ascending; `None` if attention is causal.
    pub fn whole(&self) -> Option<&Arc<[Range<u32>]>> {
        self.whole.as_ref()
    }

    /// These images, or none, with the runs that a message log has.
    pub fn with_whole(images: Option<&Self>, runs: Vec<Range<u32>>) -> Self {
        Self {
            spans: images.map_or_else(Vec::new, |images| images.spans.clone()),
            whole: Some(runs.into()),
        }
    }
}
