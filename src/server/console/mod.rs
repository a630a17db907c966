//! `GET /`: the web console, a page of embedded files. `docs/console-protocol.md` has their addresses and their policy.

pub(crate) mod refused;

use std::io::Write;
use std::sync::OnceLock;

use actix_web::http::header::{self, CacheControl, CacheDirective, EntityTag};
use actix_web::web::{Bytes, Data};
use actix_web::{HttpRequest, HttpResponse};
use flate2::Compression;
use flate2::write::GzEncoder;
use utoipa::openapi::path::Operation;

use crate::endpoint::Describe;
use crate::error::{self, ApiError};
use crate::files::{client_has, guard, takes_gzip, takes_html};
use crate::openapi::facts::Facts;
use crate::openapi::operation::{Group, describe};
use crate::openapi::shape::text;
use crate::state::AppState;

/// The content security policy of the page, and of its files.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'";
const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";
/// The answer to clients that take no HTML. Ollama's clients look for it.
const RUNNING: &str = "Ollama is running";

/// Joins the parts of the script, in this order. A test finds each file of the folder in the result.
macro_rules! script {
    ($($part:literal,)*) => {
        concat!($(include_str!(concat!("script/", $part)), "\n",)*)
    };
}

const SCRIPT: &str = script![
    "base.js",
    "http.js",
    "store.js",
    "markdown.js",
    "miss.js",
    "request.js",
    "code.js",
    "logprobs.js",
    "message.js",
    "talk.js",
    "composer.js",
    "sidebar.js",
    "explanations.js",
    "card.js",
    "live.js",
    "actors.js",
    "icicle.js",
    "tree.js",
    "steps.js",
    "pools.js",
    "lanes.js",
    "engine.js",
    "shell.js",
    "main.js",
];

static PAGE: File = File::new("/", HTML, page_operation, include_str!("page.html"));
pub(super) static FILES: [File; 4] = [
    File::new(
        "/console/style.css",
        CSS,
        style_operation,
        include_str!("style.css"),
    ),
    File::new("/console/console.js", JAVASCRIPT, script_operation, SCRIPT),
    File::new(
        "/console/marked.js",
        JAVASCRIPT,
        script_operation,
        include_str!("marked.js"),
    ),
    File::new(
        "/console/icon.svg",
        SVG,
        icon_operation,
        include_str!("icon.svg"),
    ),
];

pub(super) struct File {
    pub(super) path: &'static str,
    pub(super) describe: Describe,
    content_type: &'static str,
    text: &'static str,
    packed: OnceLock<Packed>,
}

/// A file's compressed text, made for the first client.
struct Packed {
    gzip: Bytes,
    tag: EntityTag,
}

/// Answers `GET /`.
pub(super) async fn page(
    request: HttpRequest,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    if state.config().console && takes_html(request.headers()) {
        return Ok(PAGE.answer(&request, "accept, accept-encoding"));
    }
    let mut response = HttpResponse::Ok();
    response.insert_header((header::VARY, "accept"));
    response.content_type("text/plain; charset=utf-8");
    Ok(response.body(RUNNING))
}

pub(super) async fn file(
    file: &'static File,
    request: HttpRequest,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    check_is_on(&request, &state)?;
    Ok(file.answer(&request, "accept-encoding"))
}

/// # Errors
/// The console is off: the path does not exist.
pub(super) fn check_is_on(request: &HttpRequest, state: &AppState) -> Result<(), ApiError> {
    if state.config().console {
        Ok(())
    } else {
        Err(error::nothing_at(request.path()))
    }
}

impl File {
    const fn new(
        path: &'static str,
        content_type: &'static str,
        describe: Describe,
        text: &'static str,
    ) -> Self {
        Self {
            path,
            describe,
            content_type,
            text,
            packed: OnceLock::new(),
        }
    }

    /// Clients ask each time whether the file has changed, so that after an update no page gets an old script.
    fn answer(&self, request: &HttpRequest, vary: &'static str) -> HttpResponse {
        let packed = self.packed.get_or_init(|| Packed::of(self.text));
        let is_known = client_has(request, &packed.tag);
        let mut response = if is_known {
            HttpResponse::NotModified()
        } else {
            HttpResponse::Ok()
        };
        guard(&mut response, POLICY);
        response.insert_header(header::ETag(packed.tag.clone()));
        response.insert_header(CacheControl(vec![CacheDirective::NoCache]));
        response.insert_header((header::VARY, vary));
        if is_known {
            return response.finish();
        }
        response.content_type(self.content_type);
        if takes_gzip(request) {
            response.insert_header((header::CONTENT_ENCODING, "gzip"));
            return response.body(packed.gzip.clone());
        }
        response.body(self.text)
    }
}

impl Packed {
    fn of(text: &str) -> Self {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let written = encoder.write_all(text.as_bytes());
        let gzip = written.and_then(|()| encoder.finish());
        let (length, hash) = (text.len(), crc32fast::hash(text.as_bytes()));
        Self {
            gzip: gzip.expect("a vector takes all bytes").into(),
            // The tag is weak, because the compressed text has it too.
            tag: EntityTag::new_weak(format!("{length:x}-{hash:08x}")),
        }
    }
}

pub(super) fn page_operation(_: &Facts) -> Operation {
    describe(Group::Server, "The web console")
        .about(
            "A page, if `Accept` names `text/html`; else a text by which Ollama's clients find the server. Off with \
             `--console off`.",
        )
        .answers_as("text/plain", text(), "the text")
        .answers_as("text/html", text(), "the page, or the text `Ollama is running`")
        .may_answer_304()
        .fails(404, "the console is off")
        .done()
}

fn style_operation(_: &Facts) -> Operation {
    file_operation("text/css", "the style sheet")
}

fn script_operation(_: &Facts) -> Operation {
    file_operation("text/javascript", "a script")
}

fn icon_operation(_: &Facts) -> Operation {
    file_operation(SVG, "the icon")
}

fn file_operation(content_type: &str, about: &str) -> Operation {
    describe(Group::Server, "A file of the web console")
        .answers_as(content_type, text(), about)
        .may_answer_304()
        .fails(404, "the console is off")
        .done()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn packed_files_unpack_and_have_different_tags() {
        let mut tags = Vec::new();
        for file in FILES.iter().chain([&PAGE]) {
            let Packed { gzip, tag } = Packed::of(file.text);
            let mut unpacked = String::new();
            let read = GzDecoder::new(&gzip[..]).read_to_string(&mut unpacked);
            read.expect("it is the text");
            assert_eq!(unpacked, file.text, "{}", file.path);
            assert!(!tags.contains(&tag), "{}", file.path);
            tags.push(tag);
        }
    }
}
