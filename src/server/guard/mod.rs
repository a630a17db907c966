//! Refuses requests from web pages of other sites: a browser sends a page's requests to any address it can reach.
//!
//! A page of another site is refused by its `Origin` or `Sec-Fetch-Site` on every route. It may only link to a
//! [`Page`]: the browser then leaves the other site. A site whose name resolves to this server (DNS rebinding) is
//! refused by that name in `Host`. Clients other than browsers pass: they send no `Origin`, and an address or a known
//! name in `Host`.

mod hosts;

use actix_cors::Cors;
use actix_web::body::MessageBody;
use actix_web::dev::{RequestHead, ServiceRequest, ServiceResponse};
use actix_web::http::{Method, Version, header};
use actix_web::middleware::Next;
use actix_web::web::Data;

use super::config::ServerConfig;
use super::console::refused::RefusedPage;
use super::error::ApiError;
use super::exchange::{REQUEST_ID, X_REQUEST_ID};
use super::files::takes_html;
use super::state::AppState;

/// The header in which a browser states how the page's site relates to the address; pages cannot set or drop it.
const SEC_FETCH_SITE: &str = "sec-fetch-site";
/// The headers in which a browser states how it asks, and for which use; pages cannot set or drop them either.
const SEC_FETCH_MODE: &str = "sec-fetch-mode";
const SEC_FETCH_DEST: &str = "sec-fetch-dest";
/// Seconds for which a browser may keep the answer to a preflight: two hours, the maximum of Chromium.
const PREFLIGHT_MAX_AGE_S: usize = 7200;

/// Data of a resource: a page for people, to which other sites may link.
#[derive(Clone, Copy)]
pub(super) struct Page {
    /// Whether the configuration serves the page. If not, its path is guarded as any other.
    pub(super) is_on: fn(&ServerConfig) -> bool,
}

/// Refuses other sites' pages and unknown hosts, before the key is checked.
pub(super) async fn check(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    if let Some(state) = request.app_data::<Data<AppState>>() {
        let (head, config) = (request.head(), state.config());
        let page = request.app_data::<Page>();
        let is_page = page.is_some_and(|page| (page.is_on)(config));
        if let Err(error) = verify_host(head, config) {
            return Err(if is_page && takes_html(&head.headers) {
                RefusedPage(error).into()
            } else {
                error.into()
            });
        }
        verify_site(head, config, is_page && is_navigation(head))?;
    }
    next.call(request).await
}

/// Answers CORS preflights and lets pages read responses. It checks no origin: [`check`] runs first and passes only
/// pages of this server and of allowed origins.
pub(super) fn cors() -> Cors {
    Cors::default()
        .allow_any_origin()
        .allow_any_method()
        .allow_any_header()
        .expose_headers([
            header::RETRY_AFTER,
            header::WWW_AUTHENTICATE,
            X_REQUEST_ID,
            REQUEST_ID,
        ])
        .max_age(PREFLIGHT_MAX_AGE_S)
}

/// Refuses compressed bodies, and bodies of POST that are not declared as JSON: without a preflight, a page may send
/// `text/plain` and forms to any address, but not JSON.
pub(super) async fn require_json(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    check_body(request.head(), true)?;
    next.call(request).await
}

/// As [`require_json`], for an API whose clients send bodies without declaring them as JSON (`curl -d` declares a form).
/// Only bodies from a browser must be declared: a browser states the origin of each POST, and pages cannot prevent it.
pub(super) async fn require_json_from_pages(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    check_body(request.head(), is_from_page(request.head()))?;
    next.call(request).await
}

/// Refuses a compressed body and, if the request is a POST that `must_declare` its body, a body that is not declared as
/// JSON.
fn check_body(head: &RequestHead, must_declare: bool) -> Result<(), ApiError> {
    if !has_body(head) {
        return Ok(());
    }
    if let Some(encoding) = encoding(head) {
        return Err(ApiError::encoded(encoding));
    }
    let content_type = head.headers.get(header::CONTENT_TYPE);
    let content_type = content_type.map(|value| value.as_bytes());
    if must_declare && head.method == Method::POST && !content_type.is_some_and(is_json) {
        return Err(ApiError::not_json(content_type));
    }
    Ok(())
}

/// Returns whether a request has a header that browsers send and other clients do not.
fn is_from_page(head: &RequestHead) -> bool {
    head.headers.contains_key(header::ORIGIN) || head.headers.contains_key(SEC_FETCH_SITE)
}

