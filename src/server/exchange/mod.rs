//! Tracks one HTTP request from its head to the end of its answer: its ids, its access log line, its trace.
//!
//! Code that handles a request finds its exchange in a task-local, where the ids of its engine requests are recorded.

mod access;
mod ids;
mod observed;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use actix_web::dev::ServiceRequest;
use actix_web::http::Method;
use actix_web::http::header::HeaderMap;
use actix_web::web::Data;

pub(super) use access::log_late_head;
pub(super) use ids::{REQUEST_ID, X_REQUEST_ID, new_id};
pub(super) use observed::ObservedRequest;

use super::state::AppState;
use super::traces::{CallEnd, CallStart, RequestTrace, Trace};
use ids::Ids;
use souffleur_base::ids::RequestId;

/// Maximum number of engine request ids in a line of the access log.
const MAX_LISTED: usize = 8;

tokio::task_local! {
    static CURRENT: Arc<Exchange>;
}

pub(super) struct Exchange {
    ids: Ids,
    method: Method,
    /// The pattern of the route, so that the log shows no response ids: a client that knows one can read the response.
    path: String,
    client: Option<SocketAddr>,
    began: Instant,
    access_log: bool,
    trace: Option<Box<dyn Trace>>,
    engine_requests: Mutex<EngineRequests>,
}

#[derive(Default)]
struct EngineRequests {
    ids: Vec<RequestId>,
    count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExchangeEnd {
    pub(super) status: Option<u16>,
    pub(super) bytes: u64,
    /// The connection accepted the whole body.
    pub(super) is_whole: bool,
}

impl Exchange {
    /// `label` is the pattern of the request's route. Without a route, the path itself is logged.
    pub(super) fn begin(request: &ServiceRequest, label: Option<&str>) -> Arc<Self> {
        let path = label.unwrap_or_else(|| request.path()).to_owned();
        let ids = Ids::of(request.headers());
        let state = request.app_data::<Data<AppState>>();
        let config = state.map(|state| state.config());
        let is_left_out = config.is_some_and(|config| {
            let mut left_out = config.access_log_exclude.iter();
            left_out.any(|excluded| *excluded == path)
        });
        let traces = state.and_then(|state| state.traces());
        let traces = traces.filter(|_| !is_left_out);
        let trace = traces.map(|traces| {
            traces.begin(&CallStart {
                method: request.method().as_str(),
                route: label,
                request_id: &ids.request_id,
                traceparent: text(request.headers(), "traceparent"),
                tracestate: text(request.headers(), "tracestate"),
            })
        });
        Arc::new(Self {
            ids,
            method: request.method().clone(),
            client: request.peer_addr(),
            began: Instant::now(),
            access_log: !is_left_out && config.is_some_and(|config| config.access_log),
            trace,
            engine_requests: Mutex::default(),
            path,
        })
    }

    /// The exchange of the running task, if the task handles a request.
    pub(super) fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    pub(super) fn scope<F: Future>(
        self: &Arc<Self>,
        work: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(self.clone(), work)
    }

    pub(super) fn request_id(&self) -> &Arc<str> {
        &self.ids.request_id
    }

    fn record(&self, rid: &RequestId) {
        let requests = self.engine_requests.lock();
        let mut requests = requests.unwrap_or_else(PoisonError::into_inner);
        requests.count += 1;
        if requests.ids.len() < MAX_LISTED {
            requests.ids.push(rid.clone());
        }
    }

    fn request_ended(&self, request: &RequestTrace<'_>) {
        if let Some(trace) = &self.trace {
            trace.request_ended(request);
        }
    }

    /// Logs and traces the end of the request. To be called once.
    pub(super) fn end(&self, ended: ExchangeEnd) {
        if self.access_log {
            access::log(self, ended);
        }
        if let Some(trace) = &self.trace {
            let ExchangeEnd {
                status,
                bytes,
                is_whole,
            } = ended;
            trace.end(&CallEnd {
                status,
                bytes,
                is_whole,
                client: self.client,
            });
        }
    }

    fn duration(&self) -> Duration {
        self.began.elapsed()
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
