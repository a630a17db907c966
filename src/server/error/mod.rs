//! Errors as clients see them: OpenAI's error object. (Anthropic's endpoints and gRPC convert it to their forms.)

mod http;
mod rewrite;

use std::fmt;
use std::time::Duration;

use actix_web::http::{StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, ResponseError};
use serde::Serialize;

pub(super) use rewrite::{rewritten, with_json};

use super::words::{Dialect, Worded};
use souffleur_base::error::{FieldError, RETRY_AFTER_S, RequestError};
use souffleur_base::field::Cut;
use souffleur_base::ids::RequestId;

const TOO_MANY_VIEWERS: &str = "too_many_viewers";
/// People watch for minutes, so a seat is rarely free at once.
const VIEWERS_RETRY_AFTER_S: u32 = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    param: Option<String>,
    accepts: Option<Accepts>,
    /// Set if each API has its own message for the error.
    worded: Option<Box<Worded>>,
}

/// The header that names the alternatives to a refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accepts {
    /// `Allow`: the methods of the path.
    Methods(&'static str),
    /// `Accept-Encoding`: bodies without compression.
    PlainBodies,
}

#[derive(Serialize)]
pub(super) struct ErrorBody<'a> {
    pub(super) message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    pub(super) param: Option<&'a str>,
    code: &'static str,
}

impl ApiError {
    pub(super) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        FieldError::new(param, message).into()
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    pub(super) fn unsupported(param: &str) -> Self {
        FieldError::not_yet(param).into()
    }

    pub(super) fn no_such_model(id: &str, served: &str) -> Self {
        let message = format!("model {id:?} does not exist, this server serves {served:?}");
        let param = Some("model".to_owned());
        Self {
            param,
            ..Self::new(StatusCode::NOT_FOUND, "model_not_found", message)
        }
    }

    /// 404, with the message of Ollama, which its clients know.
    pub(super) fn model_not_found(name: &str) -> Self {
        let message = format!("model '{name}' not found");
        let param = Some("model".to_owned());
        Self {
            param,
            ..Self::new(StatusCode::NOT_FOUND, "model_not_found", message)
        }
    }

    pub(super) fn no_prefix_report(rid: &RequestId) -> Self {
        let message = format!(
            "no diagnosis of request {:?}: it was not admitted, is too old, or prefix_diagnostics is off",
            rid.as_str()
        );
        Self::new(StatusCode::NOT_FOUND, "unknown_request", message)
    }

    pub(super) fn no_such_request(rid: &RequestId) -> Self {
        let message = format!(
            "request {} neither runs nor waits: it has ended, is still being tokenized, or was never sent",
            Cut(rid.as_str())
        );
        Self::new(StatusCode::NOT_FOUND, "unknown_request", message)
    }

    /// 503: an actor sent no answer within `limit`.
    pub(super) fn no_answer(limit: Duration) -> Self {
        let message = format!(
            "the engine's Scheduler did not answer within {} ms: it hangs or is overloaded; /debug/actors and \
             /debug/engine need no answer of it",
            limit.as_millis()
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "no_answer", message)
    }

    pub(super) fn no_such_session(id: &str) -> Self {
        let message = format!(
            "session {} is not open: it was never opened, was closed, or was unused for too long",
            Cut(id)
        );
        Self::new(StatusCode::NOT_FOUND, "session_not_found", message)
    }

    /// `unit` is that of the limit: `sessions`, or the `bytes` of all of them.
    pub(super) fn sessions_full(unit: &str, limit: usize) -> Self {
        let message = format!(
            "the open sessions would exceed the limit of {limit} {unit}: close a session first"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "sessions_full", message)
    }

    pub(super) fn no_such_response(id: &str) -> Self {
        let message = format!(
            "response {} is not stored here: it was never stored, is too old, or was deleted",
            Cut(id)
        );
        Self::new(StatusCode::NOT_FOUND, "response_not_found", message)
    }

