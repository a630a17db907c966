//! Handles the messages of the WebSocket `/v1/ws/generate`.

use std::cell::RefCell;
use std::rc::Rc;

use super::connection::{CloseReason, Connection, Talk, count_aborts};
use super::frames::{self, BadFrame, Op};
use crate::answers::AnswerCharge;
use crate::call::{CallLimits, VectorLimits, WebSocketRoom};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::lanes::Lane;
use crate::native::{NativeCall, Shape};
use crate::open_requests::stands_for;
use crate::sessions::{self, SessionParams, SessionTurn};
use crate::transcript::News;
use souffleur_base::ids::RequestId;
use souffleur_engine::Canceller;
use souffleur_request::Event;

pub(super) struct Named {
    canceller: Canceller,
    shape: Shape,
    /// The charge for the answers, held until they have been sent.
    _charge: Option<AnswerCharge>,
    /// The request's turn in its session, and its output so far.
    in_session: RefCell<Option<(SessionTurn, Vec<u32>)>>,
}

impl Named {
    fn note(&self, news: &News) {
        let mut in_session = self.in_session.borrow_mut();
        if let Some((_, output)) = &mut *in_session {
            output.extend_from_slice(&news.delta.tokens);
        }
        if news.end.is_some()
            && let Some((turn, output)) = in_session.take()
        {
            turn.ended(&output);
        }
    }

    fn rid(&self) -> &RequestId {
        self.canceller.rid()
    }
}

#[derive(Default)]
pub(super) struct Native {
    /// The requests that have not ended. (The connection drops an ended lane only when it polls the lane once more.)
    names: Vec<Rc<Named>>,
}

impl Talk for Native {
    type Key = Rc<Named>;

    fn under_way(&self) -> usize {
        self.names.len()
    }

    async fn on_text(
        &mut self,
        connection: &mut Connection<Rc<Named>>,
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
                match self.generate(connection, fields).await {
                    Ok(()) => Ok(()),
                    Err(error) => self.refuse(connection, rid.as_deref(), error).await,
                }
            }
            Err(BadFrame { rid, error }) => self.refuse(connection, rid.as_deref(), error).await,
        }
    }

    async fn on_binary(
        &mut self,
        connection: &mut Connection<Rc<Named>>,
    ) -> Result<(), CloseReason> {
        let error = ApiError::invalid("the frame is binary: send JSON as text");
        connection.send(frames::error(None, &error)).await
    }

    async fn on_event(
        &mut self,
        connection: &mut Connection<Rc<Named>>,
        named: Rc<Named>,
        event: Event,
    ) -> Result<(), CloseReason> {
        if event.is_terminal() {
            self.names.retain(|other| !Rc::ptr_eq(other, &named));
        }
        match News::of(event) {
            Ok(news) => {
                // Noted before the last frame: a client that gets that frame may continue the request at once.
                named.note(&news);
                let mut pieces = Vec::new();
                news.in_pieces(|piece| pieces.push(piece));
                let last = pieces.len() - 1;
                for (index, piece) in pieces.into_iter().enumerate() {
                    for frame in frames::news(named.rid(), &named.shape, piece) {
                        connection.send(frame).await?;
                    }
                    if index < last {
                        // The worker serves its other clients in between.
                        tokio::task::yield_now().await;
                    }
                }
                Ok(())
            }
            Err(error) => {
                let rid = Some(named.rid().as_str());
                self.refuse(connection, rid, error.into()).await
            }
        }
    }
}

impl Native {
    async fn generate(
        &mut self,
        connection: &mut Connection<Rc<Named>>,
        mut fields: Fields,
    ) -> Result<(), ApiError> {
        let state = connection.state.clone();
        let loaded = state.serving()?;
        let limit = state.config().ws_max_requests;
        let limits = CallLimits {
            max_requests: state.config().max_batch_requests,
            websocket: Some(WebSocketRoom {
                free: limit.saturating_sub(self.names.len()),
                limit,
            }),
            request: loaded.engine.request_limits(),
            vectors: VectorLimits::of(&loaded.engine),
        };
        let session = SessionParams::take(&mut fields)?;
        let call = NativeCall::parse(fields, limits)?;
        let shapes = call.shapes(&loaded.spelling);
        let (requests, charges) = call.into_streamed();
        let (lanes, mut turn) = sessions::open_all(&state, session.as_ref(), requests).await?;
        let lanes = Lane::with_charges(lanes, charges);
        let charge = Lane::answer_charge(&lanes);
        for (lane, shape) in lanes.into_iter().zip(shapes) {
            let named = Rc::new(Named {
                canceller: lane.canceller(),
                shape,
                _charge: charge.clone(),
                in_session: RefCell::new(turn.take().map(|turn| (turn, Vec::new()))),
            });
            self.names.push(named.clone());
            connection.listen(lane.events(named));
        }
        Ok(())
    }

    /// Answers a refused request. After a refusal for overload, closes the connection if no other request is in flight.
    async fn refuse(
        &self,
        connection: &mut Connection<Rc<Named>>,
        rid: Option<&str>,
        error: ApiError,
    ) -> Result<(), CloseReason> {
        connection.send(frames::error(rid, &error)).await?;
        if error.code() == "overloaded" && self.names.is_empty() {
            Err(CloseReason::Overload)
        } else {
            Ok(())
        }
    }

    fn abort(&self, name: &str) {
        let matching = |named: &&Rc<Named>| stands_for(name, named.rid().as_str());
        let matching = self.names.iter().filter(matching);
        let aborted = matching.map(|named| named.canceller.cancel()).count() as u64;
        count_aborts("client_abort", aborted);
    }
}
