//! Handles the messages of the WebSocket `/v1/ws/generate`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use super::connection::{CloseReason, Connection, MessageHandler, count_aborts};
use super::fetches::Fetches;
use super::frames::{self, BadFrame, Op};
use crate::answers::AnswerCharge;
use crate::call::{CallLimits, EmbedLimits, WebSocketSlots};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::images;
use crate::lanes::Lane;
use crate::native::{NativeCall, ReplyForm};
use crate::open_requests::matches_id;
use crate::sessions::{self, SessionParams, SessionTurn};
use crate::transcript::{TranscriptEnd, Update};
use souffleur_base::ids::RequestId;
use souffleur_engine::Canceller;
use souffleur_request::{Delta, Event, FinishReason};

pub(super) struct ActiveRequest {
    canceller: Canceller,
    form: ReplyForm,
    /// The charge for the answers, held until they have been sent.
    _charge: Option<AnswerCharge>,
    /// The request's turn in its session, and its output so far.
    in_session: RefCell<Option<(SessionTurn, Vec<u32>)>>,
}

impl ActiveRequest {
    fn record(&self, update: &Update) {
        let mut in_session = self.in_session.borrow_mut();
        if let Some((_, output)) = &mut *in_session {
            output.extend_from_slice(&update.delta.tokens);
        }
        if update.end.is_some()
            && let Some((turn, output)) = in_session.take()
        {
            turn.ended(&output);
        }
    }

    fn rid(&self) -> &RequestId {
        self.canceller.rid()
    }
}

/// The requests of a call whose images are being fetched.
struct Waiting {
    id: u64,
    rids: Vec<RequestId>,
    /// The requests in `rids` that the client has aborted.
    aborted: Vec<RequestId>,
    since: Instant,
    /// Ends the fetch early.
    stop: Option<oneshot::Sender<()>>,
}

impl Waiting {
    /// Aborts the requests with this id or prefix of batches, and returns their number. Without any other request, the
    /// fetch ends.
    fn abort(&mut self, name: &str) -> usize {
        let matching = self.rids.iter();
        let matching = matching.filter(|rid| matches_id(name, rid.as_str()));
        let new = matching.filter(|rid| !self.aborted.contains(rid));
        let new: Vec<RequestId> = new.cloned().collect();
        let n_aborted = new.len();
        self.aborted.extend(new);
        if self.is_aborted()
            && let Some(stop) = self.stop.take()
        {
            // Otherwise the fetch has just ended.
            let _ = stop.send(());
        }
        n_aborted
    }

    fn is_aborted(&self) -> bool {
        self.aborted.len() == self.rids.len()
    }
}

pub(super) struct FetchedCall {
    id: u64,
    /// The id in the client's message.
    rid: Option<String>,
    call: NativeCall,
    session: Option<SessionParams>,
    fetched: Result<(), ApiError>,
}

#[derive(Default)]
pub(super) struct Native {
    /// The requests that have not ended. (The connection drops an ended lane only at the lane's next poll.)
    active_requests: Vec<Rc<ActiveRequest>>,
    waiting: Vec<Waiting>,
    n_fetches: u64,
    fetches: Fetches<FetchedCall>,
}

impl MessageHandler for Native {
    type Key = Rc<ActiveRequest>;
    type Fetched = FetchedCall;

    fn in_flight(&self) -> usize {
        let waiting = self.waiting.iter().map(|waiting| waiting.rids.len());
        self.active_requests.len() + waiting.sum::<usize>()
    }

    async fn fetched(&mut self) -> FetchedCall {
        self.fetches.next().await
    }

