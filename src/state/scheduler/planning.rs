//! Builds the scheduler's next plan request: settlements, candidates and the decode.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::plan::prefill_adder::{PrefillAdder, PrefillLimits};
use crate::plan::{
    AdmitRequest, Candidate, DecodeDemand, PlanStep, PublishKey, ReservePages, Settle,
    SettleCheckpoint, SettleRelease, Verdict,
};
use crate::pool::pages::{EvictedPages, PageSize, Pages};
use crate::scheduler::sequence::{Phase, Sequence, SequenceKv};
use souffleur_base::ids::SeqId;
use souffleur_base::in_hand;

use super::pipeline::Returned;
use super::rooms::DecodeRows;
use super::{Next, Scheduler};

/// Upper bound of candidates per plan; later plans admit the rest.
pub(super) const MAX_CANDIDATES: usize = 256;

impl Scheduler {
    /// Decides the next message: `Nothing` while a plan is open or two steps are in flight. The answer to a plan goes
    /// to [`Scheduler::step_planned`].
    #[allow(clippy::should_implement_trait)] // an iterator would end at `Nothing`
    pub fn next(&mut self) -> Next {
        if self.must_wait() {
            return Next::Nothing;
        }
        self.pipeline.begin_plan(false);
        self.requests.begin_sweep();
        self.queue.order_mut().take_next_policy();
        if self.pipeline.is_recovering() {
            return self.recover();
        }
        if self.hosts.flush_is_due() {
            return self.flush();
        }
        self.pipeline.begin_plan(self.hosts.asks_for_flush());
        self.sweep_before_plan();
        match self.probe_due() {
            Some(need) => self.probe(need),
            None => self.open_plan(),
        }
    }

    /// Ends cancelled requests, begins the next trial, and allows admissions again if the batch is empty or may be
    /// preempted.
    pub(super) fn sweep_before_plan(&mut self) {
        self.sweep_cancelled();
        self.begin_trial();
        self.queue.forget_preempted();
        if self.preempts() || self.batch.is_empty() {
            self.batch.set_full(false);
        }
    }

    pub(super) fn open_plan(&mut self) -> Next {
        let cleared = self.retract_cleared();
        let unencoded = self.retract_unencoded();
        let mut settle = self.take_settlements();
        settle.extend(cleared);
        settle.extend(unencoded);
        let pins = self.hosts.pins_mut().take_demands();
        let has_passed = self.has_passed_windows();
        let decode = self.plan_decode();
        if self.considers_queue(&decode.seqs) {
            self.order_queue();
        }
        let admit = self.admit_request(&decode.seqs);
        let touch = match &admit {
            Some(_) => self.prefixes_to_touch(),
            None => Vec::new(),
        };
        let decode = match &admit {
            Some(_) => decode,
            None => self.make_room(decode),
        };
        let evict_tokens = self.space_for_drafts(&decode);
        let needs_tree = !settle.is_empty()
            || !pins.is_empty()
            || admit.is_some()
            || self.pipeline.has_returned()
            || has_passed
            || self.has_unsaved(!decode.seqs.is_empty())
            || evict_tokens > 0
            || self.queue.order().new_eviction_policy().is_some();
        if !needs_tree {
            return self.plan_decode_alone(decode);
        }
        let (decode, decode_demand) = decode.into_demand();
        let request = PlanStep {
            settle,
            pins,
            touch,
            admit,
            decode_demand,
            evict_tokens,
            ..self.empty_request()
        };
        self.pipeline.open(decode, None);
        Next::PlanStep(Box::new(request))
    }

    /// True when [`next`](Self::next) would return `Nothing` immediately, without side effects.
    pub fn must_wait(&self) -> bool {
        self.pipeline.must_wait()
    }

    /// A plan request without demands, which returns the memory that a probe released.
    pub(super) fn empty_request(&mut self) -> PlanStep {
        let Returned {
            pages: returned,
            rows: returned_rows,
            states: returned_states,
            windows: mut returned_windows,
        } = self.pipeline.take_returned();
        returned_windows.append(self.take_passed_windows());
        let (free_pages, free_rows) = (self.memory.free_pages(), self.memory.free_rows());
        PlanStep {
            returned,
            returned_rows,
            returned_states,
            returned_windows,
            free_windows: self.memory.free_windows(),
            has_windows: self.limits.windows.is_some(),
            free_states: self.memory.free_states(),
            max_pinned_states: self.limits.max_pinned_states(),
            eviction_policy: self.queue.order_mut().take_new_eviction_policy(),
            saves: self.save_demand(),
            ..PlanStep::empty(self.pipeline.next_step(), free_pages, free_rows)
        }
    }

