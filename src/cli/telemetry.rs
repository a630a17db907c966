//! Starts the log and the metrics recorder of the process.

use std::fmt;
use std::io::IsTerminal;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use souffleur::metrics::{self, buckets, describe_all};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use super::failure::Failure;
use super::version::build_info;
use crate::cli::settings::log::{LogConfig, LogFormat};

/// Messages, by target and prefix, that actix logs as errors although clients cause them: invalid HTTP requests and
/// broken WebSocket frames. They are dropped, since any client could fill the log with them. `actix_http=trace` still
/// shows invalid requests.
const CLIENT_ERRORS: [(&str, &str); 2] = [
    ("actix_http::h1::dispatcher", "stream error: "),
    ("actix_http::ws::codec", "Unfinished fragment "),
];

pub fn start_log(log: &LogConfig) -> Result<(), Failure> {
    let filter = log
        .filter()
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let stderr = std::io::stderr;
    // By default, failed writes (full disk, closed pipe) are reported by `eprintln!`, which panics if stderr fails.
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(stderr)
        .log_internal_errors(false);
    let subscriber = tracing_subscriber::registry().with(filter);
    let started = match log.log_format {
        LogFormat::Text => subscriber
            .with(lines.with_ansi(stderr().is_terminal()))
            .with(WithoutClientErrors)
            .try_init(),
        LogFormat::Json => subscriber
            .with(
                lines
                    .json()
                    .flatten_event(true)
                    .with_current_span(false)
                    .with_span_list(false),
            )
            .with(WithoutClientErrors)
            .try_init(),
    };
    started.map_err(Failure::to("start the log"))
}

/// Drops [`CLIENT_ERRORS`] from the log.
struct WithoutClientErrors;

impl<S: Subscriber> Layer<S> for WithoutClientErrors {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let target = event.metadata().target();
        let mut candidates = CLIENT_ERRORS.iter().filter(|(from, _)| *from == target);
        candidates.all(|(_, beginning)| {
            let mut message = Message(String::new());
            event.record(&mut message);
            !message.0.starts_with(beginning)
        })
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// Installs the metrics recorder. To be called before the engine starts and registers its metrics.
pub fn install_recorder() -> Result<PrometheusHandle, Failure> {
    let builder = buckets().try_fold(PrometheusBuilder::new(), |builder, (name, bounds)| {
        builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds)
    });
    let handle = builder.and_then(PrometheusBuilder::install_recorder);
    let handle = handle.map_err(Failure::to("install the metrics recorder"))?;
    describe_all();
    metrics::register_rare();
    Ok(handle)
}

/// Sets the metric that names this build.
pub fn record_build() {
    let build = build_info();
    let commit = build.commit.unwrap_or("unknown");
    metrics::record_build(build.version, commit, build.features.join(","));
}
