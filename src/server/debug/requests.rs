//! `GET /debug/requests` and `/debug/requests/{rid}`: the requests of the Scheduler, as the console gets them.

use std::time::Duration;

use actix_web::http::header;
use actix_web::rt::time::timeout;
use actix_web::web::{Data, Path, Query};
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::openapi::path::Operation;

use super::engine;
use crate::error::{ApiError, ErrorBody};
use crate::key;
use crate::openapi::facts::Facts;
use crate::openapi::operation::{Describe, Group, describe};
use crate::openapi::shape::{Shape, count, enum_of, list, number, object, text, whole};
use crate::state::AppState;
use souffleur_actors::messages::{EngineView, ViewedRequests};
use souffleur_base::field::{Field, Shallow};
use souffleur_base::ids::RequestId;
use souffleur_engine::EngineHandle;
use souffleur_state::scheduler::live::{LiveRequest, LiveState};

/// The time that the Scheduler has for its answer.
const ANSWER_LIMIT: Duration = Duration::from_millis(250);
const MAX_REQUESTS: u32 = 1000;
const DEFAULT_REQUESTS: u32 = 100;
/// There is no later step, so the view has none.
const NO_STEPS: u64 = u64::MAX;

#[derive(Deserialize)]
pub(crate) struct RequestsQuery {
    limit: Option<String>,
}

impl RequestsQuery {
    fn limit(self) -> Result<usize, ApiError> {
        let Some(given) = self.limit else {
            return Ok(DEFAULT_REQUESTS as usize);
        };
        let limit = given.parse::<u32>().ok();
        let limit = limit.filter(|limit| (1..=MAX_REQUESTS).contains(limit));
        limit.map(|limit| limit as usize).ok_or_else(|| {
            let wanted = format!("a whole number from 1 to {MAX_REQUESTS}");
            let value = Shallow::Text(given);
            Field::new("limit", &value).must_be(&wanted).into()
        })
    }
}

/// The answer if the Scheduler has sent none: the error, and the facts that are known without it.
#[derive(Serialize)]
struct Unanswered<'a> {
    error: ErrorBody<'a>,
    engine: Value,
}

/// Lists requests without their prompts. Their ids are for admins only, as on the console.
pub(crate) async fn requests(
    request: HttpRequest,
    query: Query<RequestsQuery>,
    state: Data<AppState>,
) -> Result<HttpResponse, ApiError> {
    let limit = query.into_inner().limit()?;
    let engine = &state.loaded()?.engine;
    let view = match view(engine, ViewedRequests::First(limit)).await {
        Ok(view) => view,
        Err(error) => return Ok(unanswered(&error, engine)),
    };
    let is_admin = key::is_admin(request.headers(), state.config());
    let rows = view.requests.iter();
    let rows = rows.map(|row| facts(row, is_admin.then(|| row.rid.as_str())));
    Ok(HttpResponse::Ok().json(json!({
        "total": view.n_requests,
        "requests": rows.collect::<Vec<_>>(),
    })))
}

pub(crate) async fn request(
    state: Data<AppState>,
    rid: Path<String>,
) -> Result<HttpResponse, ApiError> {
    let rid = RequestId::new(rid.into_inner());
    let engine = &state.loaded()?.engine;
    let view = match view(engine, ViewedRequests::One(rid.clone())).await {
        Ok(view) => view,
        Err(error) => return Ok(unanswered(&error, engine)),
    };
    let found = view.requests.first();
    let found = found.ok_or_else(|| ApiError::no_such_request(&rid))?;
    Ok(HttpResponse::Ok().json(facts(found, Some(rid.as_str()))))
}

async fn view(engine: &EngineHandle, which: ViewedRequests) -> Result<Box<EngineView>, ApiError> {
    let view = timeout(ANSWER_LIMIT, engine.view(NO_STEPS, which)).await;
    let view = view.map_err(|_| ApiError::no_answer(ANSWER_LIMIT))?;
    view.map_err(ApiError::from)
}

