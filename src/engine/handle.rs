//! [`EngineHandle`]: the interface of a host (the embedding program) to one engine.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use actix::{Addr, MailboxError, Recipient};
use tokio::sync::oneshot;

use crate::ModelInfo;
use crate::generation::{Canceller, Generation};
use souffleur_actors::call::{Asked, Prompts};
use souffleur_actors::messages::{
    CancelAll, CancelRequest, Doors, Drain, FlushCache, Generate, GetLoad, GetLoads,
    GetPrefixReport, GetStats, PeekPrefix, PoliciesSet, SetPaused, SetPolicy, TokenEvent,
};
use souffleur_actors::pictures::ImageReader;
use souffleur_actors::status::UnitWatch;
use souffleur_actors::watchdog::{AddressSlot, FailureWatch, StopUnit, Watchdog};
use souffleur_base::error::RequestError;
use souffleur_base::ids::RequestId;
use souffleur_chaos::Chaos;
use souffleur_kv_events::{KvEventSubscription, KvEventsInfo, KvEventsOutlet, SubscribeError};
use souffleur_metrics::{EngineLoad, RequestMetrics};
use souffleur_model::text::TextModel;
use souffleur_request::admission::{Admission, Permit};
use souffleur_request::sink::EventSink;
use souffleur_request::{CancelFlag, GenerateRequest};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::prefix_history::PrefixReport;
use souffleur_state::request_limits::RequestLimits;
use souffleur_state::scheduler::CacheFlushed;
use souffleur_state::scheduler::stats::EngineStats;

type AdmitOne = fn(&Arc<Admission>) -> Result<Permit, RequestError>;

/// The time that a shutdown waits for cancelled requests after its deadline.
const CANCEL_GRACE: Duration = Duration::from_secs(2);
/// The time that a shutdown then waits for the running step.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// The time after which a shutdown asks for a restarted Tokenizer.
const DRAIN_RETRY: Duration = Duration::from_millis(5);
const DOWN_REASON: &str = "it is being rebuilt or has stopped: try again later";

/// A host's access to one engine. Cheap to clone; the engine stops when the last clone is dropped.
#[derive(Clone)]
pub struct EngineHandle {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) model: ModelInfo,
    pub(super) replicas: usize,
    pub(super) ranks: usize,
    /// Compute threads of the replica with the fewest; `None` on a GPU and for a host's executor.
    pub(super) compute_threads: Option<usize>,
    pub(super) text: Option<Arc<TextModel>>,
    pub(super) images: Option<Arc<ImageReader>>,
    pub(super) admission: Arc<Admission>,
    pub(super) kv_events: Option<KvEventsOutlet>,
    pub(super) metrics: RequestMetrics,
    pub(super) channel_events: usize,
    pub(super) max_logprob_entries: usize,
    pub(super) max_prefill_tokens: usize,
    pub(super) request_limits: RequestLimits,
    pub(super) doors: AddressSlot,
    pub(super) watchdog: Addr<Watchdog>,
    pub(super) failure: FailureWatch,
    pub(super) status: UnitWatch,
    /// The bytes that the KV store may use on its disk; `None` without a store.
    pub(super) store_bytes: Option<u64>,
    pub(super) encodes_images: bool,
    pub(super) thread: RwLock<Option<JoinHandle<()>>>,
    pub(super) next_soft_pin: AtomicU64,
    pub(super) chaos: Chaos,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.watchdog.do_send(StopUnit);
    }
}

