//! The messages on the WebSocket `/v1/ws/generate`, as JSON text.

use serde::Serialize;

use actix_web::web::Bytes;

use crate::budget::BodyCharge;
use crate::call::MAX_RID_BYTES;
use crate::error::{ApiError, ErrorBody};
use crate::fields::Fields;
use crate::native::{Meta, ReplyForm};
use crate::transcript::{Transcript, Update};
use crate::words::Dialect;
use souffleur_base::field::Field;
use souffleur_base::ids::RequestId;

pub(super) enum Op {
    Generate(Fields),
    Abort(String),
    Ping,
}

/// A frame that could not be parsed, with the id of its request if that is readable.
pub(super) struct BadFrame {
    pub(super) rid: Option<Box<str>>,
    pub(super) error: ApiError,
}

impl Op {
    /// Parses a frame. Its text and a copy of it are charged to the body budget.
    pub(super) fn parse(
        text: &str,
        mut charge: BodyCharge,
        max_values: usize,
    ) -> Result<Self, BadFrame> {
        let body = Bytes::copy_from_slice(text.as_bytes());
        let fields = charge
            .grow(2 * body.len())
            .and_then(|()| Fields::read(body, charge, max_values));
        let fields = fields.map_err(|error| BadFrame { rid: None, error })?;
        let rid = rid_of(&fields).map(String::into_boxed_str);
        Self::read(fields).map_err(|error| BadFrame { rid, error })
    }

    fn read(mut fields: Fields) -> Result<Self, ApiError> {
        const WANTED: &str = "generate, abort or ping";
        let op = fields.take("op")?;
        match op.as_ref().map(|op| (op, op.as_str())) {
            Some((_, Some("generate"))) => Ok(Self::Generate(fields)),
            Some((_, Some("ping"))) => Ok(Self::Ping),
            Some((_, Some("abort"))) => match fields.string("rid")? {
                Some(rid) => Ok(Self::Abort(rid)),
                None => Err(ApiError::field(
                    "rid",
                    "rid is missing: send the id of the request to abort",
                )),
            },
            Some((other, _)) => Err(Field::new("op", other).must_be(WANTED).into()),
            None => Err(ApiError::field(
                "op",
                format!("op is missing: send {WANTED}"),
            )),
        }
    }
}

/// The request id of a frame, unless it is too long to be repeated in an answer.
pub(super) fn rid_of(fields: &Fields) -> Option<String> {
    fields.text("rid").filter(|rid| rid.len() <= MAX_RID_BYTES)
}

#[derive(Serialize)]
struct DeltaFrame<'a> {
    rid: &'a RequestId,
    delta: &'a str,
    output_ids: &'a [u32],
    meta: Meta<'a>,
}

#[derive(Serialize)]
struct DoneFrame<'a> {
    rid: &'a RequestId,
    done: bool,
    meta: Meta<'a>,
}

#[derive(Serialize)]
struct ErrorFrame<'a> {
    rid: Option<&'a str>,
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct PongFrame {
    op: &'static str,
}

/// The frames for an update: the new output, then the end if the request has ended.
pub(super) fn update(rid: &RequestId, form: &ReplyForm, update: Update) -> Vec<String> {
    let Update { delta, end } = update;
    let usage = delta.usage;
    let part = Update { delta, end: None };
    let mut frames = Vec::new();
    if !part.is_empty() {
        let mut transcript = Transcript::default();
        transcript.push(part);
        let meta = Meta::new(rid, form, &transcript);
        let (delta, output_ids) = (&transcript.text, &transcript.tokens);
        frames.push(text(&DeltaFrame {
            rid,
            delta,
            output_ids,
            meta,
        }));
    }
    if end.is_some() {
        let transcript = Transcript {
            usage,
            end,
            ..Transcript::default()
        };
        let no_logprobs = ReplyForm::new(None, None);
        let meta = Meta::new(rid, &no_logprobs, &transcript);
        frames.push(text(&DoneFrame {
            rid,
            done: true,
            meta,
        }));
    }
    frames
}

/// The frame that ends a request with an error, or answers a frame that could not be parsed.
pub(super) fn error(rid: Option<&str>, error: &ApiError) -> String {
    let error = error.clone().in_dialect(Dialect::Sglang);
    text(&ErrorFrame {
        rid,
        error: error.body(),
    })
}

pub(super) fn pong() -> String {
    text(&PongFrame { op: "pong" })
}

fn text(frame: &impl Serialize) -> String {
    serde_json::to_string(frame).expect("frames have string keys only")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::budget::BodyBudget;
    use crate::transcript::TranscriptEnd;
    use souffleur_request::{Delta, FinishReason, Usage};

    #[track_caller]
    fn check(frame: &str, expected: Value) {
        assert_eq!(
            serde_json::from_str::<Value>(frame).expect("frames are JSON"),
            expected
        );
    }

    #[test]
    fn the_last_text_comes_before_the_end() {
        let usage = Usage {
            prompt_tokens: 3,
            completion_tokens: 2,
            ..Usage::default()
        };
        let delta = Delta {
            text: "hi".to_owned(),
            tokens: vec![7, 8],
            usage,
            ..Delta::default()
        };
        let end = TranscriptEnd {
            reason: FinishReason::StopToken(8),
            e2e_latency_s: 0.5,
            prompt: Default::default(),
            embedding: None,
            timings: None,
            accept_histogram: Default::default(),
        };
        let rid = RequestId::new("a");
        let form = ReplyForm::new(None, None);
        let frames = update(
            &rid,
            &form,
            Update {
                delta,
                end: Some(end),
            },
        );
        let [delta, done] = frames.as_slice() else {
            panic!("two frames, not {frames:?}")
        };
        let mut meta = json!({
            "id": "a", "finish_reason": null, "prompt_tokens": 3, "completion_tokens": 2,
            "cached_tokens": 0, "num_retractions": 0, "weight_version": "default",
        });
        check(
            delta,
            json!({"rid": "a", "delta": "hi", "output_ids": [7, 8], "meta": meta}),
        );
        meta["finish_reason"] = json!({"type": "stop", "matched": 8});
        meta["e2e_latency"] = json!(0.5);
        check(done, json!({"rid": "a", "done": true, "meta": meta}));
    }

    #[test]
    fn bad_frames_are_answered_with_their_rid() {
        let refused = |text: &str| match Op::parse(text, BodyBudget::new(1 << 20).open(), 100) {
            Err(bad) => error(bad.rid.as_deref(), &bad.error),
            Ok(_) => panic!("{text} is accepted"),
        };
        let error = |message: &str, param: Value| {
            json!({
                "message": message, "type": "invalid_request_error", "param": param,
                "code": "invalid_request",
            })
        };
        let frame = refused(r#"{"op": "sing", "rid": "a"}"#);
        let text = "op is \"sing\", must be generate, abort or ping";
        check(
            &frame,
            json!({"rid": "a", "error": error(text, json!("op"))}),
        );
        let frame = refused(r#"{"op": "abort"}"#);
        let text = "rid is missing: send the id of the request to abort";
        check(
            &frame,
            json!({"rid": null, "error": error(text, json!("rid"))}),
        );
    }
}
