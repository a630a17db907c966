//! Makes the spans of a call: the HTTP request, its engine requests, and the queue, prefill and decode phase of each.
//!
//! Attributes have names of OpenTelemetry's conventions for generative AI if there are any, else vLLM's or Souffleur's.

use std::time::{Instant, SystemTime};

use opentelemetry::trace::{Span, SpanBuilder, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::SdkTracer;

use crate::traces::{CallEnd, Outcome, RequestTrace, Trace};
use souffleur_request::{Finished, Timings};

pub(super) struct CallTrace {
    pub(super) tracer: SdkTracer,
    /// Holds the span of the HTTP request.
    pub(super) context: Context,
}

impl Trace for CallTrace {
    fn request_ended(&self, request: &RequestTrace<'_>) {
        if !self.context.span().span_context().is_sampled() {
            return;
        }
        let clock = Clock::now();
        let operation = operation(request.path);
        let builder = SpanBuilder::from_name(format!("{operation} {}", request.model));
        let builder = builder
            .with_kind(SpanKind::Internal)
            .with_start_time(clock.at(request.opened))
            .with_attributes(request_attributes(request, operation));
        let mut span = self.tracer.build_with_context(builder, &self.context);
        match request.outcome {
            Outcome::Ended(finished) => span.set_attributes(response_attributes(finished)),
            Outcome::Failed(code) => {
                span.set_attribute(KeyValue::new("error.type", code));
                span.set_status(Status::error(code));
            }
            Outcome::ClientLeft => {
                let reasons = vec![StringValue::from("abort")];
                span.set_attribute(strings("gen_ai.response.finish_reasons", reasons));
            }
        }
        if let Some(first) = request.first_event {
            let seconds = (first - request.opened).as_secs_f64();
            span.set_attribute(KeyValue::new(
                "gen_ai.response.time_to_first_chunk",
                seconds,
            ));
        }
        let parent = Context::new().with_remote_span_context(span.span_context().clone());
        if let Outcome::Ended(finished) = request.outcome
            && let Some(timings) = &finished.timings
        {
            span.set_attributes(latencies(timings));
            for (name, from, to) in phases(timings) {
                let builder = SpanBuilder::from_name(name).with_start_time(clock.at(from));
                let mut phase = self.tracer.build_with_context(builder, &parent);
                phase.end_with_timestamp(clock.at(to));
            }
        }
        span.end_with_timestamp(clock.at(request.ended));
    }

    fn end(&self, call: &CallEnd) {
        let span = self.context.span();
        let status = call.status.map(i64::from);
        span.set_attributes(
            status.map(|status| KeyValue::new("http.response.status_code", status)),
        );
        let bytes = i64::try_from(call.bytes).unwrap_or(i64::MAX);
        span.set_attribute(KeyValue::new("http.response.body.size", bytes));
        let client = call.client.map(|client| client.ip().to_string());
        span.set_attributes(client.map(|client| KeyValue::new("client.address", client)));
        if !call.is_whole {
            span.set_attribute(KeyValue::new("error.type", "client_left"));
        }
        if let Some(status @ 500..) = call.status {
            span.set_attribute(KeyValue::new("error.type", status.to_string()));
            span.set_status(Status::error(""));
        }
        span.end();
    }
}

/// The operation of a route, with its name from OpenTelemetry's conventions.
fn operation(path: &str) -> &'static str {
    match path {
        "/v1/chat/completions" | "/v1/messages" | "/v1/responses" | "/responses" | "/api/chat" => {
            "chat"
        }
        "/v1/embeddings" | "/api/embed" | "/api/embeddings" => "embeddings",
        "/v1/score" => "score",
        "/v1/rerank" | "/rerank" | "/v2/rerank" => "rerank",
        _ => "text_completion",
    }
}

