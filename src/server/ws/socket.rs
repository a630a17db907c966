//! One WebSocket's task: client frames, the events of its requests, the heartbeat and the drain, in one loop.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::SelectAll;
use futures_util::{SinkExt, StreamExt};
use metrics::{counter, gauge, histogram};
use tokio::time::{Instant as TokioInstant, Interval, MissedTickBehavior, interval_at, timeout};
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Bytes, Message};

use super::frames::{self, BadFrame, Op};
use super::inbound::Refusal;
use super::wire::Wire;
use crate::engine::Canceller;
use crate::ids::RequestId;
use crate::request::Event;
use crate::server::answers::AnswerCharge;
use crate::server::call::{CallLimits, WebSocketRoom};
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::lanes::{Events, Lane};
use crate::server::native::{NativeCall, Shape};
use crate::server::open_requests::stands_for;
use crate::server::state::{AppState, OpenWebSocket};
use crate::server::transcript::News;

/// Pings without an answer after which a client is gone.
const MAX_MISSED_PINGS: u32 = 2;
/// How long the closing handshake may take to be written.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseReason {
    /// The client closed it, or its network did.
    Disconnect,
    /// The client misses pings.
    Dead,
    /// The client does not read.
    Slow,
    /// The client began a message and did not end it in time.
    Late,
    /// The client announced a message above the limit.
    TooLarge,
    /// The client sent frames that the standard forbids.
    Protocol,
    /// The client sent text that is not UTF-8.
    NotUtf8,
    /// A request was refused for overload and nothing else is under way, or other bodies have the memory.
    Overload,
    /// The server is shutting down and the last request ended.
    Drain,
}

impl CloseReason {
    fn label(self) -> &'static str {
        match self {
            Self::Disconnect => "disconnect",
            Self::Dead => "dead",
            Self::Slow => "slow_client",
            Self::Late => "message_timeout",
            Self::TooLarge => "message_too_large",
            Self::Protocol => "protocol_error",
            Self::NotUtf8 => "invalid_utf8",
            Self::Overload => "overload",
            Self::Drain => "drain",
        }
    }

    /// The code that the client is told; none where it closed the connection itself and its own is echoed, or is gone.
    fn close_code(self) -> Option<CloseCode> {
        match self {
            Self::Disconnect => None,
            Self::Dead | Self::Slow | Self::Late => Some(CloseCode::Policy),
            Self::TooLarge => Some(CloseCode::Size),
            Self::Protocol => Some(CloseCode::Protocol),
            Self::NotUtf8 => Some(CloseCode::Invalid),
            Self::Overload => Some(CloseCode::Again),
            Self::Drain => Some(CloseCode::Away),
        }
    }
}

impl From<tungstenite::Error> for CloseReason {
    fn from(error: tungstenite::Error) -> Self {
        use tungstenite::Error;
        match error {
            Error::Capacity(_) => Self::TooLarge,
            Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Self::Disconnect,
            Error::Protocol(_) => Self::Protocol,
            Error::Utf8(_) => Self::NotUtf8,
            // Bytes that do not go on end the byte stream with such an error.
            Error::Io(error) => error
                .downcast::<Refusal>()
                .map_or(Self::Disconnect, Self::from),
            _ => Self::Disconnect,
        }
    }
}

impl From<Refusal> for CloseReason {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Frame(error) => error.into(),
            Refusal::Memory(error) if error.code() == "overloaded" => Self::Overload,
            Refusal::Memory(_) => Self::TooLarge,
            Refusal::Late => Self::Late,
        }
    }
}

/// A request of this connection.
struct Named {
    canceller: Canceller,
    shape: Shape,
    /// The memory of what is sent, until it has left.
    _charge: Option<AnswerCharge>,
}

impl Named {
    fn rid(&self) -> &RequestId {
        self.canceller.rid()
    }
}

pub(super) struct Socket {
    state: Arc<AppState>,
    wire: Wire,
    lanes: SelectAll<Events<Rc<Named>>>,
    /// The requests that have not ended. (A lane that has ended stays in `lanes` until it is polled once more.)
    names: Vec<Rc<Named>>,
    missed_pings: u32,
    send_timeout: Duration,
    _open: OpenWebSocket,
}

