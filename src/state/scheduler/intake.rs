//! Who comes in, and who is told to go.

use smallvec::SmallVec;

use crate::error::RequestError;
use crate::ids::{IntakeId, RequestId, SeqId};
use crate::state::pool::pages::PageSize;
use crate::state::scheduler::news::FinishReason;
use crate::state::scheduler::news::{RequestEnd, RequestTokens};
use crate::state::scheduler::sequence::Sequence;
use crate::state::scheduler::submission::CancelFlag;
use crate::state::scheduler::submission::Submission;

use super::Scheduler;
use super::planning::MAX_CANDIDATES;

/// What can ever fit, so that an idle engine can always admit what it has let in.
#[derive(Clone, Copy, Debug)]
pub struct IntakeLimits {
    /// Longest sequence, in tokens.
    pub context_length: usize,
    /// Tokens of the KV pool.
    pub capacity_tokens: usize,
    /// Tokens a page.
    pub page_size: PageSize,
}

impl IntakeLimits {
    /// The fewest tokens of a pool, in whole pages, that can serve a prompt of one token.
    pub fn min_capacity_tokens(page_size: PageSize) -> usize {
        // A page of prompt, a page to grow into, and two tokens that an admission keeps free.
        page_size.tokens_in(page_size.pages_for(2 * page_size.get() + 2))
    }

    /// The most tokens that a prompt may have and still get one generated.
    pub fn max_prompt_tokens(&self) -> usize {
        let by_context = self.context_length.saturating_sub(2);
        let page = self.page_size.get();
        // ceil_page(prompt) + page + 1 + one token <= capacity
        let by_pool = self
            .page_size
            .floor(self.capacity_tokens.saturating_sub(page + 2));
        by_context.min(by_pool)
    }

    /// `max_new_tokens` clipped to what fits behind a prompt.
    ///
    /// # Errors
    /// [`RequestError::PromptTooLong`] when not even one token fits.
    pub fn clip_max_new_tokens(
        &self,
        prompt_tokens: usize,
        max_new_tokens: usize,
    ) -> Result<usize, RequestError> {
        let limit_tokens = self.max_prompt_tokens();
        if prompt_tokens > limit_tokens {
            return Err(RequestError::PromptTooLong {
                prompt_tokens,
                limit_tokens,
            });
        }
        // SGLang: max_req_len - input - 1, with max_req_len one less than context and pool.
        let max_len = self.context_length.min(self.capacity_tokens) - 1;
        let by_length = max_len - prompt_tokens - 1;
        let paged_prompt = self
            .page_size
            .tokens_in(self.page_size.pages_for(prompt_tokens));
        let by_pool = self.capacity_tokens - paged_prompt - self.page_size.get() - 1;
        Ok(max_new_tokens.min(by_length.max(1)).min(by_pool))
    }
}

impl Scheduler {
    /// Takes a request in, at the end of the queue. A request cancelled already ends at once; so does one whose id
    /// is in flight.
    pub fn submit(&mut self, request: Submission) {
        self.cancels_seen.clear();
        let rid = request.rid.clone();
        if self.by_rid.contains_key(&rid) {
            let error = RequestError::DuplicateRequest(rid.as_str().to_owned());
            return self.turn_away(request, error);
        }
        // A probe has a place of its own.
        if !request.intake.is_probe()
            && let Err(error) = self.make_room(request.priority)
        {
            return self.turn_away(request, error);
        }
        self.is_dirty = true;
        self.has_timeouts |= request.timeouts.any();
        if request.cancel.is_raised() {
            self.cancels_seen.push(request.intake);
        }
        let is_cancelled = !self.cancels_seen.is_empty();
        let mut sequence = Sequence::new(request);
        sequence.arrival_prefilled_tokens = self.prefilled_tokens;
        let seq = self.sequences.insert(sequence);
        self.by_rid.insert(rid, seq);
        self.waiting.push_back(seq);
        if is_cancelled {
            self.abort(seq);
        }
    }

