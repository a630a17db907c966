//! Reports the end of an engine request to the trace of its HTTP request, based on the engine's events.

use std::sync::Arc;
use std::time::Instant;

use super::Exchange;
use crate::traces::{Outcome, RequestTrace, Wish};
use souffleur_base::error::RequestError;
use souffleur_base::ids::RequestId;
use souffleur_request::{Event, GenerateRequest};

/// An engine request. Its end is reported to its exchange, at the latest on drop.
pub(crate) struct ObservedRequest(Option<Open>);

struct Open {
    exchange: Arc<Exchange>,
    rid: RequestId,
    model: Arc<str>,
    wish: Wish,
    opened: Instant,
    first_event: Option<Instant>,
}

impl ObservedRequest {
    /// Records requests in the current exchange, if there is one, before they are sent to the engine.
    pub(crate) fn open_all(requests: &[GenerateRequest], model: &str) -> Vec<Self> {
        let exchange = Exchange::current();
        let opened = Instant::now();
        let model: Arc<str> = model.into();
        let open = |request: &GenerateRequest| {
            let exchange = exchange.clone()?;
            exchange.record(&request.rid);
            exchange.trace.is_some().then(|| Open {
                exchange: exchange.clone(),
                rid: request.rid.clone(),
                model: model.clone(),
                wish: Wish::of(request),
                opened,
                first_event: None,
            })
        };
        requests.iter().map(open).map(Self).collect()
    }

    pub(crate) fn observe(&mut self, event: &Event) {
        let Some(open) = &mut self.0 else {
            return;
        };
        let outcome = match event {
            Event::Delta(_) => {
                open.first_event.get_or_insert_with(Instant::now);
                return;
            }
            Event::Finished(finished) | Event::Cancelled(finished) => Outcome::Ended(finished),
            Event::Failed(error) => return self.fail(error),
        };
        self.end(outcome);
    }

    pub(crate) fn fail(&mut self, error: &RequestError) {
        self.end(Outcome::Failed(error.code()));
    }

    fn end(&mut self, outcome: Outcome<'_>) {
        let Some(open) = self.0.take() else {
            return;
        };
        open.exchange.request_ended(&RequestTrace {
            rid: open.rid.as_str(),
            model: &open.model,
            path: &open.exchange.path,
            wish: &open.wish,
            opened: open.opened,
            first_event: open.first_event,
            ended: Instant::now(),
            outcome,
        });
    }
}

impl Drop for ObservedRequest {
    fn drop(&mut self) {
        self.end(Outcome::ClientLeft);
    }
}