    async fn on_fetched(
        &mut self,
        connection: &mut Connection<Rc<ActiveRequest>>,
        fetched: FetchedCall,
    ) -> Result<(), CloseReason> {
        let FetchedCall {
            id,
            rid,
            call,
            session,
            fetched,
        } = fetched;
        let place = self.waiting.iter().position(|waiting| waiting.id == id);
        let waiting = place.map(|place| self.waiting.remove(place));
        if let Some(waiting) = waiting.as_ref().filter(|waiting| waiting.is_aborted()) {
            return send_aborted(connection, &call, waiting.since).await;
        }
        let started = match fetched {
            Ok(()) => self.start(connection, call, session).await,
            Err(error) => Err(error),
        };
        match started {
            Ok(()) => {
                let aborted = waiting.map(|waiting| waiting.aborted).unwrap_or_default();
                for active in &self.active_requests {
                    if aborted.contains(active.rid()) {
                        active.canceller.cancel();
                    }
                }
                Ok(())
            }
            Err(error) => self.send_error(connection, rid.as_deref(), error).await,
        }
    }

    async fn on_text(
        &mut self,
        connection: &mut Connection<Rc<ActiveRequest>>,
        text: &str,
    ) -> Result<(), CloseReason> {
        let state = &connection.state;
        let max_values = state.config().max_body_values;
        match Op::parse(text, state.bodies().open(), max_values) {
            Ok(Op::Ping) => connection.send(frames::pong()).await,
            Ok(Op::Abort(name)) => {
                self.abort(&name);
                Ok(())
            }
            Ok(Op::Generate(fields)) => {
                let rid = frames::rid_of(&fields);
                match self.generate(connection, fields, rid.clone()).await {
                    Ok(()) => Ok(()),
                    Err(error) => self.send_error(connection, rid.as_deref(), error).await,
                }
            }
            Err(BadFrame { rid, error }) => {
                self.send_error(connection, rid.as_deref(), error).await
            }
        }
    }

    async fn on_binary(
        &mut self,
        connection: &mut Connection<Rc<ActiveRequest>>,
    ) -> Result<(), CloseReason> {
        let error = ApiError::invalid("the frame is binary: send JSON as text");
        connection.send(frames::error(None, &error)).await
    }

    async fn on_event(
        &mut self,
        connection: &mut Connection<Rc<ActiveRequest>>,
        active: Rc<ActiveRequest>,
        event: Event,
    ) -> Result<(), CloseReason> {
        if event.is_terminal() {
            self.active_requests
                .retain(|other| !Rc::ptr_eq(other, &active));
        }
        match Update::of(event) {
            Ok(update) => {
                // Recorded before the last frame is sent: the session's next request may follow that frame at once.
                active.record(&update);
                let mut pieces = Vec::new();
                update.in_pieces(|piece| pieces.push(piece));
                let last = pieces.len() - 1;
                for (index, piece) in pieces.into_iter().enumerate() {
                    for frame in frames::update(active.rid(), &active.form, piece) {
                        connection.send(frame).await?;
                    }
                    if index < last {
                        // Between pieces the worker serves its other clients.
                        tokio::task::yield_now().await;
                    }
                }
                Ok(())
            }
            Err(error) => {
                let rid = Some(active.rid().as_str());
                self.send_error(connection, rid, error.into()).await
            }
        }
    }
}

impl Native {
    async fn generate(
        &mut self,
        connection: &mut Connection<Rc<ActiveRequest>>,
        mut fields: Fields,
        rid: Option<String>,
    ) -> Result<(), ApiError> {
        let state = connection.state.clone();
        let loaded = state.serving()?;
        let limit = state.config().ws_max_requests;
        let limits = CallLimits {
            max_requests: state.config().max_batch_requests,
            websocket: Some(WebSocketSlots {
                free: limit.saturating_sub(self.in_flight()),
                limit,
            }),
            request: loaded.engine.request_limits(),
            embeds: EmbedLimits::of(&loaded.engine),
        };
        let session = SessionParams::take(&mut fields)?;
        let mut call = NativeCall::parse(fields, limits)?;
        let wanted = call.take_wanted();
        let pending = images::check(&state, &call.requests, wanted)?;
        if pending.is_empty() {
            return self.start(connection, call, session).await;
        }
        self.n_fetches += 1;
        let id = self.n_fetches;
        let rids = call.requests.iter().map(|request| request.rid.clone());
        let (stop, stopped) = oneshot::channel();
        self.waiting.push(Waiting {
            id,
            rids: rids.collect(),
            aborted: Vec::new(),
            since: Instant::now(),
            stop: Some(stop),
        });
        self.fetches.add(async move {
            let (requests, charges) = (&mut call.requests, &mut call.charges);
            let fetched = tokio::select! {
                biased;
                Ok(()) = stopped => Ok(()),
                fetched = pending.fetch_for_texts(&state, requests, charges) => fetched,
            };
            FetchedCall {
                id,
                rid,
                call,
                session,
                fetched,
            }
        });
        Ok(())
    }

