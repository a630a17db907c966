//! The messages on the WebSocket `/v1/responses`, as JSON text.

use serde::Serialize;
use serde_json::value::RawValue;

use actix_web::web::Bytes;

use super::super::connection::{CloseReason, Connection};
use super::lanes::LaneName;
use crate::budget::BodyCharge;
use crate::error::{ApiError, ErrorBody};
use crate::fields::Fields;
use crate::openai::responses::WrittenEvent;
use souffleur_base::field::Field;

pub(super) enum ClientFrame {
    /// Creates a response, with the fields of a request body.
    Create(Fields),
    /// Input for a response in progress.
    Steer(Steer),
}

pub(super) struct Steer {
    input: Option<Box<RawValue>>,
    previous_response_id: Option<String>,
}

impl ClientFrame {
    /// Parses a frame. Its text and a copy of it are charged to the body budget while the frame waits and is parsed.
    pub(super) fn parse(
        text: &str,
        mut charge: BodyCharge,
        max_values: usize,
    ) -> Result<Self, ApiError> {
        const WANTED: &str = "response.create";
        let body = Bytes::copy_from_slice(text.as_bytes());
        charge.grow(2 * body.len())?;
        let mut fields = Fields::read(body, charge, max_values)?;
        let kind = fields.take("type")?;
        match kind.as_ref().map(|kind| (kind, kind.as_str())) {
            Some((_, Some(WANTED))) => Ok(Self::Create(fields)),
            Some((_, Some("response.steer"))) => Ok(Self::Steer(Steer {
                input: fields
                    .take_raw("input")
                    .and_then(|input| input.parse("input").ok()),
                previous_response_id: fields.text("previous_response_id"),
            })),
            Some((other, _)) => Err(Field::new("type", other).must_be(WANTED).into()),
            None => Err(ApiError::field(
                "type",
                format!("type is missing: send {WANTED}"),
            )),
        }
    }
}

#[derive(Serialize)]
struct SteerFailed<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    sequence_number: u32,
    error: SteerError,
    steer: SteerEcho<'a>,
}

#[derive(Serialize)]
struct SteerError {
    code: &'static str,
    message: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Serialize)]
struct SteerEcho<'a> {
    input: Option<&'a RawValue>,
    previous_response_id: Option<&'a str>,
}

impl Steer {
    /// The answer, which returns the input, since steering a response is not supported.
    pub(super) fn refused(&self) -> String {
        text(&SteerFailed {
            kind: "response.steer.failed",
            sequence_number: 0,
            error: SteerError {
                code: "steering_not_supported",
                message: "input cannot be added to a running response: send it with the next response.create",
                kind: "invalid_request_error",
            },
            steer: SteerEcho {
                input: self.input.as_deref(),
                previous_response_id: self.previous_response_id.as_deref(),
            },
        })
    }
}

#[derive(Serialize)]
struct ErrorFrame<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    /// The status has two names, as clients differ in the one that they read.
    status: u16,
    status_code: u16,
    error: ErrorBody<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<Headers>,
}

#[derive(Serialize)]
struct Headers {
    #[serde(rename = "retry-after")]
    retry_after: String,
}

pub(super) async fn refuse(
    connection: &mut Connection<LaneName>,
    lane: Option<&str>,
    error: &ApiError,
) -> Result<(), CloseReason> {
    let status = error.http_status();
    let retry_after = error.retry_after_s().map(|seconds| seconds.to_string());
    let frame = text(&ErrorFrame {
        kind: "error",
        status,
        status_code: status,
        error: error.body(),
        stream_id: lane,
        headers: retry_after.map(|retry_after| Headers { retry_after }),
    });
    connection.send(frame).await
}

pub(super) async fn send_all(
    connection: &mut Connection<LaneName>,
    events: Vec<WrittenEvent>,
) -> Result<(), CloseReason> {
    for event in events {
        let json = String::from_utf8(event.json).expect("JSON is text");
        connection.send(json).await?;
    }
    Ok(())
}

fn text(frame: &impl Serialize) -> String {
    serde_json::to_string(frame).expect("frames have string keys only")
}