impl Socket {
    pub(super) fn new(state: Arc<AppState>, wire: Wire, open: OpenWebSocket) -> Self {
        let send_timeout = Duration::from_secs(state.config().ws_send_timeout_s.into());
        Self {
            state,
            wire,
            lanes: SelectAll::new(),
            names: Vec::new(),
            missed_pings: 0,
            send_timeout,
            _open: open,
        }
    }

    /// Serves the connection until it ends, then cancels what is under way on it.
    pub(super) async fn run(mut self) {
        let active = gauge!("souffleur_websocket_connections_active");
        active.increment(1.0);
        counter!("souffleur_websocket_connections_total").increment(1);
        let opened = Instant::now();
        let why = self.serve().await;
        let aborted = self.names.len() as u64;
        self.lanes.clear();
        if aborted > 0 {
            count_aborts(why.label(), aborted);
        }
        let _ = timeout(CLOSE_TIMEOUT, self.close(why)).await;
        let seconds = opened.elapsed().as_secs_f64();
        histogram!("souffleur_websocket_connection_duration_seconds").record(seconds);
        active.decrement(1.0);
    }

    async fn serve(&mut self) -> CloseReason {
        let mut heartbeat = heartbeat(self.state.config().ws_ping_interval_s);
        let mut draining = self.state.drain_signal();
        loop {
            if *draining.borrow() && self.names.is_empty() {
                return CloseReason::Drain;
            }
            let went_well = tokio::select! {
                message = self.wire.next() => self.on_message(message).await,
                Some((named, event)) = self.lanes.next(), if !self.lanes.is_empty() => {
                    self.on_event(&named, event).await
                }
                _ = heartbeat.tick() => self.on_heartbeat().await,
                Ok(()) = draining.changed() => Ok(()),
            };
            if let Err(why) = went_well {
                return why;
            }
        }
    }

    async fn on_message(
        &mut self,
        message: Option<tungstenite::Result<Message>>,
    ) -> Result<(), CloseReason> {
        self.missed_pings = 0;
        match message.transpose()? {
            Some(Message::Text(text)) => self.on_text(&text).await,
            // The pong is queued when the ping is read, in the place of one that is not written yet.
            Some(Message::Ping(_)) => in_time(self.send_timeout, self.wire.flush()).await,
            Some(Message::Pong(_) | Message::Frame(_)) => Ok(()),
            Some(Message::Binary(_)) => {
                let error = ApiError::invalid("the frame is binary: send JSON as text");
                self.send(frames::error(None, &error)).await
            }
            Some(Message::Close(_)) | None => Err(CloseReason::Disconnect),
        }
    }

    async fn on_text(&mut self, text: &str) -> Result<(), CloseReason> {
        let max_values = self.state.config().max_body_values;
        match Op::parse(text, self.state.bodies().open(), max_values) {
            Ok(Op::Ping) => self.send(frames::pong()).await,
            Ok(Op::Abort(name)) => {
                self.abort(&name);
                Ok(())
            }
            Ok(Op::Generate(fields)) => {
                let rid = frames::rid_of(&fields);
                match self.generate(fields) {
                    Ok(()) => Ok(()),
                    Err(error) => self.refuse(rid.as_deref(), error).await,
                }
            }
            Err(BadFrame { rid, error }) => self.refuse(rid.as_deref(), error).await,
        }
    }

    fn generate(&mut self, fields: Fields) -> Result<(), ApiError> {
        let loaded = self.state.serving()?;
        let limit = self.state.config().ws_max_requests;
        let limits = CallLimits {
            max_requests: self.state.config().max_batch_requests,
            websocket: Some(WebSocketRoom {
                free: limit.saturating_sub(self.names.len()),
                limit,
            }),
            request: loaded.engine.request_limits(),
        };
        let call = NativeCall::parse(fields, limits)?;
        let shapes = call.shapes(&loaded.spelling);
        let (requests, charges) = call.into_streamed();
        let lanes = Lane::open_all(&self.state, requests)?;
        let lanes = Lane::with_charges(lanes, charges);
        let charge = Lane::answer_charge(&lanes);
        for (lane, shape) in lanes.into_iter().zip(shapes) {
            let named = Rc::new(Named {
                canceller: lane.canceller(),
                shape,
                _charge: charge.clone(),
            });
            self.names.push(named.clone());
            self.lanes.push(lane.events(named));
        }
        Ok(())
    }