    fn turn_away(&mut self, request: Submission, error: RequestError) {
        self.news.push(RequestTokens {
            intake: request.intake,
            tokens: SmallVec::new(),
            logprobs: None,
            cached_tokens: 0,
            num_retractions: 0,
            end: Some(Box::new(RequestEnd::Failed(error))),
        });
    }

    /// Cancels a request wherever it stands. An unknown id is counted: it ended already, or its flag will be seen
    /// when it comes in. So is a flag of another request that had the id before.
    pub fn cancel(&mut self, rid: &RequestId, flag: Option<&CancelFlag>) {
        let is_meant =
            |seq: &SeqId| flag.is_none_or(|flag| self.sequences[*seq].request.cancel.is_same(flag));
        match self.by_rid.get(rid).copied().filter(is_meant) {
            Some(seq) => self.abort(seq),
            None => self.counters.stale_messages += 1,
        }
    }

    /// Cancels everything inside, oldest first.
    pub fn cancel_all(&mut self) {
        let mut inside: Vec<SeqId> = self.by_rid.values().copied().collect();
        inside.sort_unstable();
        for seq in inside {
            self.abort(seq);
        }
    }

    /// The tokenizer found a stop string: the first `kept` output tokens count. It has told the client already.
    pub fn stop_found(&mut self, rid: &RequestId, kept: usize) {
        let Some(&seq) = self.by_rid.get(rid) else {
            self.counters.stale_messages += 1;
            return;
        };
        let sequence = &self.sequences[seq];
        let intake = sequence.request.intake;
        let kept = kept.min(sequence.output.len());
        let reason = FinishReason::StopString(String::new());
        self.finish(seq, RequestEnd::Finished(reason), kept, true);
        self.news.retain(|news| news.intake != intake);
    }

    pub(super) fn abort(&mut self, seq: SeqId) {
        let kept = self.sequences[seq].output.len();
        self.finish(seq, RequestEnd::Finished(FinishReason::Abort), kept, false);
    }

    /// Ends the requests at the head of the queue whose flag was raised and whose message is still on its way.
    pub(super) fn sweep_cancelled(&mut self) {
        let is_cancelled = |seq: &SeqId| {
            !self.swept.contains(seq) && self.sequences[*seq].request.cancel.is_raised()
        };
        let waiting = self.retracted.iter().chain(&self.waiting).copied();
        let head = waiting.take(MAX_CANDIDATES);
        let cancelled: Vec<SeqId> = head.clone().filter(is_cancelled).collect();
        if self.waiting.len() > MAX_CANDIDATES {
            // A plan may sweep again, in another order; a flag raised in between counts for the next plan, so that
            // whose flag a plan saw says all.
            self.swept.extend(head);
        }
        for seq in cancelled {
            self.cancels_seen.push(self.sequences[seq].request.intake);
            self.abort(seq);
        }
    }

    /// The requests whose raised flag the last [`submit`](Self::submit), [`next`](Self::next) or
    /// [`probed`](Self::probed) came upon. A flag is raised by another thread at any time: when it was seen is an input
    /// that comes in no message.
    pub fn cancels_seen(&self) -> &[IntakeId] {
        &self.cancels_seen
    }

    /// The request that has this id now, and its flag.
    pub fn in_flight(&self, rid: &RequestId) -> Option<(IntakeId, &CancelFlag)> {
        let request = &self.sequences[*self.by_rid.get(rid)?].request;
        Some((request.intake, &request.cancel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_pool_serves_one_token_and_a_page_less_serves_none() {
        for page_size in 1..=256 {
            let page_size = PageSize::new(page_size).expect("it is positive");
            let least = IntakeLimits::min_capacity_tokens(page_size);
            let limits = |capacity_tokens| IntakeLimits {
                context_length: 4096,
                capacity_tokens,
                page_size,
            };
            let less = limits(least - page_size.get());
            assert_eq!(less.max_prompt_tokens(), 0, "{less:?}");
            let clipped = limits(least).clip_max_new_tokens(1, 1);
            assert_eq!(clipped.expect("it fits"), 1, "page size {page_size}");
        }
    }
}
