//! The access log: one line for each HTTP request, at its end.
//!
//! Values that clients choose are escaped, so that they cannot end a line or look like another field. The log has
//! neither queries nor bodies.

use std::fmt::{self, Write};
use std::net::SocketAddr;
use std::sync::PoisonError;
use std::time::Duration;

use super::{Exchange, ExchangeEnd};
use souffleur_base::ids::RequestId;

const MAX_SHOWN: usize = 128;
/// The status of a request whose client disconnected before the answer, as in nginx.
const LEFT_EARLY: u16 = 499;

pub(super) fn log(exchange: &Exchange, ended: ExchangeEnd) {
    if !tracing::enabled!(target: "souffleur::access", tracing::Level::INFO) {
        return;
    }
    let requests = exchange.engine_requests.lock();
    let requests = requests.unwrap_or_else(PoisonError::into_inner);
    let rids = (requests.count > 0).then(|| RequestIds {
        ids: &requests.ids,
        count: requests.count,
    });
    tracing::info!(
        target: "souffleur::access",
        method = %ClientText(exchange.method.as_str()),
        path = %ClientText(&exchange.path),
        status = ended.status.unwrap_or(LEFT_EARLY),
        bytes = ended.bytes,
        ms = exchange.duration().as_millis() as u64,
        request_id = &*exchange.ids.request_id,
        client_request_id = exchange.ids.client_request_id.as_deref(),
        rids = rids.map(tracing::field::display),
        client = exchange.client.map(tracing::field::display),
        ended = if ended.is_whole { "whole" } else { "client_left" },
    );
}

pub(crate) fn log_late_head(request_id: &str, client: Option<SocketAddr>, waited: Duration) {
    tracing::info!(
        target: "souffleur::access",
        method = "-",
        path = "-",
        status = 408,
        bytes = 0,
        ms = waited.as_millis() as u64,
        request_id,
        client = client.map(tracing::field::display),
        ended = "whole",
    );
}

/// A client's text: unchanged if it is short and plain, otherwise quoted, escaped and shortened.
struct ClientText<'a>(&'a str);

impl fmt::Display for ClientText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-/{}".contains(&byte);
        if (1..=MAX_SHOWN).contains(&self.0.len()) && self.0.bytes().all(is_plain) {
            return f.write_str(self.0);
        }
        f.write_char('"')?;
        for character in self.0.chars().take(MAX_SHOWN) {
            write!(f, "{}", character.escape_default())?;
        }
        f.write_str(match self.0.chars().nth(MAX_SHOWN) {
            Some(_) => "...\"",
            None => "\"",
        })
    }
}

/// Ids of engine requests, separated by commas, and the number of further requests.
struct RequestIds<'a> {
    ids: &'a [RequestId],
    count: usize,
}

impl fmt::Display for RequestIds<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, id) in self.ids.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{}", ClientText(id.as_str()))?;
        }
        match self.count - self.ids.len() {
            0 => Ok(()),
            more => write!(f, ",+{more}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_can_neither_end_a_line_nor_begin_a_field() {
        for plain in ["/generate", "/v1/responses/{id}", "a-0_1:x.y"] {
            assert_eq!(ClientText(plain).to_string(), plain);
        }
        for (text, shown) in [
            ("a\nINFO b", r#""a\nINFO b""#),
            ("a status=200", r#""a status=200""#),
            ("\u{1b}[2J", r#""\u{1b}[2J""#),
            ("a\"b", r#""a\"b""#),
            ("ü", r#""\u{fc}""#),
            ("", r#""""#),
        ] {
            assert_eq!(ClientText(text).to_string(), shown);
        }
        let long = ClientText(&"x".repeat(10_000)).to_string();
        assert_eq!(long, format!("\"{}...\"", "x".repeat(MAX_SHOWN)));
    }

    #[test]
    fn only_the_first_of_many_requests_are_listed() {
        let ids = ["a-0", "a 1"].map(RequestId::new);
        let shown = |count| {
            let ids = &ids[..];
            RequestIds { ids, count }.to_string()
        };
        assert_eq!(shown(2), r#"a-0,"a 1""#);
        assert_eq!(shown(9), r#"a-0,"a 1",+7"#);
    }
}
