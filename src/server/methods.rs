//! Middleware that answers HEAD requests and HTTP/1.0 clients, on all routes.

use actix_web::body::{BodySize, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::{ConnectionType, Method, Version, header};
use actix_web::middleware::Next;

/// Answers HEAD as GET, and HTTP/1.0 without chunked encoding.
pub(super) async fn adapt<B: MessageBody + 'static>(
    mut request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<B>, actix_web::Error> {
    let version = request.version();
    if request.method() == Method::HEAD {
        // actix-web remembers HEAD and sends no body. Without `Upgrade` the request cannot open a WebSocket.
        request.head_mut().method = Method::GET;
        request.headers_mut().remove(header::UPGRADE);
    }
    let mut response = next.call(request).await?;
    let is_stream = response.response().body().size() == BodySize::Stream;
    if is_stream && version < Version::HTTP_11 {
        // The client cannot read chunked encoding: the end of the connection is the end of the body.
        let head = response.response_mut().head_mut();
        head.no_chunking(true);
        head.set_connection_type(ConnectionType::Close);
    }
    Ok(response)
}
