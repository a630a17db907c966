//! Refuses requests that equal one that caused deaths: a client that sends it again must not cause further ones.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::sampling::SamplingParams;
use crate::scheduler::submission::Submission;

/// Time during which equal requests are refused.
const REFUSAL_S: f64 = 600.0;
/// The most requests remembered; the oldest is forgotten first.
const MAX_REMEMBERED: usize = 64;

/// Convicted requests of the last minutes. Comparing whole requests leaves no collisions for a client to search.
#[derive(Debug, Default)]
pub struct Quarantine {
    convicted: VecDeque<Convicted>,
}

#[derive(Debug)]
struct Convicted {
    prompt: Arc<[u32]>,
    sampling: SamplingParams,
    until_s: f64,
}

impl Quarantine {
    pub fn convict(&mut self, request: &Submission, now_s: f64) {
        if self.convicted.len() == MAX_REMEMBERED {
            self.convicted.pop_front();
        }
        self.convicted.push_back(Convicted {
            prompt: request.prompt.clone(),
            sampling: without_seed(&request.sampling),
            until_s: now_s + REFUSAL_S,
        });
    }

    /// True if the request equals a convicted one, except for the seed, which is often random.
    pub fn refuses(&mut self, request: &Submission, now_s: f64) -> bool {
        let is_over = |convicted: &mut Convicted| convicted.until_s <= now_s;
        while self.convicted.pop_front_if(is_over).is_some() {}
        let mut same_prompt = self
            .convicted
            .iter()
            .filter(|convicted| convicted.prompt == request.prompt);
        same_prompt.any(|convicted| convicted.sampling == without_seed(&request.sampling))
    }
}

fn without_seed(sampling: &SamplingParams) -> SamplingParams {
    SamplingParams {
        sampling_seed: None,
        ..sampling.clone()
    }
}
