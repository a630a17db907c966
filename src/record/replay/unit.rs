//! The states of one engine unit during a replay, and its requests in flight.

use std::collections::HashMap;
use std::sync::Arc;

use crate::entry::{Entry, FlagOf, ImagesEntry, ResumeEntry, Submitted, with_images};
use souffleur_base::ids::{IntakeId, RequestId};
use souffleur_request::CancelFlag;
use souffleur_state::cache::prefix_history::StoredMiss;
use souffleur_state::control::{ControlStates, Leg};
use souffleur_state::pool::pages::PoolLedger;
use souffleur_state::scheduler::submission::{IdFloor, Resume, Resumption};
use souffleur_state::scheduler::tier::PrefixFound;
use souffleur_state::scheduler::{HeldPin, Next};
use souffleur_state::vision::VisionNews;

const MAX_PROMPT_TOKENS: usize = 1 << 28;
const MAX_REQUESTS: usize = 1 << 20;
/// The largest floor of ids: the ids after the floor do not overflow.
const MAX_FLOOR: u64 = 1 << 62;

pub(super) struct Unit {
    /// Dropped first, so that pages held by the other fields do not count as leaks.
    pub(super) _closing: LedgerCloser,
    pub(super) states: ControlStates,
    /// The next message of the open plan.
    pub(super) open: Option<Leg>,
    /// The message that the last call returned, until its recorded outcome is read.
    pub(super) returned: Option<Next>,
    pub(super) requests: HashMap<IntakeId, InFlight>,
    pub(super) prompt_tokens: usize,
}

pub(super) struct InFlight {
    pub(super) flag: CancelFlag,
    pub(super) prompt_tokens: usize,
}

pub(super) struct LedgerCloser(pub(super) Arc<PoolLedger>);

impl Drop for LedgerCloser {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Unit {
    pub(super) fn new(states: ControlStates) -> Self {
        Self {
            _closing: LedgerCloser(states.ledger.clone()),
            states,
            open: None,
            returned: None,
            requests: HashMap::new(),
            prompt_tokens: 0,
        }
    }

    pub(super) fn raise(&self, seen: &[IntakeId]) {
        for in_flight in seen.iter().filter_map(|intake| self.requests.get(intake)) {
            in_flight.flag.raise();
        }
    }

    /// Submits a request, with these images.
    pub(super) fn submit(
        &mut self,
        submitted: Submitted,
        images: &ImagesEntry,
        seen: &[IntakeId],
    ) -> Result<(), String> {
        let prompt_tokens = submitted.request.prompt.len();
        let flag = self.register(submitted.request.intake, prompt_tokens, seen)?;
        let submission = with_images(submitted.submission(flag)?, images)?;
        self.states.scheduler.submit(submission);
        Ok(())
    }

    /// Continues a request of an earlier generation, with these images.
    pub(super) fn resume(
        &mut self,
        entry: ResumeEntry,
        images: &ImagesEntry,
        seen: &[IntakeId],
    ) -> Result<(), String> {
        let request = &entry.submitted.request;
        // The told tokens are a part of the prefill, like the prompt.
        let prompt_tokens = request.prompt.len() + entry.told.len();
        let flag = self.register(request.intake, prompt_tokens, seen)?;
        let now_s = entry.now_s;
        let resumption = entry.resumption(flag)?;
        let resumption = Resumption {
            submission: with_images(resumption.submission, images)?,
            ..resumption
        };
        let resume = Resume {
            requests: vec![resumption],
            ..Resume::default()
        };
        self.states.scheduler.resume(resume, now_s);
        Ok(())
    }

    fn begin_after(&mut self, floor: IdFloor) -> Result<(), String> {
        let IdFloor { step, sequences } = floor;
        if step.max(sequences) > MAX_FLOOR {
            return Err(format!(
                "the ids of steps begin at {step}, those of sequences at {sequences}, the limit is {MAX_FLOOR}"
            ));
        }
        let resume = Resume {
            floor,
            ..Resume::default()
        };
        // The time is that of requests, of which there are none.
        self.states.scheduler.resume(resume, 0.0);
        Ok(())
    }

    fn restore_pin(&mut self, held: HeldPin) -> Result<(), String> {
        if held.pin > MAX_FLOOR {
            return Err(format!(
                "the number of a pin is {}, the limit is {MAX_FLOOR}",
                held.pin
            ));
        }
        self.states.scheduler.restore_pin(held);
        Ok(())
    }

    /// Registers a request, and returns its cancel flag.
    fn register(
        &mut self,
        intake: IntakeId,
        prompt_tokens: usize,
        seen: &[IntakeId],
    ) -> Result<CancelFlag, String> {
        let flag = CancelFlag::default();
        self.prompt_tokens += prompt_tokens;
        if self.requests.len() >= MAX_REQUESTS {
            return Err(format!(
                "more than {MAX_REQUESTS} requests are in flight, which is the limit"
            ));
        }
        if self.prompt_tokens > MAX_PROMPT_TOKENS {
            return Err(format!(
                "the requests in flight have {} prompt tokens, limit is {MAX_PROMPT_TOKENS}",
                self.prompt_tokens
            ));
        }
        let in_flight = InFlight {
            flag: flag.clone(),
            prompt_tokens,
        };
        self.requests.insert(intake, in_flight);
        self.raise(seen);
        Ok(flag)
    }

