//! Writes a response, as a stream of events or whole.

use std::sync::Arc;

use serde::Serialize;

use super::events::{Events, WrittenEvent};
use super::ids::ResponseId;
use super::items::{ItemStatus, OutputItem};
use super::messages::Messages;
use super::output::Output;
use super::pinning::Pinning;
use super::reworded;
use super::settings::Settings;
use super::store::{KeptTokens, NewResponse, Owner, ResponseStore, StoredItem, Turn};
use crate::error::ApiError;
use crate::openai::answer::Write;
use crate::openai::logprobs::ChatLogprobs;
use crate::openai::unix_now_s;
use crate::spelling::Spelling;
use crate::sse::{Chunks, Render};
use crate::transcript::{Transcript, TranscriptEnd, Update};
use souffleur_base::error::RequestError;
use souffleur_engine::SoftPin;
use souffleur_request::{FinishReason, Usage};

/// The data for storing a response at its end.
pub(super) struct StoreJob {
    pub(super) store: ResponseStore,
    pub(super) owner: Owner,
    pub(super) input: Vec<StoredItem>,
    pub(super) earlier: Vec<Arc<Turn>>,
    /// The messages of the response's input, as JSON, and their number.
    pub(super) messages: (Vec<u8>, usize),
    pub(super) setup_hash: [u8; 32],
    pub(super) pinning: Option<Pinning>,
}

pub(super) struct WriterParts {
    pub(super) id: ResponseId,
    pub(super) settings: Settings,
    pub(super) output: Output,
    pub(super) spelling: Option<Spelling>,
    pub(super) is_silent: bool,
    pub(super) lane: Option<Arc<str>>,
    pub(super) is_warm_up: bool,
    pub(super) store_job: Option<StoreJob>,
}

pub(crate) struct Writer {
    head: Head,
    output: Output,
    events: Events,
    spelling: Option<Spelling>,
    usage: Option<Usage>,
    tokens: Vec<u32>,
    is_warm_up: bool,
    store_job: Option<StoreJob>,
    /// The whole response, once it has ended.
    ended: Vec<u8>,
}

struct Head {
    id: ResponseId,
    created_at: u64,
    settings: Settings,
}

#[derive(Serialize)]
struct Response<'a> {
    id: &'a ResponseId,
    object: &'static str,
    created_at: u64,
    completed_at: Option<u64>,
    status: &'static str,
    error: Option<Failure<'a>>,
    incomplete_details: Option<Incomplete>,
    output: &'a [OutputItem],
    usage: Option<UsageReport>,
    #[serde(flatten)]
    settings: &'a Settings,
}

#[derive(Clone, Copy, Serialize)]
struct Incomplete {
    reason: &'static str,
}

/// The error of a failed response. `code` is one of the few codes that clients know; `kind` is this server's code.
#[derive(Serialize)]
struct Failure<'a> {
    code: &'static str,
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
}

impl<'a> Failure<'a> {
    fn of(error: &'a ApiError) -> Self {
        let body = error.body();
        let kind = error.code();
        let code = match kind {
            // After this code agents shorten the conversation; after other codes they retry.
            "context_length_exceeded" => kind,
            // After this code Codex waits for the time in the message; after `server_is_overloaded` it stops.
            "overloaded" => "rate_limit_exceeded",
            _ if error.http_status() < 500 => "invalid_prompt",
            _ => "server_error",
        };
        Self {
            code,
            message: body.message,
            kind,
            param: body.param,
        }
    }
}

#[derive(Serialize)]
struct OfResponse<T> {
    response: T,
}

/// Token counts, with the names of OpenAI's Responses API.
#[derive(Serialize)]
struct UsageReport {
    input_tokens: u32,
    input_tokens_details: InputTokens,
    output_tokens: u32,
    output_tokens_details: OutputTokens,
    total_tokens: u64,
}

#[derive(Serialize)]
struct InputTokens {
    cached_tokens: u32,
    cache_write_tokens: u32,
}

#[derive(Serialize)]
struct OutputTokens {
    reasoning_tokens: u32,
}