fn request_attributes(request: &RequestTrace<'_>, operation: &'static str) -> Vec<KeyValue> {
    let model = || request.model.to_owned();
    let wish = request.wish;
    vec![
        KeyValue::new("gen_ai.operation.name", operation),
        KeyValue::new("gen_ai.provider.name", "souffleur"),
        KeyValue::new("gen_ai.request.model", model()),
        KeyValue::new("gen_ai.response.model", model()),
        KeyValue::new("gen_ai.request.id", request.rid.to_owned()),
        KeyValue::new("gen_ai.request.max_tokens", i64::from(wish.max_new_tokens)),
        KeyValue::new("gen_ai.request.temperature", wish.temperature),
        KeyValue::new("gen_ai.request.top_p", wish.top_p),
    ]
}

fn response_attributes(finished: &Finished) -> Vec<KeyValue> {
    let usage = &finished.delta.usage;
    let count = |name, tokens: u32| KeyValue::new(name, i64::from(tokens));
    let reason = StringValue::from(finished.reason.as_str());
    vec![
        strings("gen_ai.response.finish_reasons", vec![reason]),
        count("gen_ai.usage.input_tokens", usage.prompt_tokens),
        count("gen_ai.usage.output_tokens", usage.completion_tokens),
        count("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens),
        count("souffleur.retractions", usage.num_retractions),
    ]
}

fn strings(name: &'static str, values: Vec<StringValue>) -> KeyValue {
    KeyValue::new(name, Value::Array(Array::String(values)))
}

/// Latencies, with vLLM's names. They are measured from the entry into the queue, as in the metrics.
fn latencies(timings: &Timings) -> Vec<KeyValue> {
    let since = |to: Instant| (to - timings.queued).as_secs_f64();
    let admitted = timings.admitted.map(since);
    let first = timings.first_token.map(since);
    let named = [
        ("gen_ai.latency.time_in_queue", admitted),
        ("gen_ai.latency.time_to_first_token", first),
        ("gen_ai.latency.e2e", Some(since(timings.ended))),
    ];
    let named = named.into_iter();
    named
        .filter_map(|(name, seconds)| Some(KeyValue::new(name, seconds?)))
        .collect()
}

/// The phases that have begun; a phase that is cut short ends with the request.
fn phases(timings: &Timings) -> impl Iterator<Item = (&'static str, Instant, Instant)> {
    let Timings {
        queued,
        admitted,
        first_token,
        ended,
    } = *timings;
    let prefilled = first_token.unwrap_or(ended);
    let queue = ("queue", queued, admitted.unwrap_or(ended));
    let prefill = admitted.map(|admitted| ("prefill", admitted, prefilled));
    let decode = first_token.map(|first| ("decode", first, ended));
    [Some(queue), prefill, decode].into_iter().flatten()
}

struct Clock {
    moment: Instant,
    time: SystemTime,
}

impl Clock {
    fn now() -> Self {
        Self {
            moment: Instant::now(),
            time: SystemTime::now(),
        }
    }

    fn at(&self, moment: Instant) -> SystemTime {
        let ago = self.moment.saturating_duration_since(moment);
        self.time.checked_sub(ago).unwrap_or(self.time)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_phase_that_is_cut_short_ends_with_the_request() {
        let queued = Instant::now();
        let at = |seconds| queued + Duration::from_secs(seconds);
        let check = |admitted: Option<u64>, first_token: Option<u64>, expected: &[_]| {
            let timings = Timings {
                queued,
                admitted: admitted.map(at),
                first_token: first_token.map(at),
                ended: at(9),
            };
            let seconds = |moment: Instant| (moment - queued).as_secs();
            let phases =
                phases(&timings).map(|(name, from, to)| (name, seconds(from), seconds(to)));
            assert_eq!(phases.collect::<Vec<_>>(), expected);
        };
        check(None, None, &[("queue", 0, 9)]);
        check(Some(1), None, &[("queue", 0, 1), ("prefill", 1, 9)]);
        let all = [("queue", 0, 1), ("prefill", 1, 3), ("decode", 3, 9)];
        check(Some(1), Some(3), &all);
    }
}
