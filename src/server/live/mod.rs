//! `GET /console/live`: an event stream of the engine's work, for the console. `docs/console-protocol.md` has its form.
//!
//! The first viewer starts a thread, the sampler, which asks the engine several times per second, and sends what has
//! changed to all viewers. The sampler ends with the last viewer.

mod body;
mod sample;
mod sampler;
mod tree;
mod viewer;
mod viewers;
mod watch;
mod wire;

use actix_web::http::header;
use actix_web::web::{Data, Query};
use actix_web::{HttpRequest, HttpResponse};
use serde::Deserialize;
use utoipa::openapi::path::Operation;

use super::console;
use super::error::ApiError;
use super::key;
use super::openapi::facts::Facts;
use super::openapi::operation::{Group, describe};
use super::openapi::shape::{object, text, whole};
use super::state::AppState;
use body::LiveBody;
use souffleur_base::field::{Field, Shallow};
use viewers::MAX_VIEWERS;

pub(super) use viewers::Viewers;

const MAX_HZ: u32 = 10;
const DEFAULT_HZ: u32 = 4;

#[derive(Deserialize)]
pub(super) struct LiveQuery {
    hz: Option<String>,
}

impl LiveQuery {
    fn hz(self) -> Result<u32, ApiError> {
        let Some(given) = self.hz else {
            return Ok(DEFAULT_HZ);
        };
        let hz = given.parse::<u32>().ok();
        let hz = hz.filter(|hz| (1..=MAX_HZ).contains(hz));
        hz.ok_or_else(|| {
            let wanted = format!("a whole number from 1 to {MAX_HZ}");
            let value = Shallow::Text(given);
            Field::new("hz", &value).must_be(&wanted).into()
        })
    }
}

/// Streams the engine's work until the client leaves or the server has stopped the engine.
pub(super) async fn watch(
    request: HttpRequest,
    query: Query<LiveQuery>,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    console::check_is_on(&request, &state)?;
    let hz = query.into_inner().hz()?;
    let is_admin = key::is_admin(request.headers(), state.config());
    let state = state.into_inner();
    let start_sampler = || sampler::start(state.clone());
    let (events, seat) = state.viewers().join(hz, is_admin, start_sampler)?;
    Ok(HttpResponse::Ok()
        .content_type("text/event-stream")
        .insert_header((header::CACHE_CONTROL, "no-store"))
        .insert_header(("x-accel-buffering", "no"))
        .streaming(LiveBody::new(events, seat)))
}

pub(super) fn operation(_: &Facts) -> Operation {
    let rate = whole().at_least(1).at_most(MAX_HZ).or(DEFAULT_HZ);
    let event = object()
        .has("event", text().about("`hello`, `frame` or `tree`"))
        .has("data", text().about("JSON"));
    describe(Group::Server, "The engine's work, as the console shows it")
        .about("Server-sent events without an end. Their form may change: `docs/console-protocol.md` describes it.")
        .query("hz", rate, "frames per second")
        .answers_as("text/event-stream", event.shape(), "the events")
        .fails(400, "`hz` is not a whole number from 1 to 10")
        .needs_engine(&format!(
            "{MAX_VIEWERS} clients are watching (`too_many_viewers`): come back after `Retry-After`"
        ))
        .done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_a_whole_number_within_bounds() {
        let hz = |text: Option<&str>| {
            let hz = text.map(str::to_owned);
            LiveQuery { hz }.hz()
        };
        assert_eq!(hz(None), Ok(4));
        assert_eq!(hz(Some("1")), Ok(1));
        assert_eq!(hz(Some("10")), Ok(10));
        for bad in ["0", "11", "-1", "4.0", "", "four", "4294967297"] {
            let error = hz(Some(bad)).expect_err("it is refused");
            let text = error.message();
            assert!(
                text.ends_with("must be a whole number from 1 to 10"),
                "{text}"
            );
        }
    }
}