    /// 400. OpenAI's clients know the code.
    pub(super) fn no_previous_response(id: &str) -> Self {
        let message = format!(
            "previous response {} is not stored here: send the whole conversation as input",
            Cut(id)
        );
        let param = Some("previous_response_id".to_owned());
        Self {
            param,
            ..Self::new(
                StatusCode::BAD_REQUEST,
                "previous_response_not_found",
                message,
            )
        }
    }

    pub(super) fn no_such_item(param: String, id: &str, remedy: &str) -> Self {
        let message = format!("item {} is not stored here: {remedy}", Cut(id));
        let param = Some(param);
        Self {
            param,
            ..Self::new(StatusCode::NOT_FOUND, "item_not_found", message)
        }
    }

    /// 400. OpenAI's clients know the code.
    pub(super) fn invalid_stream_id(message: &str) -> Self {
        let param = Some("stream_id".to_owned());
        Self {
            param,
            ..Self::new(StatusCode::BAD_REQUEST, "invalid_stream_id", message)
        }
    }

    /// 400. OpenAI's clients know the code.
    pub(super) fn too_many_lanes(limit: usize) -> Self {
        let message = format!(
            "this connection already uses {limit} different stream_ids, which is the limit: reuse one of them, or open \
             another connection"
        );
        let code = "websocket_stream_limit_reached";
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub(super) fn http_status(&self) -> u16 {
        self.status.as_u16()
    }

    pub(super) fn retry_after_s(&self) -> Option<u32> {
        let seconds = if self.code == TOO_MANY_VIEWERS {
            VIEWERS_RETRY_AFTER_S
        } else {
            RETRY_AFTER_S
        };
        (self.status == StatusCode::SERVICE_UNAVAILABLE).then_some(seconds)
    }

    /// 503: the request was cancelled, but not by its client.
    pub(super) fn aborted() -> Self {
        let message = "the request was cancelled by /abort_request, /pause_generation or a shutdown: send it again";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "aborted", message)
    }

    /// 503 `engine_down`: an operation of the server failed or was interrupted, while the engine may still run.
    pub(super) fn interrupted(message: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "engine_down", message)
    }

    /// The same error, with the message that clients of this API look for.
    pub(super) fn in_dialect(mut self, dialect: Dialect) -> Self {
        if let Some(worded) = &self.worded {
            self.message = worded.message_in(dialect);
        }
        self
    }

    /// The same error, with an endpoint's own name for the field.
    pub(super) fn renamed(mut self, from: &str, to: &str) -> Self {
        if self.param.as_deref() == Some(from) {
            self.param = Some(to.to_owned());
        }
        self
    }

    pub(super) fn bodies_full(limit_bytes: usize) -> Self {
        let text =
            format!("the bodies of all running requests reach the limit of {limit_bytes} bytes");
        let message = format!("{text}: try again later");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
    }

    pub(super) fn answers_full(limit_bytes: usize) -> Self {
        let message = format!(
            "the server has no memory left for answers (limit {limit_bytes} bytes, used by other answers): try again \
             later, or ask for less at once"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
    }

    pub(super) fn loading() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "loading",
            "the model is being loaded: try again later",
        )
    }

    pub(super) fn load_failed(reason: &str) -> Self {
        let message = format!("the model could not be loaded: {reason}");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "load_failed", message)
    }

    pub(super) fn no_token(seconds: u32) -> Self {
        let message = format!(
            "the engine generated no token within {seconds} s (health_generate_timeout_s): it is overloaded or hangs; \
             try again later"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "no_token", message)
    }

    pub(super) fn too_many_websockets(limit: usize) -> Self {
        let message = format!("{limit} WebSockets are open, which is the limit: try again later");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
    }

    pub(super) fn too_many_viewers(limit: usize) -> Self {
        let message =
            format!("{limit} clients watch the engine, which is the limit: try again later");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY_VIEWERS, message)
    }

    /// 503: the thread that reads the engine for the console cannot be started.
    pub(super) fn no_sampler(error: &std::io::Error) -> Self {
        let message =
            format!("the console's thread could not be started: {error}: try again later");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
    }

    pub(super) fn too_many_on_websocket(limit: usize) -> Self {
        let text = format!("this connection would have more than {limit} requests in flight");
        let remedy = "wait for one to end, open another connection, or ask for fewer samples";
        let message = format!("{text}, which is the limit: {remedy}");
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too_many_requests",
            message,
        )
    }

    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            param: None,
            accepts: None,
            worded: None,
        }
    }

    pub(super) fn body(&self) -> ErrorBody<'_> {
        let kind = match self.status {
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let param = self.param.as_deref();
        ErrorBody {
            message: &self.message,
            kind,
            param,
            code: self.code,
        }
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn code(&self) -> &'static str {
        self.code
    }
}

