//! `POST /pause_generation` and `POST /continue_generation`: pause and resume scheduling.

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde_json::json;
use utoipa::openapi::path::Operation;

use super::body::JsonBody;
use super::error::ApiError;
use super::openapi::facts::Facts;
use super::openapi::operation::{Group, describe};
use super::openapi::shape::{Shape, enum_of, object, text};
use super::state::AppState;
use souffleur_base::field::{Field, Shallow};

/// Pauses scheduling until `/continue_generation`; new requests wait. The modes are SGLang's: `abort` cancels every
/// request in flight, `in_place` keeps them all.
pub(super) async fn pause(state: Data<AppState>, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let mut fields = body.0;
    let cancels = match fields.string("mode")?.as_deref() {
        None | Some("abort") => true,
        Some("in_place") => false,
        // SGLang's clients use this mode to replace the weights; here the weights do not change.
        Some("retract") => {
            let text = "mode \"retract\" is not supported: send abort or in_place";
            return Err(ApiError::field("mode", text));
        }
        Some(other) => {
            let mode = Shallow::Text(other.to_owned());
            let error = Field::new("mode", &mode).must_be("abort or in_place");
            return Err(error.into());
        }
    };
    let engine = &state.loaded()?.engine;
    engine.set_paused(true).await?;
    if cancels {
        engine.cancel_all();
    }
    Ok(done("generation is paused"))
}

pub(super) async fn resume(state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    state.loaded()?.engine.set_paused(false).await?;
    Ok(done("generation continues"))
}

fn done(message: &str) -> HttpResponse {
    HttpResponse::Ok().json(json!({ "status": "ok", "message": message }))
}

fn status() -> Shape {
    object()
        .has("status", text())
        .has("message", text())
        .shape()
}

pub(super) fn operation(_: &Facts) -> Operation {
    let mode = enum_of(["abort", "in_place"]).or("abort");
    let fields = object().takes(
        "mode",
        mode.about("`abort` cancels the requests in flight, `in_place` keeps them"),
    );
    describe(Group::Control, "Pause generation")
        .about("New requests wait.")
        .takes(fields.shape(), json!({"mode": "in_place"}))
        .answers(status(), "generation is paused")
        .needs_engine("there is no engine")
        .done()
}

pub(super) fn resume_operation(_: &Facts) -> Operation {
    describe(Group::Control, "Resume generation")
        .answers(status(), "generation continues")
        .fails(415, "the request has a body that is not declared as JSON")
        .needs_engine("there is no engine")
        .done()
}
