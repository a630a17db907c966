//! Parts of answers with embedded files: validators, compression, and the headers that protect a page.

use actix_web::http::header::{self, EntityTag, Header, HeaderMap, HeaderName, IfNoneMatch};
use actix_web::{HttpRequest, HttpResponseBuilder};

/// Returns whether the client says that it has the file with this tag.
pub(super) fn client_has(request: &HttpRequest, tag: &EntityTag) -> bool {
    match IfNoneMatch::parse(request) {
        Ok(IfNoneMatch::Any) => request.headers().contains_key(header::IF_NONE_MATCH),
        Ok(IfNoneMatch::Items(known)) => known.iter().any(|known| known.weak_eq(tag)),
        Err(_) => false,
    }
}

pub(super) fn takes_gzip(request: &HttpRequest) -> bool {
    accepts(request.headers(), header::ACCEPT_ENCODING, "gzip")
}

pub(super) fn takes_html(headers: &HeaderMap) -> bool {
    accepts(headers, header::ACCEPT, "text/html")
}

/// Adds the headers that protect a page: `policy` is its content security policy.
pub(super) fn guard(response: &mut HttpResponseBuilder, policy: &'static str) {
    response.insert_header((header::CONTENT_SECURITY_POLICY, policy));
    response.insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"));
    response.insert_header((header::REFERRER_POLICY, "no-referrer"));
}

/// Returns whether a header with weights lists `name` itself; a wildcard does not count.
fn accepts(headers: &HeaderMap, header: HeaderName, name: &str) -> bool {
    let accepted = headers.get_all(header);
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.split(',').any(|item| is_wanted(item, name)))
}

/// Returns whether an item of such a header is `name` with a weight above 0.
fn is_wanted(item: &str, name: &str) -> bool {
    let mut parts = item.split(';').map(str::trim);
    let is_name = parts
        .next()
        .is_some_and(|part| part.eq_ignore_ascii_case(name));
    let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
    is_name && weight.is_none_or(|weight| weight.parse().is_ok_and(|weight: f32| weight > 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_counts_with_a_weight_above_0() {
        for (item, name, is_there) in [
            ("gzip", "gzip", true),
            (" GZIP;q=0.5", "gzip", true),
            ("gzip; q=0", "gzip", false),
            ("gzip;Q=0.0", "gzip", false),
            ("br", "gzip", false),
            ("x-gzip2", "gzip", false),
            ("*", "gzip", false),
            ("text/html;level=1;q=0.1", "text/html", true),
            ("text/html;level=1;q=none", "text/html", false),
            ("text/*", "text/html", false),
            ("", "text/html", false),
        ] {
            assert_eq!(is_wanted(item, name), is_there, "{item}");
        }
    }
}
