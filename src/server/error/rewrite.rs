//! Writes errors in the form of another API on all of its routes, including errors that occur before a handler runs.

use actix_web::HttpResponse;
use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header;
use actix_web::middleware::Next;

use super::ApiError;

/// Answers a request. `write` then gets every response, with its error if there is one.
pub(crate) async fn rewritten<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
    write: impl Fn(HttpResponse, Option<&ApiError>) -> HttpResponse + 'static,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    match next.call(request).await {
        Ok(response) => {
            let error = response.response().error();
            let error = error.and_then(|error| error.as_error::<ApiError>().cloned());
            let (request, response) = response.map_into_boxed_body().into_parts();
            let response = write(response, error.as_ref());
            Ok(ServiceResponse::new(request, response))
        }
        // Another middleware refused the request. Outer middleware still adds its headers to the answer.
        Err(mut error) => {
            let refused = error.as_error::<ApiError>().cloned();
            error.add_response_mapper(move |response| write(response, refused.as_ref()));
            Err(error)
        }
    }
}

/// Replaces the body of a response by JSON.
pub(crate) fn with_json(mut response: HttpResponse, json: Vec<u8>) -> HttpResponse {
    response.headers_mut().remove(header::CONTENT_LENGTH);
    response.set_body(BoxBody::new(json))
}
