//! The JSON objects of Ollama's answers.

use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use super::parts::{Part, ToolCall};
use crate::openai::logprobs::ChatToken;
use crate::transcript::TranscriptEnd;
use souffleur_request::{FinishReason, Timings, Usage};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Generate,
}

/// The properties that all objects of an answer share.
pub(super) struct Head {
    /// The model's name as the client wrote it.
    pub(super) model: String,
    pub(super) kind: Kind,
    pub(super) began: Instant,
}

#[derive(Serialize)]
pub(super) struct Reply<'a> {
    model: &'a str,
    created_at: String,
    #[serde(flatten)]
    content: Content,
    done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<&'static str>,
    #[serde(flatten)]
    metrics: Option<Metrics>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<ChatToken>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content {
    Chat {
        message: Message,
    },
    Generate {
        response: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        thinking: String,
    },
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

/// Counts, and durations in nanoseconds. All of them are in the last object of every answer, zeros too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Metrics {
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u32,
    prompt_eval_duration: u64,
    eval_count: u32,
    eval_duration: u64,
}

/// How an answer ended.
pub(super) struct End {
    reason: &'static str,
    metrics: Metrics,
}

impl End {
    pub(super) fn new(head: &Head, end: &TranscriptEnd, usage: Usage) -> Self {
        let (prompt, output) = end.timings.map_or_else(Default::default, phases);
        // Clients divide the number of tokens by the duration.
        let least = u64::from(usage.completion_tokens > 0);
        Self {
            reason: reason(&end.reason),
            metrics: Metrics {
                total_duration: nanoseconds(head.began.elapsed()),
                load_duration: 0,
                prompt_eval_count: usage.prompt_tokens,
                prompt_eval_duration: nanoseconds(prompt),
                eval_count: usage.completion_tokens,
                eval_duration: nanoseconds(output).max(least),
            },
        }
    }
}

fn reason(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Length { .. } => "length",
        FinishReason::StopToken(_) | FinishReason::StopString(_) | FinishReason::Grammar => "stop",
        // Answered with an error instead.
        FinishReason::Abort => "abort",
    }
}

/// The durations of prefill and decode.
fn phases(timings: Timings) -> (Duration, Duration) {
    let Timings {
        queued,
        admitted,
        first_token,
        ended,
    } = timings;
    let began = admitted.unwrap_or(queued);
    let computed = first_token.unwrap_or(ended);
    (
        computed.saturating_duration_since(began),
        ended.saturating_duration_since(computed),
    )
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Head {
    /// An object of a stream, or with `end` the last one, or a whole answer.
    pub(super) fn reply(
        &self,
        part: Part,
        logprobs: Vec<ChatToken>,
        end: Option<End>,
    ) -> Reply<'_> {
        let Part {
            text,
            thinking,
            calls,
        } = part;
        let content = match self.kind {
            Kind::Chat => Content::Chat {
                message: Message {
                    role: "assistant",
                    content: text,
                    thinking,
                    tool_calls: calls,
                },
            },
            Kind::Generate => Content::Generate {
                response: text,
                thinking,
            },
        };
        Reply {
            model: &self.model,
            created_at: timestamp(SystemTime::now()),
            content,
            done: end.is_some(),
            done_reason: end.as_ref().map(|end| end.reason),
            metrics: end.map(|end| end.metrics),
            logprobs,
        }
    }

    /// The answer to a call without messages or prompt.
    pub(super) fn of_empty_call(&self, unloads: bool) -> Reply<'_> {
        let end = End {
            reason: if unloads { "unload" } else { "load" },
            metrics: Metrics {
                total_duration: nanoseconds(self.began.elapsed()),
                ..Metrics::default()
            },
        };
        self.reply(Part::default(), Vec::new(), Some(end))
    }
}

pub(super) fn timestamp(time: SystemTime) -> String {
    humantime::format_rfc3339_micros(time).to_string()
}