fn verify_host(head: &RequestHead, config: &ServerConfig) -> Result<(), ApiError> {
    let has_no_key = config.api_key.is_none();
    let foreign = hosts::of(head).find(|host| !hosts::is_own(host, config));
    match foreign.filter(|_| has_no_key) {
        Some(host) => Err(ApiError::foreign_host(host)),
        None => Ok(()),
    }
}

/// `is_link` means that the request may come from any site, but not with a foreign `Origin`: a browser sends none when
/// it follows a link.
fn verify_site(head: &RequestHead, config: &ServerConfig, is_link: bool) -> Result<(), ApiError> {
    if config.allowed_origins.iter().any(|origin| origin == "*") {
        return Ok(());
    }
    let mut is_allowed = false;
    for origin in head.headers.get_all(header::ORIGIN) {
        let origin = origin.as_bytes();
        let is_listed = |listed: &String| listed.as_bytes().eq_ignore_ascii_case(origin);
        if config.allowed_origins.iter().any(is_listed) {
            is_allowed = true;
        } else if !is_own_origin(origin, head, config) {
            return Err(ApiError::foreign_origin(origin));
        }
    }
    // `none` means that a person typed the address. Browsers send `cross-site` for allowed origins, too.
    let is_fine = |site: &[u8]| is_allowed || is_link || site == b"same-origin" || site == b"none";
    let mut sites = head.headers.get_all(SEC_FETCH_SITE);
    match sites.find(|site| !is_fine(site.as_bytes())) {
        Some(site) => Err(ApiError::cross_site(site.as_bytes())),
        None => Ok(()),
    }
}

/// Returns whether a browser asks for a document for one of its tabs: not for a frame, an image or a script.
fn is_navigation(head: &RequestHead) -> bool {
    let says_only = |name: &str, expected: &str| {
        let mut values = head.headers.get_all(name);
        let first = values.next().map(|value| value.as_bytes());
        first == Some(expected.as_bytes()) && values.next().is_none()
    };
    head.method == Method::GET
        && says_only(SEC_FETCH_MODE, "navigate")
        && says_only(SEC_FETCH_DEST, "document")
}

/// Returns whether the origin's host is the request's host and is also a known name of this server. The latter is
/// checked because with an API key every `Host` passes, and after DNS rebinding both hosts are the attacker's.
fn is_own_origin(origin: &[u8], head: &RequestHead, config: &ServerConfig) -> bool {
    let scheme_end = origin.windows(3).position(|part| part == b"://");
    let Some(origin_host) = scheme_end.map(|end| &origin[end + 3..]) else {
        return false;
    };
    hosts::of(head)
        .any(|host| host.eq_ignore_ascii_case(origin_host) && hosts::is_own(host, config))
}

/// The first content encoding other than `identity`.
fn encoding(head: &RequestHead) -> Option<&[u8]> {
    let headers = head.headers.get_all(header::CONTENT_ENCODING);
    let mut encodings = headers.flat_map(|header| header.as_bytes().split(|byte| *byte == b','));
    encodings.find(|encoding| {
        let encoding = encoding.trim_ascii();
        !encoding.is_empty() && !encoding.eq_ignore_ascii_case(b"identity")
    })
}

fn has_body(head: &RequestHead) -> bool {
    match head.headers.get(header::CONTENT_LENGTH) {
        Some(length) => length.as_bytes() != b"0",
        // In HTTP/2 a flag, which is not visible here, marks a request without a body.
        None => {
            head.headers.contains_key(header::TRANSFER_ENCODING) || head.version > Version::HTTP_11
        }
    }
}

