//! SGLang's HTTP metrics: requests, responses and requests under way, by route and method.

use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::middleware::Next;
use actix_web::web::Bytes;
use metrics::{Gauge, counter, gauge};

/// Counts one request. Its body counts as part of it, so a stream is under way until its end.
pub(super) async fn track(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    // The route's pattern, never the path: labels must be bounded.
    let endpoint = request.match_pattern();
    let endpoint = endpoint.map_or_else(|| "unknown".to_owned(), |pattern| label(&pattern));
    let method = method_label(request.method());
    let labels = [
        ("endpoint", endpoint.clone()),
        ("method", method.to_owned()),
    ];
    counter!("sglang:http_requests_total", &labels).increment(1);
    let active = Active::enter(gauge!("sglang:http_requests_active", &labels));
    let result = next.call(request).await;
    let status = match &result {
        Ok(response) => response.status(),
        Err(error) => error.as_response_error().status_code(),
    };
    let status = ("status_code", status.as_str().to_owned());
    let [endpoint, method] = labels;
    counter!("sglang:http_responses_total", &[endpoint, status, method]).increment(1);
    Ok(result?.map_body(|_, body| {
        Tracked {
            body: body.boxed(),
            _active: active,
        }
        .boxed()
    }))
}

/// The pattern with `{id}` in place of `{id:.*}`: what a name may look like says nothing on a metrics page.
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

struct Active(Gauge);

impl Active {
    fn enter(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

struct Tracked {
    body: BoxBody,
    _active: Active,
}

impl MessageBody for Tracked {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::label;

    #[test]
    fn labels_name_what_varies_without_its_pattern() {
        assert_eq!(label("/v1/models/{id:.*}"), "/v1/models/{id}");
        assert_eq!(label("/a/{b}/{c:x}/d"), "/a/{b}/{c}/d");
        assert_eq!(label("/generate"), "/generate");
        assert_eq!(label("/{odd"), "/{odd");
    }
}