impl UsageReport {
    fn of(usage: Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokens {
                cached_tokens: usage.cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokens {
                reasoning_tokens: usage.reasoning_tokens,
            },
            total_tokens: u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
        }
    }
}

struct Progress<'a> {
    status: &'static str,
    error: Option<Failure<'a>>,
    incomplete: Option<Incomplete>,
}

impl Progress<'_> {
    const IN_PROGRESS: Self = Self {
        status: "in_progress",
        error: None,
        incomplete: None,
    };
    const COMPLETED: Self = Self {
        status: "completed",
        error: None,
        incomplete: None,
    };
    const CUT_OFF: Self = Self {
        status: "incomplete",
        error: None,
        incomplete: Some(Incomplete {
            reason: "max_output_tokens",
        }),
    };
}

impl Writer {
    pub(super) fn new(parts: WriterParts) -> Self {
        Self {
            head: Head {
                id: parts.id,
                created_at: unix_now_s(),
                settings: parts.settings,
            },
            output: parts.output,
            events: Events::new(parts.is_silent, parts.lane),
            spelling: parts.spelling,
            usage: None,
            tokens: Vec::new(),
            is_warm_up: parts.is_warm_up,
            store_job: parts.store_job,
            ended: Vec::new(),
        }
    }

    pub(crate) fn open(&mut self) {
        for name in ["response.created", "response.in_progress"] {
            let response = response(&self.head, &self.output, None, Progress::IN_PROGRESS);
            self.events.push(name, &OfResponse { response });
        }
    }

    pub(crate) fn push(&mut self, update: Update) {
        let Update { delta, end } = update;
        self.usage = Some(delta.usage);
        if !self.is_warm_up {
            let spelling = self.spelling.as_ref();
            let logprobs = spelling
                .map(|spelling| ChatLogprobs::new(&delta.output_logprobs, spelling).into_tokens());
            let logprobs = logprobs.unwrap_or_default();
            self.output
                .push(delta.text, delta.pieces, logprobs, &mut self.events);
        }
        self.tokens.extend(delta.tokens);
        if let Some(end) = end {
            self.end(&end);
        }
    }

    pub(crate) fn fail(&mut self, error: &ApiError) {
        self.output.close(ItemStatus::Incomplete, &mut self.events);
        let progress = Progress {
            status: "failed",
            error: Some(Failure::of(error)),
            incomplete: None,
        };
        let response = response(&self.head, &self.output, self.usage, progress);
        self.ended = serde_json::to_vec(&response).expect("responses have string keys only");
        self.events
            .push("response.failed", &OfResponse { response });
        self.store_job = None;
    }

    pub(crate) fn take(&mut self) -> Vec<WrittenEvent> {
        self.events.take()
    }

    fn end(&mut self, end: &TranscriptEnd) {
        let (name, progress, status) = match end.reason {
            FinishReason::Abort => {
                return self.fail(&ApiError::aborted());
            }
            FinishReason::Length { .. } if !self.is_warm_up => {
                let status = ItemStatus::Incomplete;
                ("response.incomplete", Progress::CUT_OFF, status)
            }
            _ => {
                let status = ItemStatus::Completed;
                ("response.completed", Progress::COMPLETED, status)
            }
        };
        self.output.close(status, &mut self.events);
        let delta_lens = self.output.take_delta_lens();
        let response = response(&self.head, &self.output, self.usage, progress);
        self.ended = serde_json::to_vec(&response).expect("responses have string keys only");
        // Stored before the last event is sent, since a client may continue the response right after that event.
        let ended = &self.ended;
        if let Some(store_job) = self.store_job.take() {
            let tokens = &mut self.tokens;
            let output = FinalOutput {
                pin: store_job.pin(end, tokens),
                tokens: known_tokens(end, tokens, self.is_warm_up, store_job.setup_hash),
                delta_lens,
                items: self.output.items(),
            };
            store_job.keep(&self.head.id, ended, output);
        }
        self.events.push(name, &OfResponse { response });
    }
}