impl EngineHandle {
    pub(super) fn new(inner: Inner) -> Self {
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Sends a request. The stream ends with exactly one terminal event.
    ///
    /// # Errors
    /// [`RequestError::Overloaded`] or [`RequestError::ShuttingDown`] at admission, [`RequestError::EngineDown`] after the
    /// engine's end; everything else arrives as the terminal event. While actors are restarted, requests wait.
    pub fn generate(&self, request: GenerateRequest) -> Result<Generation, RequestError> {
        let mut generations = self.generate_all(vec![request])?;
        Ok(generations.pop().expect("one request makes one generation"))
    }

    /// Sends a probe (a request that the server itself makes) on a reserved permit, so that a full queue does not
    /// refuse the probe.
    pub fn probe(&self, request: GenerateRequest) -> Result<Generation, RequestError> {
        let mut generations = self.stream(vec![request], Admission::admit_probe)?;
        Ok(generations.pop().expect("one request makes one generation"))
    }

    /// Sends several requests, or none if one of them is refused. Each counts as one for the admission limits. A prompt
    /// that several requests share is encoded once.
    ///
    /// # Errors
    /// As [`EngineHandle::generate`], for the first refused request.
    pub fn generate_all(
        &self,
        requests: Vec<GenerateRequest>,
    ) -> Result<Vec<Generation>, RequestError> {
        self.stream(requests, Admission::admit)
    }

    /// Sends requests as one call. Each gets a permit from `admit`, and a channel for its events.
    fn stream(
        &self,
        requests: Vec<GenerateRequest>,
        admit: AdmitOne,
    ) -> Result<Vec<Generation>, RequestError> {
        let mut generations = Vec::with_capacity(requests.len());
        self.send(requests, admit, |rid, permit, canceller| {
            let capacity = self.inner.channel_events;
            let (sink, events) = EventSink::channel(rid, capacity, Some(permit));
            let failure = self.inner.failure.clone();
            generations.push(Generation::new(events, canceller, failure));
            sink
        })?;
        Ok(generations)
    }

    /// Sends a request whose events go to an actor of the host. The actor's mailbox is unbounded: the actor must keep
    /// up or cancel. The request is cancelled when the actor has stopped. Keep an address of the actor: without one,
    /// the actor may stop before it has handled the last event.
    pub fn generate_to(
        &self,
        request: GenerateRequest,
        recipient: Recipient<TokenEvent>,
    ) -> Result<Canceller, RequestError> {
        let mut cancel_handle = None;
        self.send(vec![request], Admission::admit, |rid, permit, canceller| {
            cancel_handle = Some(canceller);
            EventSink::recipient(rid, recipient.clone(), Some(permit))
        })?;
        Ok(cancel_handle.expect("one request has one canceller"))
    }

    fn send(
        &self,
        requests: Vec<GenerateRequest>,
        admit: AdmitOne,
        mut sink: impl FnMut(RequestId, Permit, Canceller) -> EventSink,
    ) -> Result<(), RequestError> {
        let prompts = Prompts::of(requests.iter());
        // Takes all permits before sending: otherwise the first request might end and free its permit for the last.
        let admit_all = || {
            let permits = (0..requests.len()).map(|request| {
                let mut permit = admit(&self.inner.admission)?;
                permit.charge_prompt(prompts.estimated_tokens(request))?;
                Ok(permit)
            });
            let permits = permits.collect::<Result<Vec<_>, RequestError>>()?;
            Ok((permits, self.doors()?))
        };
        let admitted: Result<(Vec<Permit>, Doors), RequestError> = admit_all();
        let (permits, doors) =
            admitted.inspect_err(|error| self.inner.metrics.failed(error.code()))?;
        let to_asked = |(request, permit): (GenerateRequest, Permit)| {
            let cancel = CancelFlag::default();
            let rid = request.rid.clone();
            let canceller = Canceller::new(rid, cancel.clone(), self.inner.doors.clone());
            Asked {
                sink: sink(request.rid.clone(), permit, canceller),
                request,
                cancel,
            }
        };
        let asked: Vec<_> = requests.into_iter().zip(permits).map(to_asked).collect();
        let call = Generate::with_prompts(asked, prompts);
        let watchdog = self.inner.watchdog.clone().recipient();
        doors.generate.do_send(call.returning_to(watchdog));
        Ok(())
    }

    /// Cancels a request by its id. Ignores unknown ids, and requests that are still being encoded: only their
    /// [`Canceller`] cancels those.
    pub fn cancel(&self, rid: &RequestId) {
        if let Ok(doors) = self.doors() {
            doors.cancel.do_send(CancelRequest {
                rid: rid.clone(),
                flag: None,
            });
        }
    }

    pub fn cancel_all(&self) {
        let doors = self.doors().ok();
        match doors.filter(|doors| doors.cancel_all.connected()) {
            Some(doors) => doors.cancel_all.do_send(CancelAll),
            // The Tokenizer has died: the next one cancels.
            None => self.inner.watchdog.do_send(CancelAll),
        }
    }

    /// The number of leading `tokens` that are cached now. Changes nothing in the cache.
    ///
    /// # Errors
    /// [`RequestError::EngineDown`].
    pub async fn peek_prefix(
        &self,
        namespace: Namespace,
        tokens: Arc<[u32]>,
    ) -> Result<usize, RequestError> {
        self.doors()?
            .peek
            .send(PeekPrefix { namespace, tokens })
            .await
            .map_err(down)
    }

    /// Changes the scheduling policy, the eviction policy or both from the next plan on; `None` keeps a policy. Waiting
    /// and running requests are not affected. A rebuilt engine keeps the policies that were set last.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] names the supported policies, and no policy changes. [`RequestError::EngineDown`].
    pub async fn set_policy(&self, policies: SetPolicy) -> Result<PoliciesSet, RequestError> {
        self.doors()?
            .set_policy
            .send(policies)
            .await
            .map_err(down)?
    }

    /// Flushes every cached prefix, except pinned ones, and returns the freed counts.
    ///
    /// # Errors
    /// [`RequestError::Busy`] while a request runs or waits: nothing is flushed. [`RequestError::EngineDown`].
    pub async fn flush_cache(&self) -> Result<CacheFlushed, RequestError> {
        self.doors()?.flush.send(FlushCache).await.map_err(down)?
    }

    /// Pauses or resumes the engine. During a pause no step is planned: all requests wait and keep their memory, and
    /// their time limits still run. An engine that is rebuilt during a pause is paused.
    ///
    /// # Errors
    /// [`RequestError::EngineDown`].
    pub async fn set_paused(&self, paused: bool) -> Result<(), RequestError> {
        self.doors()?
            .pause
            .send(SetPaused { paused })
            .await
            .map_err(down)
    }

    /// Queues, pools and counters.
    ///
    /// # Errors
    /// [`RequestError::EngineDown`].
    pub async fn stats(&self) -> Result<EngineStats, RequestError> {
        self.doors()?.stats.send(GetStats).await.map_err(down)
    }

    /// Queues, pools and counters, with rates and waiting tokens, for a gateway that balances load.
    ///
    /// # Errors
    /// [`RequestError::EngineDown`].
    pub async fn load(&self) -> Result<EngineLoad, RequestError> {
        self.doors()?.load.send(GetLoad).await.map_err(down)
    }

    /// The load of each replica, by their ids; `None` for one whose actors are being replaced.
    ///
    /// # Errors
    /// [`RequestError::EngineDown`].
    pub async fn loads(&self) -> Result<Vec<Option<EngineLoad>>, RequestError> {
        match self.doors()?.loads {
            Some(loads) => loads.send(GetLoads).await.map_err(down),
            None => Ok(vec![Some(self.load().await?)]),
        }
    }

    /// Reports how much of a request's prompt was cached, and why not more. `None` if the id is unknown, not admitted
    /// yet or no longer recorded, or if `prefix_diagnostics` is off.
    ///
    /// # Errors
    /// [`RequestError::EngineDown`].
    pub async fn prefix_report(
        &self,
        rid: RequestId,
    ) -> Result<Option<Box<PrefixReport>>, RequestError> {
        self.doors()?
            .prefix_report
            .send(GetPrefixReport { rid })
            .await
            .map_err(down)
    }

    /// The recipients of the engine's current actors, for hosts that send messages. A restart replaces actors, and hosts
    /// then get new recipients here ([`Doors::are_open`]).
    ///
    /// # Errors
    /// [`RequestError::EngineDown`] after the engine's end.
    pub fn doors(&self) -> Result<Doors, RequestError> {
        let doors = self
            .inner
            .doors
            .read()
            .expect("a holder of the lock of the doors must not panic");
        let down = || RequestError::EngineDown(DOWN_REASON.to_owned());
        doors.clone().ok_or_else(down)
    }

    /// The number of replicas, at least 1.
    pub fn replicas(&self) -> usize {
        self.inner.replicas
    }

    /// The number of ranks that compute the model together in each replica, at least 1.
    pub fn ranks(&self) -> usize {
        self.inner.ranks
    }

    /// The number of compute threads of each replica, the smallest if they differ; `None` on a GPU and for a host's
    /// executor.
    pub fn compute_threads(&self) -> Option<usize> {
        self.inner.compute_threads
    }

    pub fn model(&self) -> &ModelInfo {
        &self.inner.model
    }

    /// The reader of the images of chats; `None` if the model takes text only.
    pub fn images(&self) -> Option<&Arc<ImageReader>> {
        self.inner.images.as_ref()
    }

    /// `None` for an engine that takes and returns token ids only.
    pub fn text(&self) -> Option<&Arc<TextModel>> {
        self.inner.text.as_ref()
    }

    /// The endpoints of the engine's KV events, those of the first replica if there are several; `None` if the engine
    /// publishes none.
    pub fn kv_events(&self) -> Option<&KvEventsInfo> {
        self.inner.kv_events.as_ref().map(|outlet| &outlet.info)
    }

    /// Subscribes to the KV events after the batch with this number, or from the oldest kept batch if it is 0. If the
    /// next batch is no longer kept, the subscription starts with a clear event and the oldest kept batch.
    ///
    /// # Errors
    /// The engine publishes nothing, has replicas, or has the maximum number of readers.
    pub fn subscribe_kv_events(&self, after: u64) -> Result<KvEventSubscription, SubscribeError> {
        let outlet = self.inner.kv_events.as_ref();
        outlet.ok_or(SubscribeError::Off)?.subscribe(after)
    }

    /// As [`Self::subscribe_kv_events`], for one of the replicas, whose numbers begin with 0. Each replica numbers its
    /// own batches.
    ///
    /// # Errors
    /// The engine publishes nothing or has no such replica, or the replica has the maximum number of readers.
    pub fn subscribe_kv_events_of(
        &self,
        replica: usize,
        after: u64,
    ) -> Result<KvEventSubscription, SubscribeError> {
        let outlet = self.inner.kv_events.as_ref();
        outlet
            .ok_or(SubscribeError::Off)?
            .subscribe_to(replica, after)
    }

    /// The largest number of log probabilities that hosts should keep for one answer. Prompts that request more are
    /// refused.
    pub fn max_logprob_entries(&self) -> usize {
        self.inner.max_logprob_entries
    }

    pub fn max_prefill_tokens(&self) -> usize {
        self.inner.max_prefill_tokens
    }

    pub fn request_limits(&self) -> &RequestLimits {
        &self.inner.request_limits
    }

    /// Requests in flight, queued ones included.
    pub fn requests_inside(&self) -> usize {
        self.inner.admission.requests()
    }

    /// True while all actors live: false while some are restarted, so that requests wait, and after the stop.
    pub fn is_alive(&self) -> bool {
        self.inner.status.borrow().is_up && self.doors().is_ok()
    }

    /// True once no actors will ever run again: the engine was stopped, or it has failed ([`EngineHandle::failed`]).
    /// False while it is rebuilt.
    pub fn is_over(&self) -> bool {
        let failure = &self.inner.failure;
        failure.borrow().is_some() || failure.has_changed().is_err()
    }

    /// Waits until the engine has failed permanently, and returns the reason: actors died too often, a thread hangs, no
    /// attempt to load the model again worked, the model's files have changed since they were loaded, or the host
    /// stopped the actors' Arbiter. A thread that hangs keeps its memory until the process ends. Never completes for an
    /// engine that was shut down. Cancel-safe.
    pub async fn failed(&self) -> Arc<str> {
        let mut failure = self.inner.failure.clone();
        let reason = match failure.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone(),
            // The watchdog was stopped before the engine failed.
            Err(_) => None,
        };
        match reason {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }

    /// True while the engine accepts requests: its actors live, and it is not shutting down.
    pub fn is_ready(&self) -> bool {
        !self.inner.admission.is_closed() && self.is_alive()
    }

    /// Refuses new requests from now on; requests in flight continue.
    pub fn close_admission(&self) {
        self.inner.admission.close();
    }

    /// Stops admitting requests, and waits until all requests have ended or `deadline` has passed. Then cancels the
    /// rest, and stops the actors and their threads. If they take several seconds more, for example to end a step or to
    /// load weights, returns without waiting for them. Needs a tokio runtime with a timer.
    pub async fn shutdown(&self, deadline: Duration) {
        self.close_admission();
        if tokio::time::timeout(deadline, self.drain()).await.is_err() {
            self.cancel_all();
            // Requests that are still in flight get their terminal event when the actors stop.
            let _ = tokio::time::timeout(CANCEL_GRACE, self.drain()).await;
        }
        let stopped = tokio::time::timeout(STOP_GRACE, self.inner.watchdog.send(StopUnit)).await;
        if stopped.is_err() {
            tracing::warn!(
                "the engine did not stop in {STOP_GRACE:?}: exiting while it runs a step, loads weights or writes KV"
            );
            return;
        }
        let thread = self
            .inner
            .thread
            .write()
            .expect("no thread panics while it holds this lock")
            .take();
        if let Some(thread) = thread {
            join(thread).await;
        }
    }
}

impl EngineHandle {
    /// Waits until no request is left. Asks the next Tokenizer if one dies meanwhile.
    async fn drain(&self) {
        while let Ok(doors) = self.doors() {
            if doors.drain.send(Drain).await.is_ok() {
                return;
            }
            tokio::time::sleep(DRAIN_RETRY).await;
        }
    }
}

async fn join(thread: JoinHandle<()>) {
    let (joined, is_joined) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = thread.join();
        let _ = joined.send(());
    });
    let _ = is_joined.await;
}

pub(super) fn down(_: MailboxError) -> RequestError {
    RequestError::EngineDown(DOWN_REASON.to_owned())
}
