//! Log and metrics of this process.

use std::io::IsTerminal;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use souffleur::metrics::{buckets, describe_all};

use super::Failure;
use crate::settings::LogConfig;

/// Sends the log to stderr.
pub fn start_log(log: &LogConfig) -> Result<(), Failure> {
    let filter = log
        .filter()
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let stderr = std::io::stderr;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr);
    let started = subscriber.with_ansi(stderr().is_terminal()).try_init();
    started.map_err(|error| Failure::Failed(format!("log: {error}")))
}

/// Installs the recorder. The engine binds its metrics when it starts, so this comes before.
pub fn install_recorder() -> Result<PrometheusHandle, Failure> {
    let builder = buckets().try_fold(PrometheusBuilder::new(), |builder, (name, bounds)| {
        builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds)
    });
    let handle = builder.and_then(PrometheusBuilder::install_recorder);
    let handle = handle.map_err(|error| Failure::Failed(format!("metrics: {error}")))?;
    describe_all();
    Ok(handle)
}
