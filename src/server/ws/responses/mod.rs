//! Handles the messages of the WebSocket `/v1/responses`, as OpenAI's `client.responses.connect()` and Codex use it.
//!
//! The client sends `{"type": "response.create", ...}` with the fields of a request body, and the server sends the
//! stream's events as JSON. A request may name a lane (`stream_id`), and its events repeat the name. Requests of one
//! lane are answered in sequence, lanes in parallel. Responses with `store: false` are deleted with the connection.

mod frames;
mod lanes;

use std::sync::Arc;

use super::connection::{CloseReason, Connection, MessageHandler};
use super::fetches::Fetches;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::responses::store::ResponseStore;
use crate::openai::responses::{
    Begun, ConnectionId, Owner, ResponseId, StartedResponse, Writer, WrittenEvent, begin, reworded,
};
use crate::state::AppState;
use crate::transcript::Update;
use frames::ClientFrame;
use lanes::{LaneName, Lanes};
use souffleur_request::Event;

pub(super) struct Responses {
    id: ConnectionId,
    store: ResponseStore,
    /// A lane has no response while the images of its request are fetched.
    lanes: Lanes<Fields, Option<Running>>,
    fetches: Fetches<Fetched>,
}

struct Running {
    writer: Writer,
    previous: Option<ResponseId>,
}

pub(super) struct Fetched {
    name: LaneName,
    previous: Option<ResponseId>,
    started: Result<StartedResponse, ApiError>,
}

impl Responses {
    pub(super) fn new(state: &AppState) -> Self {
        let store = state.responses().clone();
        Self {
            id: store.connection(),
            lanes: Lanes::new(state.config()),
            fetches: Fetches::default(),
            store,
        }
    }

    /// Starts the requests whose turn it is.
    async fn serve(&mut self, connection: &mut Connection<LaneName>) -> Result<(), CloseReason> {
        while let Some((name, fields)) = self.lanes.next() {
            let previous = fields.text("previous_response_id");
            let previous = previous.map(|id| ResponseId::from_client(&id));
            match self.begin(connection, &name, fields) {
                Ok(begun) if begun.has_all_images() => match begun.start() {
                    Ok(started) => {
                        let (running, events) = open(connection, &name, started, previous);
                        self.lanes.started(&name, Some(running));
                        frames::send_all(connection, events).await?;
                    }
                    Err(error) => self.refuse(connection, &name, previous, error).await?,
                },
                Ok(begun) => {
                    self.lanes.started(&name, None);
                    self.fetches.add(async move {
                        let started = begun.fetch().await;
                        Fetched {
                            name,
                            previous,
                            started,
                        }
                    });
                }
                Err(error) => self.refuse(connection, &name, previous, error).await?,
            }
        }
        Ok(())
    }

    fn begin(
        &self,
        connection: &Connection<LaneName>,
        name: &LaneName,
        fields: Fields,
    ) -> Result<Begun, ApiError> {
        let owner = Owner::Connection {
            id: self.id,
            lane: name.clone(),
        };
        begin(&connection.state, fields, owner, name.clone())
    }

    async fn refuse(
        &self,
        connection: &mut Connection<LaneName>,
        name: &LaneName,
        previous: Option<ResponseId>,
        error: ApiError,
    ) -> Result<(), CloseReason> {
        self.forget(previous.as_ref(), name);
        frames::refuse(connection, name.as_deref(), &reworded(error)).await
    }

    fn running(&mut self, name: &LaneName) -> Option<&mut Running> {
        self.lanes.running(name).and_then(Option::as_mut)
    }

    /// Deletes the response that a failed request continued, as OpenAI does, if it belongs to this lane alone.
    fn forget(&self, previous: Option<&ResponseId>, lane: &LaneName) {
        if let Some(previous) = previous {
            self.store.forget_own(previous, self.id, lane.as_ref());
        }
    }

