//! Refuses requests that equal one that caused deaths: a client that sends it again must not cause further ones.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cache::namespace::Namespace;
use crate::pooling::Pooling;
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
    namespace: Namespace,
    sampling: SamplingParams,
    pooling: Option<Pooling>,
    /// The grammar itself cannot be compared.
    has_grammar: bool,
    until_s: f64,
}

impl Quarantine {
    /// A prompt of vectors is not remembered, because its tokens are placeholders.
    pub fn convict(&mut self, request: &Submission, now_s: f64) {
        if request.vectors.is_some() {
            return;
        }
        if self.convicted.len() == MAX_REMEMBERED {
            self.convicted.pop_front();
        }
        self.convicted.push_back(Convicted {
            prompt: request.prompt.clone(),
            namespace: request.namespace.clone(),
            sampling: without_seed(&request.sampling),
            pooling: request.pooling,
            has_grammar: request.grammar.is_some(),
            until_s: now_s + REFUSAL_S,
        });
    }

    /// True if the request equals a convicted one, except for the seed, which is often random.
    pub fn refuses(&mut self, request: &Submission, now_s: f64) -> bool {
        let is_over = |convicted: &mut Convicted| convicted.until_s <= now_s;
        while self.convicted.pop_front_if(is_over).is_some() {}
        request.vectors.is_none()
            && self
                .convicted
                .iter()
                .any(|convicted| convicted.equals(request))
    }
}

impl Convicted {
    fn equals(&self, request: &Submission) -> bool {
        self.prompt == request.prompt
            && self.namespace == request.namespace
            && self.pooling == request.pooling
            && self.has_grammar == request.grammar.is_some()
            && self.sampling == without_seed(&request.sampling)
    }
}

fn without_seed(sampling: &SamplingParams) -> SamplingParams {
    SamplingParams {
        sampling_seed: None,
        ..sampling.clone()
    }
}
