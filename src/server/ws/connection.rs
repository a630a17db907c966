//! Runs one WebSocket: handles client frames, engine events, the heartbeat and the drain in one loop. The messages
//! are defined by a [`MessageHandler`].

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

use super::inbound::Refusal;
use super::wire::Wire;
use crate::lanes::Events;
use crate::state::{AppState, OpenWebSocket};
use souffleur_request::Event;

/// Number of unanswered pings after which a client counts as gone.
const MAX_MISSED_PINGS: u32 = 2;
/// Time limit for writing the closing handshake.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// The client closed the connection, or the network failed.
    Disconnect,
    /// The client did not answer pings.
    Dead,
    Slow,
    /// The client began a message and did not end it in time.
    Late,
    TooLarge,
    Protocol,
    NotUtf8,
    /// A request was refused for overload and no other request is in flight, or other bodies use the memory.
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

    /// The close code for the client; `None` if the client closed the connection or the connection is lost.
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
            // The byte stream ends with this error if bytes are refused.
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

pub(super) trait MessageHandler {
    /// The key that identifies the request of an event.
    type Key: Clone + 'static;
    /// A request whose images have been fetched, or could not be.
    type Fetched;

    /// The requests that wait, fetch images or run.
    fn in_flight(&self) -> usize;

    /// The next request whose images are there. Waits forever if none fetches images.
    async fn fetched(&mut self) -> Self::Fetched;

    async fn on_fetched(
        &mut self,
        connection: &mut Connection<Self::Key>,
        fetched: Self::Fetched,
    ) -> Result<(), CloseReason>;

    async fn on_text(
        &mut self,
        connection: &mut Connection<Self::Key>,
        text: &str,
    ) -> Result<(), CloseReason>;

    async fn on_binary(
        &mut self,
        connection: &mut Connection<Self::Key>,
    ) -> Result<(), CloseReason>;

    async fn on_event(
        &mut self,
        connection: &mut Connection<Self::Key>,
        key: Self::Key,
        event: Event,
    ) -> Result<(), CloseReason>;
}

pub(super) struct Connection<K> {
    pub(super) state: Arc<AppState>,
    wire: Wire,
    lanes: SelectAll<Events<K>>,
    missed_pings: u32,
    send_timeout: Duration,
    limit_bytes: usize,
    _open: OpenWebSocket,
}

impl<K: Clone + 'static> Connection<K> {
    pub(super) fn new(
        state: Arc<AppState>,
        wire: Wire,
        limit_bytes: usize,
        open: OpenWebSocket,
    ) -> Self {
        let send_timeout = Duration::from_secs(state.config().ws_send_timeout_s.into());
        Self {
            state,
            wire,
            lanes: SelectAll::new(),
            missed_pings: 0,
            send_timeout,
            limit_bytes,
            _open: open,
        }
    }

    /// Serves the connection until it ends, then cancels its requests in flight.
    pub(super) async fn run(mut self, mut handler: impl MessageHandler<Key = K>) {
        let active = gauge!("souffleur_websocket_connections_active");
        active.increment(1.0);
        counter!("souffleur_websocket_connections_total").increment(1);
        let opened = Instant::now();
        let why = self.serve(&mut handler).await;
        let aborted = handler.in_flight() as u64;
        self.lanes.clear();
        if aborted > 0 {
            count_aborts(why.label(), aborted);
        }
        drop(handler);
        let _ = timeout(CLOSE_TIMEOUT, self.close(why)).await;
        let seconds = opened.elapsed().as_secs_f64();
        histogram!("souffleur_websocket_connection_duration_seconds").record(seconds);
        active.decrement(1.0);
    }

    pub(super) fn add_lane(&mut self, events: Events<K>) {
        self.lanes.push(events);
    }

    async fn serve(&mut self, handler: &mut impl MessageHandler<Key = K>) -> CloseReason {
        let mut heartbeat = heartbeat(self.state.config().ws_ping_interval_s);
        let mut draining = self.state.drain_signal();
        loop {
            if *draining.borrow() && handler.in_flight() == 0 {
                return CloseReason::Drain;
            }
            let handled = tokio::select! {
                message = self.wire.next() => self.on_message(message, handler).await,
                Some((key, event)) = self.lanes.next(), if !self.lanes.is_empty() => {
                    handler.on_event(self, key, event).await
                }
                fetched = handler.fetched() => handler.on_fetched(self, fetched).await,
                _ = heartbeat.tick() => self.on_heartbeat().await,
                Ok(()) = draining.changed() => Ok(()),
            };
            if let Err(why) = handled {
                return why;
            }
        }
    }

    async fn on_message(
        &mut self,
        message: Option<tungstenite::Result<Message>>,
        handler: &mut impl MessageHandler<Key = K>,
    ) -> Result<(), CloseReason> {
        self.missed_pings = 0;
        match message.transpose()? {
            Some(Message::Text(text)) => handler.on_text(self, &text).await,
            // tungstenite queues the pong when it reads the ping. A new pong replaces one that is not written yet.
            Some(Message::Ping(_)) => in_time(self.send_timeout, self.wire.flush()).await,
            Some(Message::Pong(_) | Message::Frame(_)) => Ok(()),
            Some(Message::Binary(_)) => handler.on_binary(self).await,
            Some(Message::Close(_)) | None => Err(CloseReason::Disconnect),
        }
    }

    async fn on_heartbeat(&mut self) -> Result<(), CloseReason> {
        if self.missed_pings >= MAX_MISSED_PINGS {
            return Err(CloseReason::Dead);
        }
        self.missed_pings += 1;
        self.write(Message::Ping(Bytes::new())).await
    }

    /// Sends a message once the client has accepted the earlier ones.
    pub(super) async fn send(&mut self, frame: String) -> Result<(), CloseReason> {
        let waiting = gauge!("souffleur_websocket_outbound_queue_depth");
        waiting.increment(1.0);
        let sent = self.write(Message::text(frame)).await;
        waiting.decrement(1.0);
        sent
    }

    async fn write(&mut self, message: Message) -> Result<(), CloseReason> {
        in_time(self.send_timeout, self.wire.send(message)).await
    }

    /// The text of the close frame, at most 123 bytes.
    fn explain(&self, why: CloseReason) -> String {
        let limit = self.limit_bytes;
        let send_s = self.send_timeout.as_secs();
        let message_s = self.state.config().body_timeout_s;
        match why {
            CloseReason::Disconnect => String::new(),
            CloseReason::Dead => format!("the client answered none of {MAX_MISSED_PINGS} pings"),
            CloseReason::Slow => format!("the client accepted no message for {send_s} s"),
            CloseReason::Late => format!("a message was not complete within {message_s} s"),
            CloseReason::TooLarge => {
                format!("messages are limited to {limit} bytes: send less at once")
            }
            CloseReason::Protocol => "a frame violates the WebSocket protocol".to_owned(),
            CloseReason::NotUtf8 => {
                "a text message or a close reason is not valid UTF-8".to_owned()
            }
            CloseReason::Overload => "the server is overloaded: connect again later".to_owned(),
            CloseReason::Drain => "the server is shutting down".to_owned(),
        }
    }

    /// Sends the client the reason for the end, or echoes its close frame.
    async fn close(&mut self, why: CloseReason) -> tungstenite::Result<()> {
        let Some(code) = why.close_code() else {
            return self.wire.flush().await;
        };
        let reason = self.explain(why).into();
        self.wire.close(Some(CloseFrame { code, reason })).await
    }
}

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

pub(super) fn count_aborts(reason: &'static str, requests: u64) {
    counter!("souffleur_websocket_aborts_total", "reason" => reason).increment(requests);
}