    fn read(&self, fields: &mut Fields) -> Result<LaneName, ApiError> {
        let name = lanes::name(fields)?;
        self.lanes.check(&name)?;
        // A WebSocket always streams.
        fields.take_raw("stream");
        fields.default_to("stream", Some(true.into()));
        Ok(name)
    }
}

/// Begins the stream of a response. Returns its writer, and its first events.
fn open(
    connection: &mut Connection<LaneName>,
    name: &LaneName,
    started: StartedResponse,
    previous: Option<ResponseId>,
) -> (Running, Vec<WrittenEvent>) {
    let StartedResponse {
        lane, mut writer, ..
    } = started;
    connection.add_lane(lane.events(name.clone()));
    writer.open();
    let events = writer.take();
    (Running { writer, previous }, events)
}

impl Drop for Responses {
    fn drop(&mut self) {
        self.store.forget_all_own(self.id);
    }
}

impl MessageHandler for Responses {
    type Key = LaneName;
    type Fetched = Fetched;

    fn in_flight(&self) -> usize {
        self.lanes.in_flight()
    }

    async fn fetched(&mut self) -> Fetched {
        self.fetches.next().await
    }

    async fn on_fetched(
        &mut self,
        connection: &mut Connection<LaneName>,
        fetched: Fetched,
    ) -> Result<(), CloseReason> {
        let Fetched {
            name,
            previous,
            started,
        } = fetched;
        match started {
            Ok(started) => {
                let (running, events) = open(connection, &name, started, previous);
                if let Some(lane) = self.lanes.running(&name) {
                    *lane = Some(running);
                }
                frames::send_all(connection, events).await
            }
            Err(error) => {
                self.lanes.ended(&name);
                self.refuse(connection, &name, previous, error).await?;
                self.serve(connection).await
            }
        }
    }

    async fn on_text(
        &mut self,
        connection: &mut Connection<LaneName>,
        text: &str,
    ) -> Result<(), CloseReason> {
        let state = &connection.state;
        let max_values = state.config().max_body_values;
        let frame = ClientFrame::parse(text, state.bodies().open(), max_values);
        match frame {
            Ok(ClientFrame::Create(mut fields)) => match self.read(&mut fields) {
                Ok(name) => {
                    self.lanes.add(name, fields);
                    self.serve(connection).await
                }
                Err(error) => {
                    let lane: Option<Arc<str>> = lanes::name(&mut fields).ok().flatten();
                    frames::refuse(connection, lane.as_deref(), &error).await
                }
            },
            Ok(ClientFrame::Steer(steer)) => connection.send(steer.refused()).await,
            Err(error) => frames::refuse(connection, None, &error).await,
        }
    }

    async fn on_binary(
        &mut self,
        connection: &mut Connection<LaneName>,
    ) -> Result<(), CloseReason> {
        let error = ApiError::invalid("the frame is binary: send JSON as text");
        frames::refuse(connection, None, &error).await
    }

    async fn on_event(
        &mut self,
        connection: &mut Connection<LaneName>,
        name: LaneName,
        event: Event,
    ) -> Result<(), CloseReason> {
        let is_over = event.is_terminal();
        match Update::of(event) {
            Ok(update) => {
                let mut pieces = Vec::new();
                update.in_pieces(|piece| pieces.push(piece));
                for piece in pieces {
                    let Some(running) = self.running(&name) else {
                        break;
                    };
                    running.writer.push(piece);
                    let events = running.writer.take();
                    frames::send_all(connection, events).await?;
                    // Between pieces the worker serves its other clients.
                    tokio::task::yield_now().await;
                }
            }
            Err(error) => {
                if let Some(running) = self.running(&name) {
                    running.writer.fail(&reworded(error.into()));
                    let (events, previous) = (running.writer.take(), running.previous.clone());
                    self.forget(previous.as_ref(), &name);
                    frames::send_all(connection, events).await?;
                }
            }
        }
        if is_over {
            self.lanes.ended(&name);
            self.serve(connection).await?;
        }
        Ok(())
    }
}