    /// A decode without settlements and candidates needs the tree only to evict, and the pools only to append.
    fn plan_decode_alone(&mut self, decode: DecodeRows) -> Next {
        let DecodeRows { seqs, growing, .. } = decode;
        self.pipeline.close();
        if seqs.is_empty() {
            self.reset_ratio_when_idle();
            return self.run_slice();
        }
        if growing.is_empty() {
            self.batch.ratio_mut().decay();
            return self.run_step(&seqs);
        }
        self.pipeline.open(seqs, None);
        if growing.len() > self.memory.free_pages() || !self.has_windows_for(growing.len()) {
            let request = PlanStep {
                decode_demand: Some(DecodeDemand { growing }),
                ..self.empty_request()
            };
            return Next::PlanStep(Box::new(request));
        }
        Next::ReservePages(Box::new(ReservePages {
            step: self.pipeline.next_step(),
            returned: Pages::empty(),
            evicted: EvictedPages::empty(),
            returned_rows: Vec::new(),
            returned_states: Vec::new(),
            returned_windows: self.take_passed_windows(),
            demands: Vec::new(),
            growing,
            verdict: Box::new(Verdict::default()),
        }))
    }

    /// Takes the settlements: prefilled tokens to publish, memory of ended sequences and locks to release.
    pub(super) fn take_settlements(&mut self) -> Vec<Settle> {
        let mut settle = Vec::new();
        for seq in self.batch.take_extended() {
            self.requests.hold(seq);
            let boundaries = self.boundaries_of(seq);
            if self.publishes_nothing(seq) {
                self.release_old_windows(seq);
            }
            if let Some(sequence) = self.requests.get_mut(seq)
                && !sequence.has_ended
                && let Some(checkpoint) = checkpoint_of(seq, sequence, boundaries)
            {
                settle.push(Settle::Checkpoint(Box::new(checkpoint)));
            }
        }
        for seq in self.batch.take_ended() {
            self.requests.hold(seq);
            if self.awaits_state(seq) {
                self.batch.keep_ended(seq);
                continue;
            }
            let boundaries = self.boundaries_of(seq);
            if let Some(sequence) = self.requests.remove(seq) {
                let page = self.limits.page_size;
                self.pipeline
                    .drop_edits(sequence.kv.as_ref().map(|kv| kv.row));
                settle.extend(release_of(seq, sequence, page, boundaries));
            }
        }
        in_hand::clear();
        settle.extend(self.hosts.pins_mut().take_released());
        if settle.iter().any(Settle::publishes) && self.hosts.pins().are_owed() {
            self.hosts.pins_mut().demand_owed();
        }
        settle
    }

    /// True for an ended sequence whose recurrent state is to be cached while steps in flight include the sequence.
    /// The steps may skip it, and a state cannot be rolled back, so its position is known only after these steps.
    pub(super) fn awaits_state(&self, seq: SeqId) -> bool {
        let Some(sequence) = self.requests.get(seq) else {
            return false;
        };
        let has_states = sequence.kv.as_ref().is_some_and(|kv| kv.states.is_some());
        has_states && sequence.publish && sequence.rows_in_flight > 0
    }

    /// The running sequences whose next token can be planned; none while paused. A sequence that needs a page for it is
    /// in `growing`.
    pub(super) fn decode_rows(&self) -> DecodeRows {
        let page = self.limits.page_size;
        let running: &[SeqId] = if self.is_paused() {
            &[]
        } else {
            self.batch.running()
        };
        let mut rows = DecodeRows {
            seqs: Vec::with_capacity(running.len()),
            growing: Vec::with_capacity(running.len()),
            max_room: 1,
            n_short: 0,
        };
        for &seq in running {
            let sequence = self.requests.noted(seq);
            if !sequence.can_decode() {
                continue;
            }
            rows.seqs.push(seq);
            rows.max_room = rows.max_room.max(sequence.max_room());
            let kv = sequence.held_kv();
            if page.tokens_in(kv.n_pages) <= kv.committed {
                rows.growing.push(seq);
            }
        }
        in_hand::clear();
        rows
    }

