//! A wrapper around the scheduler's state that writes each input and outcome to the message log.
//!
//! The actor holds a [`RecordedScheduler`] instead of the state: it reads the state through [`Deref`], and changes the
//! state only through methods of the wrapper. Without a log, each method costs one more branch.

use std::ops::Deref;
use std::sync::Arc;

use crate::digest::NewsDigest;
use crate::entry::{Entry, FlagOf};
use crate::sink::Recorder;
use souffleur_base::error::{RequestError, StepError};
use souffleur_base::ids::{RequestId, SeqId, StepId, Ticket};
use souffleur_request::CancelFlag;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::prefix_history::{PrefixEvent, StoredMiss};
use souffleur_state::control::Plans;
use souffleur_state::plan::StepPlanned;
use souffleur_state::plan::probe::PrefixesProbed;
use souffleur_state::scheduler::news::{FirstAdmission, RequestTokens};
use souffleur_state::scheduler::submission::{IdFloor, Resume, Submission};
use souffleur_state::scheduler::tier::{PrefixFound, StoreOrder};
use souffleur_state::scheduler::{CacheFlushed, HeldPin, Next, Scheduler};
use souffleur_state::step::{RowResult, StepOutput};
use souffleur_state::vision::{VisionNews, VisionOrder};

pub struct RecordedScheduler {
    /// Dropped first, so that it flushes its buffer before the state is dropped.
    recorder: Option<Recorder>,
    state: Scheduler,
}

impl Deref for RecordedScheduler {
    type Target = Scheduler;

    fn deref(&self) -> &Scheduler {
        &self.state
    }
}

impl Plans for RecordedScheduler {
    fn next(&mut self) -> Next {
        Self::next(self)
    }

    fn prefixes_probed(&mut self, probed: PrefixesProbed) -> Next {
        Self::prefixes_probed(self, probed)
    }

    fn step_planned(&mut self, planned: StepPlanned) -> Next {
        Self::step_planned(self, planned)
    }
}

impl RecordedScheduler {
    pub fn new(state: Scheduler, recorder: Option<Recorder>) -> Self {
        Self { recorder, state }
    }

    pub fn submit(&mut self, request: Submission) {
        self.write(|_| Entry::submit(&request));
        self.state.submit(request);
        self.write_cancels_seen();
    }

    /// See [`Scheduler::resume`]. Each request has a record and a call, since a record's size is limited. The first
    /// message of the first generation changes nothing and is not written.
    pub fn resume(&mut self, resume: Resume, now_s: f64) {
        let Resume { floor, requests } = resume;
        if floor != IdFloor::default() {
            let IdFloor { step, sequences } = floor;
            self.write(|_| Entry::IdFloor { step, sequences });
            let no_requests = Resume {
                floor,
                ..Resume::default()
            };
            self.state.resume(no_requests, now_s);
        }
        for resumption in requests {
            self.write(|_| Entry::resume(&resumption, now_s));
            let one_request = Resume {
                requests: vec![resumption],
                ..Resume::default()
            };
            self.state.resume(one_request, now_s);
            self.write_cancels_seen();
        }
    }

    pub fn cancel(&mut self, rid: &RequestId, flag: Option<&CancelFlag>) {
        self.write(|state| {
            let active = state.in_flight(rid).map(|(_, active)| active);
            let flag = match flag {
                None => FlagOf::Nobody,
                Some(flag) if active.is_some_and(|active| active.is_same(flag)) => FlagOf::Holder,
                Some(_) => FlagOf::Another,
            };
            let rid = rid.clone();
            Entry::Cancel { rid, flag }
        });
        self.state.cancel(rid, flag);
    }

    pub fn cancel_all(&mut self) {
        self.write(|_| Entry::CancelAll);
        self.state.cancel_all();
    }

    pub fn stop_found(&mut self, rid: &RequestId, kept: usize) {
        self.write(|_| Entry::StopFound {
            rid: rid.clone(),
            kept: kept as u64,
        });
        self.state.stop_found(rid, kept);
    }

    /// See [`Scheduler::step_took`]. Written only if decisions depend on the duration.
    pub fn step_took(&mut self, step: StepId, micros: u64) {
        if self.state.wants_time_of(step) {
            self.write(|_| Entry::StepTook { step, micros });
            self.state.step_took(step, micros);
        }
    }