/// True for `application/json` and `application/...+json`, with any parameters.
fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type.split(|byte| *byte == b';').next();
    let essence = essence.unwrap_or_default().trim_ascii();
    let essence = essence.to_ascii_lowercase();
    essence
        .strip_prefix(b"application/")
        .is_some_and(|kind| kind == b"json" || kind.ends_with(b"+json"))
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    fn config(configure: impl FnOnce(&mut ServerConfig)) -> ServerConfig {
        let mut config = ServerConfig::default();
        configure(&mut config);
        config
    }

    #[track_caller]
    fn check(config: &ServerConfig, headers: &[(&'static str, &'static str)], code: Option<&str>) {
        let request = headers.iter().fold(TestRequest::get(), |request, header| {
            request.append_header(*header)
        });
        let request = request.to_srv_request();
        let head = request.head();
        let result = verify_host(head, config).and_then(|()| verify_site(head, config, false));
        assert_eq!(result.err().map(|error| error.code()), code, "{headers:?}");
    }

    const FOREIGN: Option<&str> = Some("origin_not_allowed");

    #[test]
    fn only_the_servers_origin_and_listed_origins_pass() {
        let none = config(|_| ());
        let listed = config(|config| config.allowed_origins = vec!["https://chat.example".into()]);
        let all = config(|config| config.allowed_origins = vec!["*".into()]);
        let host = ("host", "127.0.0.1:30000");
        let cases = [
            ("http://127.0.0.1:30000", None),
            ("http://127.0.0.1:3000", FOREIGN),
            ("http://127.0.0.1:30000.evil.example", FOREIGN),
            ("127.0.0.1:30000", FOREIGN),
            ("null", FOREIGN),
            ("", FOREIGN),
        ];
        for (origin, code) in cases {
            check(&none, &[host, ("origin", origin)], code);
            check(&listed, &[host, ("origin", origin)], code);
            check(&all, &[host, ("origin", origin)], None);
        }
        check(&listed, &[host, ("origin", "https://chat.example")], None);
        check(&listed, &[host, ("origin", "HTTPS://chat.example")], None);
        check(
            &listed,
            &[host, ("origin", "https://chat.example.evil")],
            FOREIGN,
        );
        let two = [
            host,
            ("origin", "https://chat.example"),
            ("origin", "http://evil.example"),
        ];
        check(&listed, &two, FOREIGN);
    }

    #[test]
    fn sec_fetch_site_is_checked_without_an_origin_too() {
        let none = config(|_| ());
        let listed = config(|config| config.allowed_origins = vec!["https://chat.example".into()]);
        let host = ("host", "localhost:30000");
        for (site, code) in [
            ("none", None),
            ("same-origin", None),
            ("same-site", FOREIGN),
            ("cross-site", FOREIGN),
            ("something-new", FOREIGN),
        ] {
            check(&none, &[host, (SEC_FETCH_SITE, site)], code);
            let own = ("origin", "http://localhost:30000");
            check(&none, &[host, own, (SEC_FETCH_SITE, site)], code);
            let allowed = ("origin", "https://chat.example");
            check(&listed, &[host, allowed, (SEC_FETCH_SITE, site)], None);
        }
    }

    #[test]
    fn with_a_key_any_host_passes_but_no_origin_of_an_unknown_host() {
        let keyed = |config: &mut ServerConfig| {
            config.api_key = Some(super::super::ApiKey::new("sk-1").expect("it is printable"));
        };
        let host = ("host", "rebound.example:30000");
        let origin = ("origin", "http://rebound.example:30000");
        check(&config(keyed), &[host], None);
        check(&config(keyed), &[host, origin], FOREIGN);
        check(&config(|_| ()), &[host], Some("host_not_allowed"));
        let known = config(|config| {
            keyed(config);
            config.allowed_hosts = vec!["rebound.example".into()];
        });
        check(&known, &[host, origin], None);
    }

    type Headers = &'static [(&'static str, &'static str)];

    #[test]
    fn only_bodies_from_pages_must_be_declared_as_json() {
        const ORIGIN: (&str, &str) = ("origin", "http://127.0.0.1:30000");
        const SITE: (&str, &str) = (SEC_FETCH_SITE, "same-origin");
        const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
        const JSON: (&str, &str) = ("content-type", "application/json");
        const ZIPPED: (&str, &str) = ("content-encoding", "gzip");
        let cases: [(Headers, Option<u16>); 8] = [
            (&[], None),
            (&[FORM], None),
            (&[FORM, ORIGIN], Some(415)),
            (&[FORM, SITE], Some(415)),
            (&[ORIGIN], Some(415)),
            (&[JSON, ORIGIN, SITE], None),
            (&[JSON, ZIPPED], Some(415)),
            (&[ZIPPED], Some(415)),
        ];
        for (headers, expected) in cases {
            let request = TestRequest::post().insert_header(("content-length", "2"));
            let request = headers.iter().fold(request, |request, (name, value)| {
                request.append_header((*name, *value))
            });
            let request = request.to_srv_request();
            let refused = check_body(request.head(), is_from_page(request.head()));
            let status = refused.err().map(|error| error.http_status());
            assert_eq!(status, expected, "{headers:?}");
        }
    }

    #[test]
    fn content_types_of_json_are_recognised() {
        for json in [
            "application/json",
            "Application/JSON ; charset=utf-8",
            "application/vnd.api+json",
        ] {
            assert!(is_json(json.as_bytes()), "{json}");
        }
        for other in [
            "",
            "text/plain",
            "text/plain;application/json",
            "text/plain, application/json",
            "application/x-www-form-urlencoded",
            "application/jsonp",
            "json",
        ] {
            assert!(!is_json(other.as_bytes()), "{other}");
        }
    }
}