    /// As [`Self::decode_rows`], for the plan being built: sequences that need a page also release old window pages.
    pub(super) fn plan_decode(&mut self) -> DecodeRows {
        let rows = self.decode_rows();
        self.release_windows_of(&rows.growing);
        rows
    }

    pub(super) fn release_windows_of(&mut self, growing: &[SeqId]) {
        if self.limits.windows.is_none() {
            return;
        }
        for &seq in growing {
            self.requests.hold(seq);
            self.release_old_windows(seq);
        }
        in_hand::clear();
    }

    pub(super) fn considers_queue(&self, decode: &[SeqId]) -> bool {
        !self.is_paused()
            && !self.batch.is_full()
            && !self.has_suspects()
            && !self.queue.waiting().is_empty()
            && !self.defers_prefill(decode)
    }

    /// This plan's candidates: the chunked request, retracted requests, the queue in policy order; during trials only
    /// the suspect. The sequences in `decode` run if no candidate fits, or in the same step.
    pub(super) fn admit_request(&mut self, decode: &[SeqId]) -> Option<AdmitRequest> {
        let is_full = self.batch.is_full();
        let is_closed = (is_full || self.queue.len() == 0) && self.batch.chunked().is_none();
        if is_closed || self.is_paused() || self.defers_prefill(decode) || self.tower_has_turn() {
            return None;
        }
        let mut candidates: Vec<Candidate> = Vec::new();
        if let Some(seq) = self.batch.chunked() {
            candidates.push(self.candidate(seq));
        }
        if !is_full {
            let ready = self.ready_candidates();
            candidates.extend(ready.into_iter().map(|seq| self.candidate(seq)));
        }
        if candidates.is_empty() {
            return None;
        }
        let first = candidates[0].continues_at.unwrap_or(0);
        let mixed_rows = self.mixed_rows(decode, first);
        let limits = PrefillLimits {
            page_size: self.limits.page_size.get(),
            max_prefill_tokens: self.limits.max_prefill_tokens,
            chunked_prefill_size: self.limits.chunk_tokens,
            mixed_rows,
        };
        let running = self.batch.running().iter();
        let running = running.map(|seq| self.reserve_of(*seq));
        let adder = PrefillAdder::new(limits, self.batch.ratio().get(), running);
        Some(AdmitRequest {
            adder: match self.step_pace(decode) {
                Some(pace) => adder.with_pace(pace),
                None => adder,
            },
            candidates,
            max_new_rows: self.memory.free_rows(),
            prefix_wait: self.limits.prefix_wait,
            mixes: mixed_rows > 0,
            states: self.limits.state_rules(),
            windows: self.window_budget(),
            preemption: self.preemptible(decode),
            block_tokens: self.tier.as_ref().map_or(0, |tier| tier.block_tokens()),
        })
    }

    fn candidate(&mut self, seq: SeqId) -> Candidate {
        self.requests.hold(seq);
        let rank = self.rank(seq);
        let stored = self.stored_of(seq);
        let unencoded = self.unencoded(seq);
        let tokens = self.fill_of(seq);
        let sequence = &self.requests[seq];
        let images = sequence.request.images.as_ref();
        let states = sequence.kv.as_ref().and_then(|kv| kv.states.as_ref());
        let kv_tokens = states.map(|states| states.kv_tokens);
        let continues_at = (sequence.phase == Phase::Chunked)
            .then(|| sequence.kv.as_ref().map(|kv| kv.committed))
            .flatten();
        let candidate = Candidate {
            seq,
            intake: sequence.request.intake,
            namespace: sequence.request.namespace.clone(),
            match_limit: sequence.match_limit_of(tokens.len()),
            tokens,
            max_new_tokens: sequence.remaining_new_tokens(),
            ignore_eos: sequence.request.sampling.ignore_eos,
            waits: sequence.waits,
            rank,
            wants_logprobs: sequence.request.logprobs.is_some(),
            continues_at,
            anchors: sequence.request.anchors.clone(),
            bypasses_cache: sequence.request.bypasses_cache,
            kv_tokens: kv_tokens.unwrap_or(0),
            stored,
            unencoded,
            whole: images.and_then(|images| images.whole().cloned()),
        };
        in_hand::clear();
        candidate
    }
}