    /// Answers a refused request. Refused for overload with nothing else to wait for, the client should go away.
    async fn refuse(&mut self, rid: Option<&str>, error: ApiError) -> Result<(), CloseReason> {
        self.send(frames::error(rid, &error)).await?;
        match error.code() == "overloaded" && self.names.is_empty() {
            true => Err(CloseReason::Overload),
            false => Ok(()),
        }
    }

    fn abort(&self, name: &str) {
        let meant = |named: &&Rc<Named>| stands_for(name, named.rid().as_str());
        let meant = self.names.iter().filter(meant);
        let aborted = meant.map(|named| named.canceller.cancel()).count() as u64;
        count_aborts("client_abort", aborted);
    }

    async fn on_event(&mut self, named: &Rc<Named>, event: Event) -> Result<(), CloseReason> {
        if event.is_terminal() {
            self.names.retain(|other| !Rc::ptr_eq(other, named));
        }
        match News::of(event) {
            Ok(news) => {
                let mut pieces = Vec::new();
                news.in_pieces(|piece| pieces.push(piece));
                let last = pieces.len() - 1;
                for (index, piece) in pieces.into_iter().enumerate() {
                    for frame in frames::news(named.rid(), &named.shape, piece) {
                        self.send(frame).await?;
                    }
                    if index < last {
                        // The worker's other clients come in between.
                        tokio::task::yield_now().await;
                    }
                }
                Ok(())
            }
            Err(error) => self.refuse(Some(named.rid().as_str()), error.into()).await,
        }
    }

    async fn on_heartbeat(&mut self) -> Result<(), CloseReason> {
        if self.missed_pings >= MAX_MISSED_PINGS {
            return Err(CloseReason::Dead);
        }
        self.missed_pings += 1;
        self.write(Message::Ping(Bytes::new())).await
    }

    async fn send(&mut self, frame: String) -> Result<(), CloseReason> {
        let waiting = gauge!("souffleur_websocket_outbound_queue_depth");
        waiting.increment(1.0);
        let sent = self.write(Message::text(frame)).await;
        waiting.decrement(1.0);
        sent
    }

    async fn write(&mut self, message: Message) -> Result<(), CloseReason> {
        in_time(self.send_timeout, self.wire.send(message)).await
    }

    /// Tells the client why the connection ends, or echoes the close frame that it sent.
    async fn close(&mut self, why: CloseReason) -> tungstenite::Result<()> {
        let Some(code) = why.close_code() else {
            return self.wire.flush().await;
        };
        let limit = self.state.config().ws_max_frame_bytes;
        let reason = match why {
            CloseReason::TooLarge => {
                format!("messages are limited to {limit} bytes: send less at once")
            }
            _ => String::new(),
        };
        let reason = reason.into();
        self.wire.close(Some(CloseFrame { code, reason })).await
    }
}

/// Waits until a write is through, but not for ever.
async fn in_time(
    limit: Duration,
    write: impl Future<Output = tungstenite::Result<()>>,
) -> Result<(), CloseReason> {
    match timeout(limit, write).await {
        Ok(written) => written.map_err(|_| CloseReason::Disconnect),
        Err(_) => Err(CloseReason::Slow),
    }
}

fn heartbeat(period_s: u32) -> Interval {
    let period = Duration::from_secs(period_s.into());
    let mut heartbeat = interval_at(TokioInstant::now() + period, period);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    heartbeat
}

fn count_aborts(reason: &'static str, requests: u64) {
    counter!("souffleur_websocket_aborts_total", "reason" => reason).increment(requests);
}
