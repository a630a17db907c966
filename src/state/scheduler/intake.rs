//! Submission and cancellation of requests.

use crate::pool::pages::PageSize;
use crate::scheduler::news::FinishReason;
use crate::scheduler::news::RequestEnd;
use crate::scheduler::sequence::Sequence;
use crate::scheduler::submission::CancelFlag;
use crate::scheduler::submission::Submission;
use souffleur_base::error::{PromptTokens, RequestError};
use souffleur_base::ids::{IntakeId, RequestId, SeqId};
use souffleur_base::in_hand;

use super::outbox::Counter;
use super::planning::MAX_CANDIDATES;
use super::{KvAtEnd, Scheduler};

/// Limits that guarantee that an idle engine can run every accepted request.
#[derive(Clone, Copy, Debug)]
pub struct IntakeLimits {
    pub context_length: usize,
    pub capacity_tokens: usize,
    pub page_size: PageSize,
}

impl IntakeLimits {
    /// The smallest pool, in tokens of whole pages, that can serve a prompt of one token.
    pub fn min_capacity_tokens(page_size: PageSize) -> usize {
        // A prompt page, a page to grow into, and two tokens that an admission keeps free.
        page_size.tokens_in(page_size.pages_for(2 * page_size.get() + 2))
    }

    /// The longest prompt that leaves space for one generated token.
    pub fn max_prompt_tokens(&self) -> usize {
        let by_context = self.context_length.saturating_sub(2);
        let page = self.page_size.get();
        // ceil_page(prompt) + page + 1 + one token <= capacity
        let by_pool = self
            .page_size
            .floor(self.capacity_tokens.saturating_sub(page + 2));
        by_context.min(by_pool)
    }

    /// `max_new_tokens` clipped to the space after a prompt.
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
                prompt_tokens: PromptTokens::Exactly(prompt_tokens),
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
    /// Queues a request. A cancelled request ends at once; a request whose id is in flight is rejected.
    pub fn submit(&mut self, request: Submission) {
        in_hand::hold(request.intake);
        self.queue_new(request);
        in_hand::clear();
    }

    fn queue_new(&mut self, request: Submission) {
        self.requests.forget_cancels_seen();
        let rid = request.rid.clone();
        if self.requests.find_by_rid(&rid).is_some() {
            let error = RequestError::DuplicateRequest(rid.as_str().to_owned());
            return self.reject(request, error);
        }
        // A health probe bypasses the queue limit.
        if !request.intake.is_probe()
            && let Err(error) = self.reject_worst(request.priority)
        {
            return self.reject(request, error);
        }
        self.pipeline.note_change();
        let is_cancelled = request.cancel.is_raised();
        if is_cancelled {
            self.requests.note_cancel_seen(request.intake);
        }
        let mut sequence = Sequence::new(request);
        self.note_images(&mut sequence);
        sequence.arrival_prefilled_tokens = self.queue.order().prefilled_tokens();
        let seq = self.requests.insert(sequence);
        self.queue.push(seq);
        if is_cancelled {
            self.abort(seq)
        } else {
            self.find_stored(seq)
        }
    }

    fn reject(&mut self, request: Submission, error: RequestError) {
        self.outbox
            .reject(request.intake, RequestEnd::Failed(error));
    }

    /// Cancels a request in any phase. Counts a stale message instead if the id is unknown (the request has ended, or
    /// intake will read its flag), or if the flag belongs to an earlier request with the same id.
    pub fn cancel(&mut self, rid: &RequestId, flag: Option<&CancelFlag>) {
        let is_addressed =
            |seq: &SeqId| flag.is_none_or(|flag| self.requests[*seq].request.cancel.is_same(flag));
        match self.requests.find_by_rid(rid).filter(is_addressed) {
            Some(seq) => self.abort(seq),
            None => self.outbox.count(Counter::StaleMessages, 1),
        }
    }

    /// Cancels all requests, oldest first.
    pub fn cancel_all(&mut self) {
        for seq in self.requests.live_by_age() {
            self.abort(seq);
        }
    }

    /// Ends a request at a stop string after `kept` output tokens. The tokenizer has already informed the client.
    pub fn stop_found(&mut self, rid: &RequestId, kept: usize) {
        let Some(seq) = self.requests.find_by_rid(rid) else {
            return self.outbox.count(Counter::StaleMessages, 1);
        };
        let sequence = &self.requests[seq];
        let intake = sequence.request.intake;
        let kept = kept.min(sequence.output.len());
        let reason = FinishReason::StopString(String::new());
        in_hand::hold(intake);
        self.finish(seq, RequestEnd::Finished(reason), kept, KvAtEnd::Publish);
        self.outbox.withdraw(intake);
        in_hand::clear();
    }

    pub(super) fn abort(&mut self, seq: SeqId) {
        self.requests.hold(seq);
        let kept = self.requests[seq].output.len();
        let end = RequestEnd::Finished(FinishReason::Abort);
        self.finish(seq, end, kept, KvAtEnd::Discard);
        in_hand::clear();
    }

    /// Ends requests at the head of the queue whose flag is raised and whose cancel message is still in flight.
    pub(super) fn sweep_cancelled(&mut self) {
        let cancelled = {
            let head = self.queue.all().take(MAX_CANDIDATES);
            let cancelled = self.requests.cancelled_among(head.clone());
            if self.queue.waiting().len() > MAX_CANDIDATES {
                self.requests.note_swept(head);
            }
            cancelled
        };
        for seq in cancelled {
            let intake = self.requests[seq].request.intake;
            self.requests.note_cancel_seen(intake);
            self.abort(seq);
        }
    }

    /// Requests whose raised flag the last [`submit`](Self::submit), [`next`](Self::next) or
    /// [`prefixes_probed`](Self::prefixes_probed) found. Other threads raise flags at any time, so a replay needs this
    /// list in addition to the messages.
    pub fn cancels_seen(&self) -> &[IntakeId] {
        self.requests.cancels_seen()
    }

    /// The intake number and id of the request of a sequence that has not ended.
    pub fn request_of(&self, seq: SeqId) -> Option<(IntakeId, &RequestId)> {
        let sequence = self.requests.get(seq)?;
        (!sequence.has_ended).then_some((sequence.request.intake, &sequence.request.rid))
    }

    /// The intake number and flag of the request in flight with this id.
    pub fn in_flight(&self, rid: &RequestId) -> Option<(IntakeId, &CancelFlag)> {
        let request = &self.requests[self.requests.find_by_rid(rid)?].request;
        Some((request.intake, &request.cancel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_pool_serves_one_token_and_one_page_less_serves_none() {
        for page_size in 1..=256 {
            let page_size = PageSize::new(page_size).expect("it is positive");
            let smallest = IntakeLimits::min_capacity_tokens(page_size);
            let limits = |capacity_tokens| IntakeLimits {
                context_length: 4096,
                capacity_tokens,
                page_size,
            };
            let less = limits(smallest - page_size.get());
            assert_eq!(less.max_prompt_tokens(), 0, "{less:?}");
            let clipped = limits(smallest).clip_max_new_tokens(1, 1);
            assert_eq!(clipped.expect("it fits"), 1, "page size {page_size}");
        }
    }
}
