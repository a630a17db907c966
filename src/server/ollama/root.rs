//! `GET /`: the text by which Ollama's clients and scripts recognise a running server. Browsers get it, too.

use actix_web::HttpResponse;
use utoipa::openapi::path::Operation;

use crate::openapi::facts::Facts;
use crate::openapi::operation::{Group, describe};
use crate::openapi::shape::text;

const CONTENT_TYPE: &str = "text/plain; charset=utf-8";
const RUNNING: &str = "Ollama is running";

pub(crate) async fn root() -> HttpResponse {
    HttpResponse::Ok().content_type(CONTENT_TYPE).body(RUNNING)
}

pub(crate) fn operation(_: &Facts) -> Operation {
    describe(Group::Ollama, "Is there a server?")
        .answers_as(CONTENT_TYPE, text(), "Ollama's text")
        .done()
}