    pub fn step_done(&mut self, step: StepId, result: Result<StepOutput, StepError>) {
        self.write(|_| Entry::StepDone {
            step,
            result: match &result {
                Ok(output) => Ok(output.into()),
                Err(error) => Err(error.clone()),
            },
        });
        self.state.step_done(step, result);
    }

    pub fn pin(
        &mut self,
        namespace: Namespace,
        tokens: Arc<[u32]>,
        expires_s: u64,
    ) -> Result<u64, RequestError> {
        self.write(|_| Entry::Pin {
            namespace: (&namespace).into(),
            tokens: tokens.clone(),
            expires_s,
        });
        self.state.pin(namespace, tokens, expires_s)
    }

    pub fn restore_pin(&mut self, held: HeldPin) {
        self.write(|_| Entry::RestorePin {
            pin: held.pin,
            namespace: (&held.namespace).into(),
            tokens: held.tokens.clone(),
            expires_s: held.expires_s,
        });
        self.state.restore_pin(held);
    }

    pub fn unpin(&mut self, pin: u64) -> bool {
        self.write(|_| Entry::Unpin { pin });
        self.state.unpin(pin)
    }

    pub fn pin_softly(
        &mut self,
        name: u64,
        replaces: Option<u64>,
        namespace: Namespace,
        tokens: Arc<[u32]>,
        expires_s: u64,
    ) {
        self.write(|_| Entry::PinSoftly {
            name,
            replaces,
            namespace: (&namespace).into(),
            tokens: tokens.clone(),
            expires_s,
        });
        self.state
            .pin_softly(name, replaces, namespace, tokens, expires_s);
    }

    pub fn unpin_softly(&mut self, name: u64) -> bool {
        self.write(|_| Entry::UnpinSoftly { name });
        self.state.unpin_softly(name)
    }

    pub fn expire_pins(&mut self, now_s: u64) {
        if self.state.has_expired_pins(now_s) {
            self.write(|_| Entry::ExpirePins { now_s });
            self.state.expire_pins(now_s);
        }
    }

    pub fn expire_requests(&mut self, now_s: f64) {
        if self.state.has_timeouts() {
            self.write(|_| Entry::ExpireRequests { now_s });
            self.state.expire_requests(now_s);
        }
    }

    pub fn set_policy(&mut self, name: &str) -> Result<(), String> {
        self.write(|_| Entry::SetPolicy {
            name: name.to_owned(),
        });
        self.state.set_policy(name)
    }

    pub fn set_eviction_policy(&mut self, name: &str) -> Result<(), String> {
        self.write(|_| Entry::SetEvictionPolicy {
            name: name.to_owned(),
        });
        self.state.set_eviction_policy(name)
    }

    pub fn flush_cache(&mut self) -> Result<u64, RequestError> {
        self.write(|_| Entry::FlushCache);
        self.state.flush_cache()
    }

    pub fn store_serves(&mut self, serves: bool) {
        self.write(|_| Entry::StoreServes { serves });
        self.state.store_serves(serves);
    }

    pub fn prefix_found(&mut self, seq: SeqId, found: PrefixFound) {
        let (blocks, worth) = (found.blocks as u64, found.worth as u64);
        self.write(|_| match found.miss {
            None => Entry::Found {
                seq: seq.into(),
                blocks,
                worth,
            },
            Some(miss) => Entry::FoundShort {
                seq: seq.into(),
                blocks,
                worth,
                miss,
            },
        });
        self.state.prefix_found(seq, found);
    }

    pub fn blocks_fetched(&mut self, ticket: Ticket, n_blocks: usize, miss: Option<StoredMiss>) {
        let blocks = n_blocks as u64;
        self.write(|_| match miss {
            None => Entry::Fetched { ticket, blocks },
            Some(miss) => Entry::FetchedShort {
                ticket,
                blocks,
                miss,
            },
        });
        self.state.blocks_fetched(ticket, n_blocks, miss);
    }

