//! Exports traces of requests over OTLP, in builds with the feature `otlp`.

use souffleur::server::{AppState, ServerConfig};

use super::failure::Failure;

#[cfg(feature = "otlp")]
type Exporter = std::sync::Arc<souffleur::server::otlp::Otlp>;
#[cfg(not(feature = "otlp"))]
type Exporter = std::convert::Infallible;

/// Timeout for sending the last spans at exit.
#[cfg(feature = "otlp")]
const FLUSH_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

#[derive(Clone, Default)]
pub struct Tracing(Option<Exporter>);

pub fn start(config: &ServerConfig) -> Result<Tracing, Failure> {
    if config.traces_requests() {
        exporter(config).map(|exporter| Tracing(Some(exporter)))
    } else {
        Ok(Tracing::default())
    }
}

#[cfg(feature = "otlp")]
fn exporter(config: &ServerConfig) -> Result<Exporter, Failure> {
    let otlp = souffleur::server::otlp::Otlp::start(config.otlp_traces_endpoint.as_deref());
    let otlp = otlp.map_err(|error| {
        Failure::Usage(format!("failed to start the export of traces: {error}"))
    })?;
    Ok(otlp.into())
}

#[cfg(not(feature = "otlp"))]
fn exporter(_: &ServerConfig) -> Result<Exporter, Failure> {
    let reason = "--enable-trace and --otlp-traces-endpoint need a build with traces: cargo build --release --features \
                  otlp, or remove them";
    Err(Failure::Usage(reason.to_owned()))
}

impl Tracing {
    /// Adds the exporter to a server's state, if traces are on.
    pub fn installed_in(&self, state: AppState) -> AppState {
        match &self.0 {
            #[cfg(feature = "otlp")]
            Some(exporter) => state.with_traces(exporter.clone()),
            #[cfg(not(feature = "otlp"))]
            Some(never) => match *never {},
            None => state,
        }
    }

    pub fn end(&self) {
        #[cfg(feature = "otlp")]
        if let Some(exporter) = &self.0
            && let Err(error) = exporter.shutdown(FLUSH_LIMIT)
        {
            tracing::warn!(%error, "failed to send the last traces to the collector: they are lost");
        }
    }
}