impl From<FieldError> for ApiError {
    fn from(error: FieldError) -> Self {
        let param = Some(error.field().to_owned());
        Self {
            param,
            ..Self::new(StatusCode::BAD_REQUEST, error.code(), error.to_string())
        }
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        if let RequestError::Field(error) = error {
            return error.into();
        }
        let status = StatusCode::from_u16(error.status());
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let base = Self::new(status, error.code(), error.to_string());
        let worded = Worded::of(&error).map(Box::new);
        Self { worded, ..base }.in_dialect(Dialect::OpenAi)
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        self.status
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status);
        if let Some(seconds) = self.retry_after_s() {
            response.insert_header((header::RETRY_AFTER, seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
        }
        if self.status == StatusCode::UPGRADE_REQUIRED {
            response.insert_header((header::UPGRADE, "websocket"));
            response.insert_header((header::SEC_WEBSOCKET_VERSION, "13"));
        }
        match self.accepts {
            Some(Accepts::Methods(methods)) => {
                response.insert_header((header::ALLOW, methods));
            }
            Some(Accepts::PlainBodies) => {
                response.insert_header((header::ACCEPT_ENCODING, "identity"));
            }
            None => (),
        }
        response.json(Envelope { error: self.body() })
    }
}

#[derive(Serialize)]
pub(super) struct Envelope<'a> {
    pub(super) error: ErrorBody<'a>,
}

pub(super) async fn not_found(request: HttpRequest) -> Result<HttpResponse, ApiError> {
    Err(nothing_at(request.path()))
}

pub(super) fn nothing_at(path: &str) -> ApiError {
    let message = format!("there is no route {path}");
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

pub(super) fn method_not_allowed(request: &HttpRequest, allow: &'static str) -> ApiError {
    let (method, path) = (request.method(), request.path());
    let message = format!("{path} does not support {method}: use {allow}");
    let error = ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        message,
    );
    ApiError {
        accepts: Some(Accepts::Methods(allow)),
        ..error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use souffleur_state::request_limits::RequestLimits;
    use souffleur_state::sampling::SamplingParams;

    #[track_caller]
    fn check(params: SamplingParams, param: &str, text: &str) {
        let error = params.validate(100, &RequestLimits::default());
        let error = ApiError::from(error.expect_err("is refused"));
        assert_eq!(error, ApiError::field(param, text));
    }

    #[test]
    fn sampling_errors_name_the_parameter() {
        let params = SamplingParams {
            top_p: 2.0,
            ..SamplingParams::default()
        };
        let text =
            "top_p is 2, must be in [0, 1]: use 1 to keep all tokens, 0 for the most likely one";
        check(params, "top_p", text);
        let params = SamplingParams {
            stop: ["a".to_owned(), String::new()].into(),
            ..SamplingParams::default()
        };
        let text = "stop[1] is empty, must have at least 1 byte: leave it out";
        check(params, "stop", text);
    }

    #[test]
    fn a_message_that_begins_with_a_field_name_has_no_param() {
        for text in ["top_p is 2", "the prompt is empty", ""] {
            let error = ApiError::from(RequestError::Invalid(text.to_owned()));
            assert_eq!(error, ApiError::invalid(text));
        }
    }
}
