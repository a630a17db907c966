//! Middleware that gives every request an id, SGLang's HTTP metrics, a line in the access log and a trace.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use actix_web::HttpResponse;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::http::header::HeaderValue;
use actix_web::middleware::Next;
use actix_web::web::Bytes;
use metrics::{Gauge, counter, gauge};

use super::exchange::{Exchange, ExchangeEnd, X_REQUEST_ID};

/// Counts one request and gives its answer an id. The request is active until its response body ends.
pub(super) async fn track(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    // The route's pattern, not the path, so that the number of labels is bounded.
    let route = request.match_pattern().map(|pattern| label(&pattern));
    let exchange = Exchange::begin(&request, route.as_deref());
    let mut open = OpenAnswer::new(exchange.clone());
    let endpoint = route.unwrap_or_else(|| "unknown".to_owned());
    let method = method_label(request.method());
    let labels = [
        ("endpoint", endpoint.clone()),
        ("method", method.to_owned()),
    ];
    counter!("sglang:http_requests_total", &labels).increment(1);
    open.active = Some(ActiveGuard::enter(gauge!(
        "sglang:http_requests_active",
        &labels
    )));
    let result = exchange.scope(next.call(request)).await;
    let status = match &result {
        Ok(response) => response.status(),
        Err(error) => error.as_response_error().status_code(),
    };
    open.ended.status = Some(status.as_u16());
    let status = ("status_code", status.as_str().to_owned());
    let [endpoint, method] = labels;
    counter!("sglang:http_responses_total", &[endpoint, status, method]).increment(1);
    match result {
        Ok(response) => {
            let (request, response) = response.into_parts();
            Ok(ServiceResponse::new(request, open.into_body_of(response)))
        }
        // Another middleware refused the request. actix-web builds the response after this middleware has returned.
        Err(mut error) => {
            let open = Cell::new(Some(open));
            error.add_response_mapper(move |response| match open.take() {
                Some(open) => open.into_body_of(response),
                None => response,
            });
            Err(error)
        }
    }
}

/// Removes the regexes of variables from a route's pattern: `{id:.*}` becomes `{id}`.
pub(super) fn label(pattern: &str) -> String {
    let mut label = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some((before, name)) = rest.split_once('{')
        && let Some((name, after)) = name.split_once('}')
    {
        let name = name.split(':').next().unwrap_or(name);
        label.extend([before, "{", name, "}"]);
        rest = after;
    }
    label + rest
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        _ => "other",
    }
}

struct ActiveGuard(Gauge);

impl ActiveGuard {
    fn enter(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// An answer in flight. Its drop, after the body has been sent or dropped, reports its end to the exchange.
struct OpenAnswer {
    exchange: Arc<Exchange>,
    ended: ExchangeEnd,
    active: Option<ActiveGuard>,
}

impl OpenAnswer {
    fn new(exchange: Arc<Exchange>) -> Self {
        let ended = ExchangeEnd {
            status: None,
            bytes: 0,
            is_whole: false,
        };
        Self {
            exchange,
            ended,
            active: None,
        }
    }

    /// Returns the answer with its id and with a body that holds `self` until its end.
    fn into_body_of(mut self, response: HttpResponse<impl MessageBody + 'static>) -> HttpResponse {
        response.map_body(|head, body| {
            let id = HeaderValue::from_str(self.exchange.request_id());
            let id = id.expect("ids are printable ASCII");
            head.headers.insert(X_REQUEST_ID, id);
            self.ended.is_whole = matches!(body.size(), BodySize::None | BodySize::Sized(0));
            TrackedBody {
                body: body.boxed(),
                open: self,
            }
            .boxed()
        })
    }
}

impl Drop for OpenAnswer {
    fn drop(&mut self) {
        self.exchange.end(self.ended);
    }
}

/// Rust drops the fields in this order, so the body ends before the exchange.
struct TrackedBody {
    body: BoxBody,
    open: OpenAnswer,
}

impl MessageBody for TrackedBody {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let size = self.body.size();
        let polled = Pin::new(&mut self.body).poll_next(cx);
        let ended = &mut self.open.ended;
        match &polled {
            Poll::Ready(Some(Ok(bytes))) => {
                ended.bytes += bytes.len() as u64;
                // A body of known size is not polled again after its last byte.
                ended.is_whole = size == BodySize::Sized(bytes.len() as u64);
            }
            Poll::Ready(None) => ended.is_whole = true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => (),
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::label;

    #[test]
    fn labels_have_the_names_of_variables_without_regexes() {
        assert_eq!(label("/v1/models/{id:.*}"), "/v1/models/{id}");
        assert_eq!(label("/a/{b}/{c:x}/d"), "/a/{b}/{c}/d");
        assert_eq!(label("/generate"), "/generate");
        assert_eq!(label("/{odd"), "/{odd");
    }
}