fn response<'a>(
    head: &'a Head,
    output: &'a Output,
    usage: Option<Usage>,
    progress: Progress<'a>,
) -> Response<'a> {
    let is_over = progress.status != Progress::IN_PROGRESS.status;
    Response {
        id: &head.id,
        object: "response",
        created_at: head.created_at,
        completed_at: (progress.status == Progress::COMPLETED.status).then(unix_now_s),
        status: progress.status,
        error: progress.error,
        incomplete_details: progress.incomplete,
        output: output.items(),
        usage: usage.filter(|_| is_over).map(UsageReport::of),
        settings: &head.settings,
    }
}

/// The tokens of the conversation so far, if the next turn can extend them.
fn known_tokens(
    end: &TranscriptEnd,
    output: &mut Vec<u32>,
    is_warm_up: bool,
    setup_hash: [u8; 32],
) -> Option<KeptTokens> {
    let is_whole = is_warm_up || matches!(end.reason, FinishReason::StopToken(_));
    if !is_whole || end.prompt.is_empty() {
        return None;
    }
    let tokens = if is_warm_up {
        end.prompt.clone()
    } else {
        [&end.prompt[..], &std::mem::take(output)].concat().into()
    };
    Some(KeptTokens {
        tokens,
        has_answer: !is_warm_up,
        setup_hash,
    })
}

struct FinalOutput<'a> {
    items: &'a [OutputItem],
    delta_lens: Vec<u32>,
    tokens: Option<KeptTokens>,
    pin: Option<SoftPin>,
}

impl StoreJob {
    fn pin(&self, end: &TranscriptEnd, output: &[u32]) -> Option<SoftPin> {
        let pinning = self.pinning.as_ref().filter(|_| !end.prompt.is_empty())?;
        pinning.pin([&end.prompt[..], output].concat().into())
    }

    fn keep(self, id: &ResponseId, json: &[u8], output: FinalOutput<'_>) {
        let mut answer = Messages::default();
        answer.output(output.items);
        let answer = answer.finish();
        let (input, n_messages) = self.messages;
        let messages = joined(input, &answer);
        let stored = |item: &OutputItem| StoredItem {
            id: item.id().to_owned(),
            json: serde_json::to_string(item)
                .expect("items have string keys only")
                .into(),
        };
        self.store.keep(NewResponse {
            id: id.clone(),
            owner: self.owner,
            json: json.to_vec(),
            input: self.input,
            output: output.items.iter().map(stored).collect(),
            earlier: self.earlier,
            messages: (messages, n_messages + answer.len()),
            tokens: output.tokens,
            delta_lens: output.delta_lens,
            pin: output.pin,
        });
    }
}

/// Appends messages to a list in JSON.
fn joined(mut list: Vec<u8>, more: &[serde_json::Value]) -> Vec<u8> {
    if more.is_empty() {
        return list;
    }
    list.pop();
    if list.len() > 1 {
        list.push(b',');
    }
    let more = serde_json::to_vec(more).expect("messages have string keys only");
    list.extend_from_slice(&more[1..]);
    list
}

impl Write for Writer {
    fn whole(&mut self, transcripts: Vec<Transcript>) -> Vec<u8> {
        for transcript in transcripts {
            self.push(transcript.into_update());
        }
        std::mem::take(&mut self.ended)
    }
}

impl Writer {
    fn forward(&mut self, out: &mut Chunks) {
        for event in self.take() {
            out.named(event.name, &event.json);
        }
    }
}

impl Render for Writer {
    fn start(&mut self, out: &mut Chunks) {
        self.open();
        self.forward(out);
    }

    fn update(&mut self, _: usize, update: Update, out: &mut Chunks) {
        self.push(update);
        self.forward(out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Chunks) {
        Self::fail(self, &reworded(error.clone()));
        self.forward(out);
    }

    /// Codex shortens a conversation only after a failure event. After an HTTP error it stops.
    fn streams_failure(&self, failure: &RequestError) -> bool {
        matches!(failure, RequestError::PromptTooLong { .. })
    }

    fn close(&mut self, _: &mut Chunks) {}
}
