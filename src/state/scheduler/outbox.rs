//! The scheduler's outgoing messages: for clients, for the executor, for the diagnosis of misses, for metrics.

use smallvec::SmallVec;

use super::draft_counts::DraftCounts;
use super::news::{FirstAdmission, RequestEnd, RequestTokens};
use super::sequence::Sequence;
use super::stats::EngineStats;
use super::submission::Submission;
use crate::cache::prefix_history::PrefixEvent;
use crate::sampling::RowLogprobs;
use crate::speculation::RowDrafts;
use souffleur_base::ids::{IntakeId, SeqId};

#[derive(Default)]
pub(super) struct Outbox {
    news: Vec<RequestTokens>,
    prefix_events: Vec<PrefixEvent>,
    first_admissions: Vec<FirstAdmission>,
    /// Sequences that ended with decodes in flight, for a reason that the executor cannot see in results.
    ended: Vec<SeqId>,
    reported_tokens: u64,
    drafts: DraftCounts,
    counts: [u64; Counter::StaleMessages as usize + 1],
}

/// A counter over the engine's life: a field of [`EngineStats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counter {
    Steps,
    MixedSteps,
    IntegrityFailures,
    Retractions,
    Preemptions,
    RetractedInputTokens,
    RetractedOutputTokens,
    PromptTokens,
    CachedTokens,
    EvictedTokens,
    EvictedWindows,
    /// Must be the last variant: it determines the number of counters.
    StaleMessages,
}

impl Outbox {
    #[inline]
    pub(super) fn count(&mut self, counter: Counter, by: usize) {
        self.counts[counter as usize] += by as u64;
    }

    /// Reserves capacity for messages about this many requests.
    #[inline]
    pub(super) fn reserve(&mut self, n_requests: usize) {
        self.news.reserve(n_requests);
    }

    /// Appends a message about a request; an end is merged into the message with the tokens before it.
    #[inline]
    pub(super) fn report(
        &mut self,
        sequence: &Sequence,
        tokens: SmallVec<[u32; 2]>,
        logprobs: Option<Box<RowLogprobs>>,
        end: Option<Box<RequestEnd>>,
    ) {
        let intake = sequence.request.intake;
        self.reported_tokens += tokens.len() as u64;
        if let Some(last) = self.news.last_mut()
            && last.intake == intake
            && last.end.is_none()
            && tokens.is_empty()
            && logprobs.is_none()
        {
            last.end = end;
            return;
        }
        self.news.push(RequestTokens {
            intake,
            tokens,
            logprobs,
            cached_tokens: sequence.cached_tokens.unwrap_or(0),
            loaded_tokens: sequence.loaded_tokens(),
            num_retractions: sequence.retractions,
            drafts: RowDrafts::default(),
            end,
        });
    }

    #[inline]
    pub(super) fn reject(&mut self, intake: IntakeId, end: RequestEnd) {
        self.news.push(RequestTokens {
            intake,
            tokens: SmallVec::new(),
            logprobs: None,
            cached_tokens: 0,
            loaded_tokens: 0,
            num_retractions: 0,
            drafts: RowDrafts::default(),
            end: Some(Box::new(end)),
        });
    }

    #[inline]
    pub(super) fn withdraw(&mut self, intake: IntakeId) {
        self.news.retain(|news| news.intake != intake);
    }

    #[inline]
    pub(super) fn take_news(&mut self) -> Vec<RequestTokens> {
        std::mem::take(&mut self.news)
    }

    #[inline]
    pub(super) fn note_first_admission(&mut self, seq: SeqId, request: &Submission) {
        self.first_admissions.push(FirstAdmission {
            seq,
            intake: request.intake,
            submitted_s: request.submitted_s,
        });
    }

    #[inline]
    pub(super) fn take_first_admissions(&mut self) -> Vec<FirstAdmission> {
        std::mem::take(&mut self.first_admissions)
    }

    #[inline]
    pub(super) fn note_ended(&mut self, seq: SeqId) {
        self.ended.push(seq);
    }

    #[inline]
    pub(super) fn take_ended(&mut self) -> Vec<SeqId> {
        std::mem::take(&mut self.ended)
    }

    #[inline]
    pub(super) fn reported_tokens(&self) -> u64 {
        self.reported_tokens
    }

    /// Adds the drafts of a row to the message with its tokens, which was appended last.
    #[inline]
    pub(super) fn note_drafts(&mut self, sequence: &Sequence, drafts: RowDrafts) {
        let request = &sequence.request;
        let Some(news) = self.news.last_mut() else {
            return;
        };
        if news.intake != request.intake || news.tokens.is_empty() {
            return;
        }
        news.drafts = drafts;
        let room = request.sampling.speculative_num_draft_tokens;
        // A prefill computes the first token.
        let is_decode = sequence.output.len() > news.tokens.len();
        if is_decode && room.is_some_and(|room| room > 1) {
            self.drafts.add(drafts, news.tokens.len() - 1);
        }
    }

    #[inline]
    pub(super) fn draft_counts(&self) -> &DraftCounts {
        &self.drafts
    }

    #[inline]
    pub(super) fn note_prefix_event(&mut self, event: PrefixEvent) {
        self.prefix_events.push(event);
    }

    #[inline]
    pub(super) fn take_prefix_events(&mut self) -> Vec<PrefixEvent> {
        std::mem::take(&mut self.prefix_events)
    }

    #[inline]
    pub(super) fn stats(&self, stats: EngineStats) -> EngineStats {
        let of = |counter: Counter| self.counts[counter as usize];
        EngineStats {
            steps: of(Counter::Steps),
            mixed_steps: of(Counter::MixedSteps),
            integrity_failures: of(Counter::IntegrityFailures),
            stale_messages: of(Counter::StaleMessages),
            retractions: of(Counter::Retractions),
            preemptions: of(Counter::Preemptions),
            retracted_input_tokens: of(Counter::RetractedInputTokens),
            retracted_output_tokens: of(Counter::RetractedOutputTokens),
            prompt_tokens: of(Counter::PromptTokens),
            cached_tokens: of(Counter::CachedTokens),
            evicted_tokens: of(Counter::EvictedTokens),
            evicted_windows: of(Counter::EvictedWindows),
            ..stats
        }
    }
}