fn unanswered(error: &ApiError, engine: &EngineHandle) -> HttpResponse {
    let mut response = HttpResponse::ServiceUnavailable();
    if let Some(seconds) = error.retry_after_s() {
        response.insert_header((header::RETRY_AFTER, seconds));
    }
    response.json(Unanswered {
        error: error.body(),
        engine: engine::facts(engine),
    })
}

fn facts(request: &LiveRequest, rid: Option<&str>) -> Value {
    json!({
        "rid": rid,
        "number": request.intake.get(),
        "phase": request.state.name(),
        "age_s": request.queued_s + request.running_s,
        "queued_s": request.queued_s,
        "running_s": request.running_s,
        "prompt_tokens": request.prompt,
        "cached_tokens": request.cached,
        "loaded_tokens": request.loaded,
        "computed_tokens": request.computed,
        "output_tokens": request.output,
        "pages": request.pages,
        "retractions": request.retractions,
        "losses": request.losses,
        "resumptions": request.resumptions,
    })
}

fn request_shape() -> Shape {
    object()
        .has("rid", text().or_null().about("null without the admin key"))
        .has(
            "number",
            count().about("the position in the order of arrival"),
        )
        .has("phase", enum_of(LiveState::ALL.map(LiveState::name)))
        .has("age_s", number().at_least(0))
        .has(
            "queued_s",
            number().at_least(0).about("until the first admission"),
        )
        .has("running_s", number().at_least(0).about("since then"))
        .has("prompt_tokens", count())
        .has(
            "cached_tokens",
            count().about("prompt tokens from the cache and the KV store, at the last admission"),
        )
        .has(
            "loaded_tokens",
            count().about("prompt tokens from the KV store"),
        )
        .has(
            "computed_tokens",
            count().about("prompt tokens computed since the last admission"),
        )
        .has("output_tokens", count())
        .has(
            "pages",
            count().about("KV pages, those that are shared with the cache too"),
        )
        .has("retractions", count())
        .has("losses", count().about("lost steps that had the request"))
        .has(
            "resumptions",
            count().about("how often the request was continued after a death"),
        )
        .shape()
}

pub(crate) fn operation(_: &Facts) -> Operation {
    let limit = whole()
        .at_least(1)
        .at_most(MAX_REQUESTS)
        .or(DEFAULT_REQUESTS);
    let answer = object()
        .has("total", count().about("the number of all requests"))
        .has("requests", list(request_shape()));
    may_hang(describe(Group::Server, "The requests in the engine"))
        .about(
            "Running requests in the order of their admission, then waiting ones in the order of the queue; without \
             those that are still encoded. Prompts and outputs are left out.",
        )
        .query("limit", limit, "the most requests to list")
        .answers(answer.shape(), "the requests")
        .fails(400, "`limit` is not a whole number from 1 to 1000")
        .done()
}

pub(crate) fn request_operation(_: &Facts) -> Operation {
    may_hang(describe(Group::Server, "One request in the engine"))
        .at("rid", "the id of the request")
        .answers(request_shape(), "the request")
        .fails(404, "no request with this id runs or waits")
        .done()
}

fn may_hang(describe: Describe) -> Describe {
    describe.needs_engine(
        "there is no engine, or it did not answer within 250 ms (`no_answer`): `engine` has the facts that are known without it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_a_whole_number_within_bounds() {
        let limit = |text: Option<&str>| {
            let limit = text.map(str::to_owned);
            RequestsQuery { limit }.limit()
        };
        assert_eq!(limit(None), Ok(100));
        assert_eq!(limit(Some("1")), Ok(1));
        assert_eq!(limit(Some("1000")), Ok(1000));
        for bad in ["0", "1001", "-1", "1.0", "", "all"] {
            let error = limit(Some(bad)).expect_err("it is refused");
            let text = error.message();
            assert!(
                text.ends_with("must be a whole number from 1 to 1000"),
                "{text}"
            );
        }
    }
}
