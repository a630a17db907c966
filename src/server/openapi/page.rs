//! `GET /docs`: shows the OpenAPI document in Swagger UI, from embedded files. The page contacts no other server.

use std::io::Read;

use actix_web::http::header::{self, CacheControl, CacheDirective, EntityTag};
use actix_web::web::{Data, Path};
use actix_web::{HttpRequest, HttpResponse};
use flate2::read::GzDecoder;
use utoipa::openapi::path::Operation;

use super::facts::Facts;
use super::operation::{Group, describe};
use super::shape::text;
use crate::error::ApiError;
use crate::files::{self, client_has, takes_gzip};
use crate::state::AppState;

const VERSION: &str = "5.35.0";
const MAX_AGE_S: u32 = 3600;
/// The content security policy. Swagger UI needs inline styles, and images in `data:` URLs.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const INDEX: &str = include_str!("page/index.html");
const FILES: [File; 3] = [
    File {
        name: "page.js",
        content_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("page/page.js"),
        is_packed: false,
    },
    File {
        name: "swagger-ui-bundle.js",
        content_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("page/swagger-ui-bundle.js.gz"),
        is_packed: true,
    },
    File {
        name: "swagger-ui.css",
        content_type: "text/css; charset=utf-8",
        bytes: include_bytes!("page/swagger-ui.css.gz"),
        is_packed: true,
    },
];

struct File {
    name: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
    is_packed: bool,
}

pub(crate) async fn index(
    request: HttpRequest,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    super::check_is_on(&request, &state)?;
    let mut response = HttpResponse::Ok();
    files::guard(&mut response, POLICY);
    response.insert_header(CacheControl(vec![CacheDirective::NoCache]));
    response.content_type("text/html; charset=utf-8");
    Ok(response.body(INDEX))
}

pub(crate) async fn file(
    request: HttpRequest,
    state: Data<AppState>,
    name: Path<String>,
) -> Result<HttpResponse, ApiError> {
    super::check_is_on(&request, &state)?;
    let file = FILES.iter().find(|file| file.name == *name);
    let file = file.ok_or_else(|| super::nothing_here(&request))?;
    let tag = EntityTag::new_weak(format!("{VERSION}-{}", env!("CARGO_PKG_VERSION")));
    let mut response = if client_has(&request, &tag) {
        HttpResponse::NotModified()
    } else {
        HttpResponse::Ok()
    };
    files::guard(&mut response, POLICY);
    response.insert_header(header::ETag(tag.clone()));
    response.insert_header(CacheControl(vec![CacheDirective::MaxAge(MAX_AGE_S)]));
    response.insert_header((header::VARY, "accept-encoding"));
    if client_has(&request, &tag) {
        return Ok(response.finish());
    }
    response.content_type(file.content_type);
    if !file.is_packed {
        return Ok(response.body(file.bytes));
    }
    if takes_gzip(&request) {
        response.insert_header((header::CONTENT_ENCODING, "gzip"));
        return Ok(response.body(file.bytes));
    }
    Ok(response.body(file.unpacked()))
}

impl File {
    fn unpacked(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let read = GzDecoder::new(self.bytes).read_to_end(&mut bytes);
        read.expect("the embedded files are valid gzip");
        bytes
    }
}

pub(crate) fn index_operation(_: &Facts) -> Operation {
    describe(Group::Server, "This document as a page")
        .about("Swagger UI. Off with `--api-docs off`.")
        .answers_as("text/html", text(), "the page")
        .fails(404, "the page is off")
        .done()
}

pub(crate) fn file_operation(_: &Facts) -> Operation {
    describe(Group::Server, "A file of the page")
        .at("file", "its name")
        .answers_as("text/javascript", text(), "a script")
        .answers_as("text/css", text(), "the style sheet")
        .may_answer_304()
        .fails(404, "the page has no such file, or is off")
        .done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_files_unpack_and_have_the_documented_version() {
        for file in FILES.iter().filter(|file| file.is_packed) {
            let text = String::from_utf8(file.unpacked()).expect("it is text");
            assert!(text.len() > 100_000, "{}", file.name);
            let is_script = file.name.ends_with(".js");
            assert!(!is_script || text.contains(VERSION), "{}", file.name);
        }
        assert!(include_str!("page/README.md").contains(VERSION));
    }
}
