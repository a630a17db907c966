//! Exports traces to an OpenTelemetry collector, as protobuf over HTTP. Needs the feature `otlp`.
//!
//! Spans go through a bounded queue to the exporter's thread: if the collector is slow or absent, spans are lost, and
//! no request waits. The exporter reads OpenTelemetry's variables: `OTEL_EXPORTER_OTLP_ENDPOINT`, `_HEADERS` and
//! `_TIMEOUT`, `OTEL_BSP_*`, `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`.

mod client;
mod spans;

use std::time::Duration;

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanKind, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, InstrumentationScope, Key, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use super::traces::{CallStart, Trace, Traces};
use client::Client;
use spans::CallTrace;

const SERVICE: &str = "souffleur";
/// The beginning of the SDK's name for an unnamed service.
const NAMELESS: &str = "unknown_service";

/// Makes spans of requests and sends them to a collector.
pub struct Otlp {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Otlp {
    /// Starts the exporter's thread. Without `endpoint`, environment variables name the collector, which is on this
    /// machine by default.
    ///
    /// # Errors
    /// An error if the endpoint or a variable is invalid. No request is sent yet.
    pub fn start(endpoint: Option<&str>) -> Result<Self, String> {
        let exporter = SpanExporter::builder().with_http();
        let exporter = exporter
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(Client::new());
        let exporter = match endpoint {
            Some(endpoint) => exporter.with_endpoint(endpoint),
            None => exporter,
        };
        let exporter = exporter.build().map_err(|error| error.to_string())?;
        let provider = SdkTracerProvider::builder()
            .with_resource(resource())
            .with_batch_exporter(exporter)
            .build();
        let scope = InstrumentationScope::builder(SERVICE);
        let scope = scope.with_version(env!("CARGO_PKG_VERSION")).build();
        let tracer = provider.tracer_with_scope(scope);
        Ok(Self { provider, tracer })
    }

    /// Sends the queued spans, for at most `limit`, and accepts no more. Blocks.
    ///
    /// # Errors
    /// An error if the limit has passed. (A collector that refuses spans or cannot be reached is only logged.)
    pub fn shutdown(&self, limit: Duration) -> Result<(), String> {
        let sent = self.provider.shutdown_with_timeout(limit);
        sent.map_err(|error| error.to_string())
    }
}

fn resource() -> Resource {
    let found = Resource::builder().build();
    let name = found.get(&Key::from_static_str("service.name"));
    let is_named = name.is_some_and(|name| !name.as_str().starts_with(NAMELESS));
    if is_named {
        return found;
    }
    Resource::builder()
        .with_attribute(KeyValue::new("service.name", SERVICE))
        .build()
}

impl Traces for Otlp {
    fn begin(&self, call: &CallStart<'_>) -> Box<dyn Trace> {
        let parent = TraceContextPropagator::new()
            .extract_with_context(&Context::new(), &TraceHeaders(call));
        let name = match call.route {
            Some(route) => format!("{} {route}", call.method),
            None => call.method.to_owned(),
        };
        let mut attributes = vec![
            KeyValue::new("http.request.method", call.method.to_owned()),
            KeyValue::new("souffleur.request_id", call.request_id.to_owned()),
        ];
        let route = call.route.map(str::to_owned);
        attributes.extend(route.map(|route| KeyValue::new("http.route", route)));
        let span = self.tracer.span_builder(name);
        let span = span.with_kind(SpanKind::Server).with_attributes(attributes);
        let span = self.tracer.build_with_context(span, &parent);
        Box::new(CallTrace {
            tracer: self.tracer.clone(),
            context: Context::new().with_span(span),
        })
    }
}

/// The headers of W3C's trace context.
struct TraceHeaders<'a>(&'a CallStart<'a>);

impl Extractor for TraceHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => self.0.traceparent,
            "tracestate" => self.0.tracestate,
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}
