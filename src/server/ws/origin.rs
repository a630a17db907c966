//! Who may connect: browsers let any page open a WebSocket to any host, so the server has to look.

use actix_web::HttpRequest;
use actix_web::http::header;

use crate::server::error::ApiError;

/// Lets in clients without an `Origin`, pages of the server's own host, and the allowed origins.
pub(super) fn check(request: &HttpRequest, allowed: &[String]) -> Result<(), ApiError> {
    let Some(origin) = request.headers().get(header::ORIGIN) else {
        return Ok(());
    };
    let origin = String::from_utf8_lossy(origin.as_bytes());
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    match is_allowed(&origin, host, allowed) {
        true => Ok(()),
        false => Err(ApiError::foreign_origin(&origin)),
    }
}

fn is_allowed(origin: &str, host: Option<&str>, allowed: &[String]) -> bool {
    let is_listed = |entry: &String| entry == "*" || entry.eq_ignore_ascii_case(origin);
    let is_own = match (origin.split_once("://"), host) {
        (Some((_, origin_host)), Some(host)) => origin_host.eq_ignore_ascii_case(host),
        _ => false,
    };
    is_own || allowed.iter().any(is_listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_host_and_listed_origins_are_let_in() {
        let host = Some("127.0.0.1:30000");
        let listed = ["https://chat.example".to_owned()];
        assert!(is_allowed("http://127.0.0.1:30000", host, &[]));
        assert!(!is_allowed("http://127.0.0.1:3000", host, &[]));
        assert!(!is_allowed(
            "http://127.0.0.1:30000.evil.example",
            host,
            &[]
        ));
        assert!(!is_allowed("null", host, &[]));
        assert!(is_allowed("https://chat.example", host, &listed));
        assert!(!is_allowed("https://chat.example.evil", host, &listed));
        assert!(is_allowed(
            "https://anywhere.example",
            None,
            &["*".to_owned()]
        ));
    }
}