    pub fn blocks_written(&mut self, tickets: &[Ticket], kept: bool) {
        self.write(|_| Entry::Written {
            tickets: tickets.to_vec(),
            kept,
        });
        self.state.blocks_written(tickets, kept);
    }

    /// See [`Scheduler::take_store_orders`]. Not written: the orders' effects appear in steps and messages.
    pub fn take_store_orders(&mut self) -> Vec<StoreOrder> {
        self.state.take_store_orders()
    }

    pub fn vision_told(&mut self, news: VisionNews) {
        self.write(|_| Entry::news_of_vision(&news));
        self.state.vision_told(news);
    }

    /// See [`Scheduler::take_vision_orders`]. Not written: the orders' effects appear in steps and messages.
    pub fn take_vision_orders(&mut self) -> Vec<VisionOrder> {
        self.state.take_vision_orders()
    }

    pub fn set_paused(&mut self, paused: bool) {
        self.write(|_| Entry::SetPaused { paused });
        self.state.set_paused(paused);
    }

    pub fn prefixes_probed(&mut self, reply: PrefixesProbed) -> Next {
        self.write(|_| Entry::Probed(Box::new((&reply).into())));
        let next = self.state.prefixes_probed(reply);
        self.write_cancels_seen();
        self.write(|_| Entry::Outcome(Box::new((&next).into())));
        next
    }

    pub fn step_planned(&mut self, planned: StepPlanned) -> Next {
        self.write(|_| Entry::Planned(Box::new((&planned).into())));
        let next = self.state.step_planned(planned);
        self.write(|_| Entry::Outcome(Box::new((&next).into())));
        next
    }

    #[allow(clippy::should_implement_trait)] // an iterator would end at `Nothing`
    pub fn next(&mut self) -> Next {
        if self.state.must_wait() {
            return Next::Nothing;
        }
        self.write(|_| Entry::Next);
        let next = self.state.next();
        self.write_cancels_seen();
        self.write(|_| Entry::Outcome(Box::new((&next).into())));
        next
    }

    pub fn take_news(&mut self) -> Vec<RequestTokens> {
        let news = self.state.take_news();
        if !news.is_empty() {
            self.write(|_| Entry::News(NewsDigest::from(news.as_slice())));
        }
        news
    }

    /// See [`Scheduler::take_cleared_rows`]. Not written, since no decision depends on it.
    pub fn take_cleared_rows(&mut self) -> Option<Vec<RowResult>> {
        self.state.take_cleared_rows()
    }

    /// See [`Scheduler::take_ended`]. Not written, since no decision depends on it.
    pub fn take_ended(&mut self) -> Vec<SeqId> {
        self.state.take_ended()
    }

    /// See [`Scheduler::take_first_admissions`]. Not written, since no decision depends on it.
    pub fn take_first_admissions(&mut self) -> Vec<FirstAdmission> {
        self.state.take_first_admissions()
    }

    /// See [`Scheduler::note_admitted`]. Not written, since no decision depends on it.
    pub fn note_admitted(&mut self, seq: SeqId, now_s: f64) {
        self.state.note_admitted(seq, now_s);
    }

    /// See [`Scheduler::take_pinned`]. Not written, since no decision depends on it.
    pub fn take_pinned(&mut self) -> Vec<(u64, usize)> {
        self.state.take_pinned()
    }

    /// See [`Scheduler::take_flushed`]. Not written, since no decision depends on it.
    pub fn take_flushed(&mut self) -> Vec<(u64, CacheFlushed)> {
        self.state.take_flushed()
    }

    /// See [`Scheduler::take_prefix_events`]. Not written, since no decision depends on it.
    pub fn take_prefix_events(&mut self) -> Vec<PrefixEvent> {
        self.state.take_prefix_events()
    }

    pub fn flush(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.flush();
        }
    }

    fn write(&mut self, entry: impl FnOnce(&Scheduler) -> Entry) {
        if let Some(recorder) = &mut self.recorder
            && recorder.is_open()
        {
            recorder.push(&entry(&self.state));
        }
    }

    fn write_cancels_seen(&mut self) {
        if !self.state.cancels_seen().is_empty() {
            self.write(|state| Entry::CancelsSeen(state.cancels_seen().to_vec()));
        }
    }
}