    /// Starts a call that has all of its images.
    async fn start(
        &mut self,
        connection: &mut Connection<Rc<ActiveRequest>>,
        call: NativeCall,
        session: Option<SessionParams>,
    ) -> Result<(), ApiError> {
        let state = connection.state.clone();
        let forms = call.forms(&state.serving()?.spelling);
        let (requests, charges) = call.into_streamed();
        let (lanes, mut turn) = sessions::open_all(&state, session.as_ref(), requests).await?;
        let lanes = Lane::with_charges(lanes, charges);
        let charge = Lane::answer_charge(&lanes);
        for (lane, form) in lanes.into_iter().zip(forms) {
            let active = Rc::new(ActiveRequest {
                canceller: lane.canceller(),
                form,
                _charge: charge.clone(),
                in_session: RefCell::new(turn.take().map(|turn| (turn, Vec::new()))),
            });
            self.active_requests.push(active.clone());
            connection.add_lane(lane.events(active));
        }
        Ok(())
    }

    /// Sends the error of a refused or failed request. After an overload, closes the connection if no other request is
    /// in flight.
    async fn send_error(
        &self,
        connection: &mut Connection<Rc<ActiveRequest>>,
        rid: Option<&str>,
        error: ApiError,
    ) -> Result<(), CloseReason> {
        connection.send(frames::error(rid, &error)).await?;
        if error.code() == "overloaded" && self.in_flight() == 0 {
            Err(CloseReason::Overload)
        } else {
            Ok(())
        }
    }

    fn abort(&mut self, name: &str) {
        let matching = |active: &&Rc<ActiveRequest>| matches_id(name, active.rid().as_str());
        let matching = self.active_requests.iter().filter(matching);
        let mut aborted = matching.map(|active| active.canceller.cancel()).count();
        let waiting = self.waiting.iter_mut();
        aborted += waiting.map(|waiting| waiting.abort(name)).sum::<usize>();
        count_aborts("client_abort", aborted as u64);
    }
}

/// Answers the requests of a call that the client has aborted before they started.
async fn send_aborted(
    connection: &mut Connection<Rc<ActiveRequest>>,
    call: &NativeCall,
    since: Instant,
) -> Result<(), CloseReason> {
    for request in &call.requests {
        // No form has more to show of a request without tokens.
        let form = ReplyForm::new(request.logprobs.as_ref(), None);
        let end = TranscriptEnd {
            reason: FinishReason::Abort,
            e2e_latency_s: since.elapsed().as_secs_f64(),
            prompt: Arc::default(),
            embedding: None,
            timings: None,
            accept_histogram: Default::default(),
        };
        let update = Update {
            delta: Delta::default(),
            end: Some(end),
        };
        for frame in frames::update(&request.rid, &form, update) {
            connection.send(frame).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_ends_once_all_requests_of_its_call_are_aborted() {
        let (stop, mut stopped) = oneshot::channel();
        let mut waiting = Waiting {
            id: 1,
            rids: ["a-0", "a-1", "a-2"].map(RequestId::new).to_vec(),
            aborted: Vec::new(),
            since: Instant::now(),
            stop: Some(stop),
        };
        assert_eq!((waiting.abort("b"), waiting.abort("a-1")), (0, 1));
        assert_eq!((waiting.abort("a-1"), waiting.is_aborted()), (0, false));
        assert!(stopped.try_recv().is_err());
        assert_eq!((waiting.abort("a"), waiting.is_aborted()), (2, true));
        assert_eq!(stopped.try_recv(), Ok(()));
        assert_eq!(waiting.abort("a"), 0);
    }
}
