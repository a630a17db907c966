//! Writes the answers of `POST /infill`, whole or as events, in llama.cpp's form.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use super::call::Call;
use super::settings::{context_tokens, of_sampling};
use crate::sse::{Chunks, Render};
use crate::transcript::{Transcript, TranscriptEnd, Update};
use souffleur_engine::ModelInfo;
use souffleur_request::{Delta, FinishReason, Usage};

/// llama.cpp answers with the slot that served the request. This engine has no slots.
const SLOT: i32 = -1;

pub(super) struct Writer {
    model: String,
    settings: Value,
    context_tokens: usize,
    response_fields: Vec<String>,
    return_tokens: bool,
    /// Whether the output of each sample so far has a newline.
    has_newline: Vec<bool>,
}

/// A streamed event, except the last, which is an [`Answer`].
#[derive(Serialize)]
struct Part<'a> {
    index: usize,
    content: &'a str,
    tokens: &'a [u32],
    stop: bool,
    id_slot: i32,
    tokens_predicted: u32,
    tokens_evaluated: u32,
}

#[derive(Serialize)]
struct Answer<'a> {
    index: usize,
    content: &'a str,
    tokens: &'a [u32],
    id_slot: i32,
    stop: bool,
    model: &'a str,
    tokens_predicted: u32,
    tokens_evaluated: u32,
    generation_settings: &'a Value,
    has_new_line: bool,
    truncated: bool,
    stop_type: &'static str,
    stopping_word: &'a str,
    tokens_cached: u32,
    timings: TimesJson,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct TimesJson {
    cache_n: u32,
    prompt_n: u32,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: u32,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
}

impl Writer {
    pub(super) fn new(call: &Call, model: &ModelInfo) -> Self {
        let context_tokens = context_tokens(model);
        let mut settings = of_sampling(&call.request.sampling);
        settings["n_ctx"] = context_tokens.into();
        settings["stream"] = call.request.is_streaming.into();
        Self {
            model: model.served_model_name.clone(),
            settings,
            context_tokens,
            response_fields: call.response_fields.clone(),
            return_tokens: call.return_tokens,
            has_newline: vec![false; call.request.sampling.n as usize],
        }
    }

    /// An object, or a list of them if there are several samples.
    pub(super) fn whole(&mut self, transcripts: Vec<Transcript>) -> Vec<u8> {
        let answers = transcripts.into_iter().enumerate();
        let mut answers: Vec<Value> = answers
            .map(|(index, transcript)| self.last(index, &transcript.into_update()))
            .collect();
        let answer = match answers.len() {
            1 => answers.remove(0),
            _ => Value::Array(answers),
        };
        answer.to_string().into_bytes()
    }

    /// The answer that ends a sample, with the text and tokens of its last update.
    fn last(&mut self, index: usize, update: &Update) -> Value {
        let Update { delta, end } = update;
        self.note_newline(index, &delta.text);
        let usage = &delta.usage;
        let reason = end.as_ref().map(|end| &end.reason);
        let total = usage.prompt_tokens as usize + usage.completion_tokens as usize;
        let is_length = matches!(reason, Some(FinishReason::Length { .. }));
        let answer = Answer {
            index,
            content: &delta.text,
            tokens: self.tokens(delta),
            id_slot: SLOT,
            stop: true,
            model: &self.model,
            tokens_predicted: usage.completion_tokens,
            tokens_evaluated: usage.prompt_tokens,
            generation_settings: &self.settings,
            has_new_line: self.has_newline[index],
            // The engine leaves two positions of the context unused.
            truncated: is_length && total + 2 >= self.context_tokens,
            stop_type: reason.map_or("none", stop_type),
            stopping_word: match reason {
                Some(FinishReason::StopString(text)) => text,
                _ => "",
            },
            tokens_cached: usage.cached_tokens,
            timings: TimesJson::of(usage, end.as_ref()),
        };
        let answer = serde_json::to_value(answer).expect("answers have string keys only");
        if self.response_fields.is_empty() {
            answer
        } else {
            Value::Object(selected(&answer, &self.response_fields))
        }
    }

    /// The token ids in an answer: those of the update, if the call asks for them.
    fn tokens<'a>(&self, delta: &'a Delta) -> &'a [u32] {
        if self.return_tokens {
            &delta.tokens
        } else {
            &[]
        }
    }

    fn note_newline(&mut self, index: usize, text: &str) {
        self.has_newline[index] |= text.contains('\n');
    }
}

impl Render for Writer {
    fn update(&mut self, index: usize, mut update: Update, out: &mut Chunks) {
        let delta = &update.delta;
        let tokens = self.tokens(delta);
        if !delta.text.is_empty() || !tokens.is_empty() {
            self.note_newline(index, &delta.text);
            out.data(&Part {
                index,
                content: &delta.text,
                tokens,
                stop: false,
                id_slot: SLOT,
                tokens_predicted: delta.usage.completion_tokens,
                tokens_evaluated: delta.usage.prompt_tokens,
            });
        }
        if update.end.is_some() {
            // The events before have the text.
            update.delta.text.clear();
            update.delta.tokens.clear();
            let last = self.last(index, &update);
            out.data(&last);
        }
    }

    /// llama.cpp ends these streams without `[DONE]`.
    fn close(&mut self, _: &mut Chunks) {}
}

fn stop_type(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::StopToken(_) | FinishReason::Grammar => "eos",
        FinishReason::StopString(_) => "word",
        FinishReason::Length { .. } => "limit",
        FinishReason::Abort => "none",
    }
}

/// The fields at these paths, each under its whole path. Other paths are left out.
fn selected(answer: &Value, paths: &[String]) -> Map<String, Value> {
    let at = |path: &String| {
        let value = path
            .split('/')
            .try_fold(answer, |value, name| value.as_object()?.get(name))?;
        Some((path.clone(), value.clone()))
    };
    paths.iter().filter_map(at).collect()
}

impl TimesJson {
    fn of(usage: &Usage, end: Option<&TranscriptEnd>) -> Self {
        let (prompt, predicted) = match end.and_then(|end| end.timings) {
            Some(times) => {
                let began = times.admitted.unwrap_or(times.queued);
                let first = times.first_token.unwrap_or(times.ended);
                (
                    first.saturating_duration_since(began),
                    times.ended.saturating_duration_since(first),
                )
            }
            None => (Duration::ZERO, Duration::ZERO),
        };
        let (prompt_ms, predicted_ms) = (milliseconds(prompt), milliseconds(predicted));
        let prompt_n = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        let predicted_n = usage.completion_tokens;
        Self {
            cache_n: usage.cached_tokens,
            prompt_n,
            prompt_ms,
            prompt_per_token_ms: ratio(prompt_ms, f64::from(prompt_n)),
            prompt_per_second: ratio(1e3 * f64::from(prompt_n), prompt_ms),
            predicted_n,
            predicted_ms,
            predicted_per_token_ms: ratio(predicted_ms, f64::from(predicted_n)),
            predicted_per_second: ratio(1e3 * f64::from(predicted_n), predicted_ms),
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// 0 instead of a division by 0.
fn ratio(of: f64, to: f64) -> f64 {
    if to > 0.0 { of / to } else { 0.0 }
}

#[cfg(test)]
mod tests;
