//! The ids of an HTTP request: `x-request-id`, from the client or generated, and `x-client-request-id`.

use std::sync::Arc;

use actix_web::http::header::{HeaderMap, HeaderName};

/// The header of a request's id, which the client sends or the server generates; every answer has it.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The header of the same id in answers to Anthropic's clients.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// The header of an id that some clients give to a request or a conversation. Several requests may have the same one.
const X_CLIENT_REQUEST_ID: HeaderName = HeaderName::from_static("x-client-request-id");

const MAX_ID_BYTES: usize = 128;

pub(super) struct Ids {
    pub(super) request_id: Arc<str>,
    pub(super) client_request_id: Option<Box<str>>,
}

impl Ids {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let given = |name| {
            let value = headers.get(name)?.to_str().ok()?;
            is_id(value).then_some(value)
        };
        let request_id = match given(X_REQUEST_ID) {
            Some(id) => id.into(),
            None => new_id().into(),
        };
        Self {
            request_id,
            client_request_id: given(X_CLIENT_REQUEST_ID).map(Into::into),
        }
    }
}

pub(crate) fn new_id() -> String {
    format!("req_{}", uuid::Uuid::new_v4().simple())
}

/// Returns whether a header and a log can hold `text` unescaped.
fn is_id(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
    (1..=MAX_ID_BYTES).contains(&text.len()) && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn a_plain_id_is_kept_and_any_other_replaced() {
        let long = "x".repeat(MAX_ID_BYTES);
        let too_long = "x".repeat(MAX_ID_BYTES + 1);
        let kept = ["a", "0b6f-4:7.x_Y", &long];
        let replaced = ["", "a b", "a\tb", "a;b", "{id}", "ü", &too_long];
        for (ids, are_kept) in [(&kept[..], true), (&replaced[..], false)] {
            for &id in ids {
                let request = TestRequest::get().insert_header((X_REQUEST_ID, id));
                let made = Ids::of(request.to_srv_request().headers()).request_id;
                assert_eq!(&*made == id, are_kept, "{id:?} became {made:?}");
                assert!(is_id(&made), "{made:?}");
            }
        }
    }

    #[test]
    fn a_client_request_id_does_not_replace_the_request_id() {
        let request = TestRequest::get().insert_header((X_CLIENT_REQUEST_ID, "turn-1"));
        let ids = Ids::of(request.to_srv_request().headers());
        assert_eq!(ids.client_request_id.as_deref(), Some("turn-1"));
        assert!(ids.request_id.starts_with("req_"), "{}", ids.request_id);
        let request = TestRequest::get().insert_header((X_CLIENT_REQUEST_ID, "a b"));
        let ids = Ids::of(request.to_srv_request().headers());
        assert_eq!(ids.client_request_id, None);
    }
}
