//! Builds the OpenAPI description of one method of one path.

use serde_json::Value;
use utoipa::openapi::path::{Operation, OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::{ContentBuilder, Required, Response, ResponseBuilder};

use super::shape::{Shape, named, object, text};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    OpenAi,
    Anthropic,
    Ollama,
    SgLang,
    LlamaCpp,
    Tokens,
    Control,
    Server,
}

impl Group {
    pub(super) const ALL: [(Self, &'static str, &'static str); 8] = [
        (
            Self::OpenAi,
            "OpenAI",
            "OpenAI's API, with SGLang's and vLLM's additional fields",
        ),
        (Self::Anthropic, "Anthropic", "Anthropic's Messages"),
        (
            Self::Ollama,
            "Ollama",
            "Ollama's API, except for the operations that download and change models",
        ),
        (Self::SgLang, "SGLang", "SGLang's native API"),
        (Self::LlamaCpp, "llama.cpp", "llama.cpp's API for editors"),
        (Self::Tokens, "Tokens", "Text as tokens, and tokens as text"),
        (
            Self::Control,
            "Control",
            "Operations that change the server or its requests",
        ),
        (Self::Server, "Server", "Health, information and metrics"),
    ];

    fn name(self) -> &'static str {
        let found = Self::ALL.into_iter().find(|(group, ..)| *group == self);
        found.map_or("", |(_, name, _)| name)
    }
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
pub(crate) const LINES: &str = "application/x-ndjson";

pub(crate) struct Describe {
    operation: OperationBuilder,
    answer: ResponseBuilder,
    error: &'static str,
}

pub(crate) fn describe(group: Group, summary: &str) -> Describe {
    Describe {
        operation: OperationBuilder::new()
            .tag(group.name())
            .summary(Some(summary)),
        answer: ResponseBuilder::new(),
        error: match group {
            Group::Anthropic => "AnthropicError",
            Group::Ollama => "OllamaError",
            _ => "Error",
        },
    }
}

impl Describe {
    /// Adds a longer description, in Markdown.
    pub(crate) fn about(mut self, text: &str) -> Self {
        self.operation = self.operation.description(Some(text));
        self
    }

    /// Adds a parameter in the path.
    pub(crate) fn at(mut self, name: &str, about: &str) -> Self {
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .description(Some(about))
            .schema(Some(text().longer_than(0)));
        self.operation = self.operation.parameter(parameter);
        self
    }

    pub(crate) fn query(mut self, name: &str, shape: Shape, about: &str) -> Self {
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Query)
            .required(Required::False)
            .description(Some(about))
            .schema(Some(shape));
        self.operation = self.operation.parameter(parameter);
        self
    }

    /// The operation requires this body in JSON.
    pub(crate) fn takes(mut self, body: Shape, example: Value) -> Self {
        let content = ContentBuilder::new()
            .schema(Some(body))
            .example(Some(example));
        let body = RequestBodyBuilder::new()
            .content(JSON, content.build())
            .required(Some(Required::True));
        self.operation = self.operation.request_body(Some(body.build()));
        self.fails(400, "a field, or the whole body, is invalid: the message names it, the limit and the remedy")
            .fails(408, "the body did not arrive in time (`body_timeout_s`)")
            .fails(413, "the body is larger than `max_body_bytes`")
            .fails(415, "the body is not declared as JSON, or it is compressed")
    }

    pub(crate) fn answers(self, shape: Shape, about: &str) -> Self {
        self.answers_as(JSON, shape, about)
    }

    pub(crate) fn answers_as(mut self, content_type: &str, shape: Shape, about: &str) -> Self {
        let content = ContentBuilder::new().schema(Some(shape)).build();
        self.answer = self
            .answer
            .description(about)
            .content(content_type, content);
        self
    }

    /// With `stream`, the operation answers with server-sent events, each with JSON of the schema `event`.
    pub(crate) fn streams(mut self, event: &str, about: &str) -> Self {
        let about = format!("{about} The `data` of each is JSON of the schema `{event}`.");
        let shape = object().has("data", text()).takes("event", text());
        let content = ContentBuilder::new().schema(Some(shape.shape().about(&about)));
        self.answer = self.answer.content(EVENTS, content.build());
        self
    }

    /// With `stream`, the operation answers with lines, each with JSON of the schema `line`.
    pub(crate) fn streams_lines(mut self, line: &str, about: &str) -> Self {
        let about = format!("{about} Each line is JSON of the schema `{line}`.");
        let content = ContentBuilder::new().schema(Some(text().about(&about)));
        self.answer = self.answer.content(LINES, content.build());
        self
    }

    pub(crate) fn answers_nothing(mut self, about: &str) -> Self {
        self.answer = self.answer.description(about);
        self
    }

    /// The operation answers 304 to clients that have its answer in their cache.
    pub(crate) fn may_answer_304(mut self) -> Self {
        let response = ResponseBuilder::new().description("nothing has changed");
        self.operation = self.operation.response("304", response.build());
        self
    }

    pub(crate) fn fails(mut self, status: u16, about: &str) -> Self {
        let response = failure(self.error, about);
        self.operation = self.operation.response(status.to_string(), response);
        self
    }

    /// The operation runs requests in the engine, and may fail with any of the engine's errors.
    pub(crate) fn runs_requests(self) -> Self {
        self.fails(500, "the request failed in the engine: `out_of_memory`, `nan_logits`, `slow_client`, `step_failed`")
            .needs_engine("overloaded, out of time, aborted, or without an engine: come back after `Retry-After`")
    }

    pub(crate) fn needs_engine(self, about: &str) -> Self {
        self.fails(503, about)
    }

    pub(crate) fn upgrades(mut self) -> Self {
        let response = ResponseBuilder::new().description("the WebSocket is open");
        self.operation = self.operation.response("101", response.build());
        self.fails(400, "the request is not a WebSocket handshake")
            .fails(
                426,
                "the client speaks another version of the WebSocket protocol",
            )
            .fails(
                503,
                "too many WebSockets are open (`ws_max_connections`), or there is no engine",
            )
    }

    pub(crate) fn done(self) -> Operation {
        let answer = self.answer.build();
        let operation = if answer.description.is_empty() {
            self.operation
        } else {
            self.operation.response("200", answer)
        };
        operation.build()
    }
}

pub(super) fn failure(error: &str, about: &str) -> Response {
    failure_as_json(error, about).build()
}

/// As [`failure`], of a page: browsers get HTML.
pub(super) fn failure_of_page(error: &str, about: &str) -> Response {
    let content = ContentBuilder::new().schema(Some(text())).build();
    failure_as_json(error, about)
        .content("text/html", content)
        .build()
}

fn failure_as_json(error: &str, about: &str) -> ResponseBuilder {
    let content = ContentBuilder::new().schema(Some(named(error))).build();
    ResponseBuilder::new()
        .description(about)
        .content(JSON, content)
}
