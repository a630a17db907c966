//! The page that a browser shows if its request names a host that is not allowed.

use std::fmt;

use actix_web::http::StatusCode;
use actix_web::http::header::{CacheControl, CacheDirective};
use actix_web::{HttpResponse, ResponseError};

use super::{HTML, POLICY};
use crate::error::ApiError;
use crate::files::guard;

const PAGE: &str = include_str!("refused.html");
/// Stands for the error's message in the page.
const MESSAGE: &str = "{{message}}";

/// An error that is answered with a page instead of JSON.
#[derive(Debug)]
pub(crate) struct RefusedPage(pub(crate) ApiError);

impl fmt::Display for RefusedPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl ResponseError for RefusedPage {
    fn status_code(&self) -> StatusCode {
        self.0.status_code()
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status_code());
        guard(&mut response, POLICY);
        response.insert_header(CacheControl(vec![CacheDirective::NoStore]));
        response.content_type(HTML);
        response.body(PAGE.replace(MESSAGE, &escaped(self.0.message())))
    }
}

/// The text, such that a browser shows it as it is.
fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            other => html.push(other),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_texts() {
        assert_eq!(PAGE.matches(MESSAGE).count(), 1);
        assert_eq!(
            escaped("<a b='c'>\"&amp;\u{fc}"),
            "&lt;a b=&#39;c&#39;&gt;&quot;&amp;amp;\u{fc}"
        );
    }
}