    pub(super) fn cancel(&mut self, rid: &RequestId, flag: FlagOf) {
        let scheduler = &mut self.states.scheduler;
        let flag = match flag {
            FlagOf::Nobody => None,
            FlagOf::Holder => scheduler.in_flight(rid).map(|(_, flag)| flag.clone()),
            FlagOf::Another => Some(CancelFlag::default()),
        };
        scheduler.cancel(rid, flag.as_ref());
    }

    pub(super) fn stop_found(&mut self, rid: &RequestId, kept: u64) {
        let scheduler = &mut self.states.scheduler;
        let intake = scheduler.in_flight(rid).map(|(intake, _)| intake);
        scheduler.stop_found(rid, usize::try_from(kept).unwrap_or(usize::MAX));
        intake.into_iter().for_each(|intake| self.forget(intake));
    }

    /// Repeats a call that a user, the clock or the KV store caused. A call that failed in the recording fails again.
    pub(super) fn repeat_call(&mut self, entry: Entry) -> Result<(), String> {
        let scheduler = &mut self.states.scheduler;
        match entry {
            Entry::CancelAll => scheduler.cancel_all(),
            Entry::Pin {
                namespace,
                tokens,
                expires_s,
            } => drop(scheduler.pin((&namespace).into(), tokens, expires_s)),
            Entry::Unpin { pin } => drop(scheduler.unpin(pin)),
            Entry::RestorePin {
                pin,
                namespace,
                tokens,
                expires_s,
            } => self.restore_pin(HeldPin {
                pin,
                namespace: (&namespace).into(),
                tokens,
                expires_s,
            })?,
            Entry::PinSoftly {
                name,
                replaces,
                namespace,
                tokens,
                expires_s,
            } => scheduler.pin_softly(name, replaces, (&namespace).into(), tokens, expires_s),
            Entry::UnpinSoftly { name } => drop(scheduler.unpin_softly(name)),
            Entry::ExpirePins { now_s } => scheduler.expire_pins(now_s),
            Entry::ExpireRequests { now_s } => scheduler.expire_requests(now_s),
            Entry::SetPolicy { name } => drop(scheduler.set_policy(&name)),
            Entry::SetEvictionPolicy { name } => drop(scheduler.set_eviction_policy(&name)),
            Entry::FlushCache => drop(scheduler.flush_cache()),
            Entry::SetPaused { paused } => scheduler.set_paused(paused),
            Entry::StepTook { step, micros } => scheduler.step_took(step, micros),
            Entry::StoreServes { serves } => scheduler.store_serves(serves),
            Entry::Found { seq, blocks, worth } => {
                scheduler.prefix_found(seq.into(), lookup_answer((blocks, worth), None));
            }
            Entry::FoundShort {
                seq,
                blocks,
                worth,
                miss,
            } => scheduler.prefix_found(seq.into(), lookup_answer((blocks, worth), Some(miss))),
            Entry::Fetched { ticket, blocks } => {
                scheduler.blocks_fetched(ticket, to_usize(blocks), None);
            }
            Entry::FetchedShort {
                ticket,
                blocks,
                miss,
            } => scheduler.blocks_fetched(ticket, to_usize(blocks), Some(miss)),
            Entry::Written { tickets, kept } => scheduler.blocks_written(&tickets, kept),
            Entry::IdFloor { step, sequences } => {
                self.begin_after(IdFloor { step, sequences })?;
            }
            other => return self.repeat_news(other),
        }
        Ok(())
    }

    /// Repeats news of the Vision actor.
    fn repeat_news(&mut self, entry: Entry) -> Result<(), String> {
        let news = match entry {
            Entry::VisionRun(encoding) => VisionNews::Run(encoding.map(Into::into)),
            Entry::Encoded { tickets } => VisionNews::Encoded {
                tickets: tickets.into(),
                vectors: None,
            },
            Entry::NotEncoded { tickets, reason } => VisionNews::Failed {
                tickets: tickets.into(),
                reason,
            },
            other => return Err(format!("unexpected record type {}", other.message())),
        };
        self.states.scheduler.vision_told(news);
        Ok(())
    }

    pub(super) fn forget(&mut self, intake: IntakeId) {
        if let Some(in_flight) = self.requests.remove(&intake) {
            self.prompt_tokens -= in_flight.prompt_tokens;
        }
    }
}

/// The store's answer to a lookup, with an empty path, since a replay fetches nothing.
fn lookup_answer((blocks, worth): (u64, u64), miss: Option<StoredMiss>) -> PrefixFound {
    PrefixFound {
        path: Arc::default(),
        blocks: to_usize(blocks),
        worth: to_usize(worth),
        miss,
    }
}

fn to_usize(blocks: u64) -> usize {
    usize::try_from(blocks).unwrap_or(usize::MAX)
}