fn checkpoint_of(
    seq: SeqId,
    sequence: &mut Sequence,
    boundaries: SmallVec<[usize; 4]>,
) -> Option<SettleCheckpoint> {
    if sequence.request.bypasses_cache {
        return None;
    }
    let len = sequence.fill.len();
    let stored_tokens = sequence.stored_tokens();
    let kv = sequence.kv.as_mut()?;
    let key = PublishKey {
        namespace: sequence.request.namespace.clone(),
        tokens: sequence.fill.clone(),
        len: kv.committed.min(len),
        prompt_len: sequence.request.prompt.len(),
        inserted_tokens: kv.inserted_tokens,
        priority: sequence.request.priority.unwrap_or(0),
        written_by: sequence.last_step,
        boundaries,
        stored_tokens,
    };
    Some(SettleCheckpoint {
        seq,
        intake: sequence.request.intake,
        key,
        protected_pages: kv.protected_pages,
        private: kv.private.take(),
        lock: std::mem::take(&mut kv.lock),
        states: match &mut kv.states {
            Some(states) => states.take_saved(),
            None => Vec::new(),
        },
        windows: kv.windows.take(),
    })
}

fn release_of(
    seq: SeqId,
    mut sequence: Sequence,
    page: PageSize,
    boundaries: SmallVec<[usize; 4]>,
) -> Option<Settle> {
    let mut kv = sequence.kv.take()?;
    let states = kv.states.take();
    let publishes = sequence.publish && !sequence.request.bypasses_cache;
    let key = publishes.then(|| publish_key(&sequence, &kv, states.is_some()));
    let key = key.map(|mut key| {
        key.boundaries = boundaries;
        if kv.windows.is_some() {
            key.boundaries.push(key.len);
        }
        key
    });
    let (states, returned_states) = match (states, &key) {
        (None, _) => (Vec::new(), Vec::new()),
        (Some(states), None) => (Vec::new(), states.give_back()),
        (Some(states), Some(key)) => states.publish(kv.committed, key.len, page.get()),
    };
    let SequenceKv {
        row,
        lock,
        protected_pages,
        private,
        windows,
        ..
    } = kv;
    Some(Settle::Release(Box::new(SettleRelease {
        seq,
        intake: sequence.request.intake,
        row: Some(row),
        key,
        protected_pages,
        private,
        lock,
        states,
        returned_states,
        windows,
    })))
}

/// The tokens that a finished sequence publishes. The last token was never an input, so it has no K/V. Steps queued
/// before the end may have written further K/V, which is discarded. A recurrent state cannot be rolled back: with one,
/// all known tokens with K/V are published.
fn publish_key(sequence: &Sequence, kv: &SequenceKv, has_state: bool) -> PublishKey {
    let prompt_len = sequence.request.prompt.len();
    let n_output = if has_state {
        sequence.output.len()
    } else {
        sequence.kept_output.saturating_sub(1)
    };
    let tokens: Arc<[u32]> = sequence.all_tokens(n_output);
    PublishKey {
        namespace: sequence.request.namespace.clone(),
        len: tokens.len().min(kv.committed),
        tokens,
        prompt_len,
        inserted_tokens: kv.inserted_tokens,
        priority: sequence.request.priority.unwrap_or(0),
        written_by: sequence.last_step,
        boundaries: SmallVec::new(),
        stored_tokens: sequence.stored_tokens(),
    }
}

/// Releases all memory of a sequence without publishing, and restarts it.
pub(super) fn retract_of(seq: SeqId, sequence: &mut Sequence) -> Option<Settle> {
    let kv = sequence.kv.take()?;
    sequence.restart();
    let SequenceKv {
        row,
        lock,
        protected_pages,
        private,
        states,
        windows,
        ..
    } = kv;
    Some(Settle::Release(Box::new(SettleRelease {
        seq,
        intake: sequence.request.intake,
        row: Some(row),
        key: None,
        protected_pages,
        private,
        lock,
        states: Vec::new(),
        returned_states: states.map_or_else(Vec::new, |states| states.give_back()),
        windows,
    })))
}
