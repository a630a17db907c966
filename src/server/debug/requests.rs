//! `GET /debug/requests` and `/debug/requests/{rid}`: the requests of the Scheduler, as the console gets them, and
//! those that only the Tokenizer has.

use std::collections::HashSet;
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
use crate::openapi::shape::{Shape, count, enum_of, flag, list, number, object, text, whole};
use crate::state::AppState;
use souffleur_actors::messages::{EncodingRequest, EngineView, KnownRequests, ViewedRequests};
use souffleur_base::field::{Field, Shallow};
use souffleur_base::ids::RequestId;
use souffleur_engine::EngineHandle;
use souffleur_state::scheduler::live::{LiveRequest, LiveState};

/// The time that each actor has for its answer.
const ANSWER_LIMIT: Duration = Duration::from_millis(250);
const MAX_REQUESTS: u32 = 1000;
const DEFAULT_REQUESTS: u32 = 100;
/// There is no later step, so the view has none.
const NO_STEPS: u64 = u64::MAX;
/// The phase of a request that no Scheduler has seen yet.
const ENCODING: &str = "encoding";

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
    let listing = match Listing::ask(engine, ViewedRequests::First(limit)).await {
        Ok(listing) => listing,
        Err(error) => return Ok(unanswered(&error, engine)),
    };
    let is_admin = key::is_admin(request.headers(), state.config());
    let rows = listing.rows(is_admin).into_iter().take(limit);
    Ok(HttpResponse::Ok().json(json!({
        "total": listing.total(),
        "is_complete": listing.known.is_some(),
        "requests": rows.collect::<Vec<_>>(),
    })))
}

pub(crate) async fn request(
    state: Data<AppState>,
    rid: Path<String>,
) -> Result<HttpResponse, ApiError> {
    let rid = RequestId::new(rid.into_inner());
    let engine = &state.loaded()?.engine;
    let listing = match Listing::ask(engine, ViewedRequests::One(rid.clone())).await {
        Ok(listing) => listing,
        Err(error) => return Ok(unanswered(&error, engine)),
    };
    let found = listing.rows(true).into_iter().next();
    let found = found.ok_or_else(|| ApiError::no_such_request(&rid))?;
    Ok(HttpResponse::Ok().json(found))
}

/// The answers of the two actors that have requests.
struct Listing {
    /// `None` while the control actors are started again.
    view: Option<Box<EngineView>>,
    /// `None` if the Tokenizer has not answered.
    known: Option<KnownRequests>,
}

impl Listing {
    /// Asks the Scheduler first: a request that ends meanwhile is then not listed as one that the Scheduler lacks.
    async fn ask(engine: &EngineHandle, which: ViewedRequests) -> Result<Self, ApiError> {
        let view = timeout(ANSWER_LIMIT, engine.view(NO_STEPS, which.clone())).await;
        let view = view.map_err(|_| ApiError::no_answer(ANSWER_LIMIT))?;
        let known = timeout(ANSWER_LIMIT, engine.known_requests(which)).await;
        match (view, known.ok().and_then(Result::ok)) {
            (Err(error), None) => Err(error.into()),
            (view, known) => Ok(Self {
                view: view.ok(),
                known,
            }),
        }
    }

    fn total(&self) -> usize {
        let known = self.known.as_ref().map(|known| known.n_requests);
        let of_view = self.view.as_ref().map(|view| view.n_requests);
        known.or(of_view).unwrap_or(0)
    }

    /// Running requests and waiting ones, then those that the Scheduler lacks, then those that are encoded.
    fn rows(&self, shows_ids: bool) -> Vec<Value> {
        let id = |rid: &RequestId| shows_ids.then(|| rid.as_str().to_owned());
        let scheduled = self.view.iter().flat_map(|view| &view.requests);
        let mut listed = HashSet::new();
        let mut rows = Vec::new();
        for row in scheduled {
            listed.insert(&row.rid);
            rows.push(facts(row, row.state, id(&row.rid)));
        }
        let Some(known) = &self.known else {
            return rows;
        };
        for row in known
            .entered
            .iter()
            .filter(|row| !listed.contains(&row.rid))
        {
            let state = self.view.as_ref().map_or(LiveState::Held, |_| row.state);
            rows.push(facts(row, state, id(&row.rid)));
        }
        let encoding = known.encoding.iter();
        let encoding = encoding.filter(|row| !listed.contains(&row.rid));
        rows.extend(encoding.map(|row| encoding_facts(row, id(&row.rid))));
        rows
    }
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

fn facts(request: &LiveRequest, state: LiveState, rid: Option<String>) -> Value {
    json!({
        "rid": rid,
        "number": request.intake.get(),
        "phase": state.name(),
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

fn encoding_facts(request: &EncodingRequest, rid: Option<String>) -> Value {
    let age_s = request.age.as_secs_f64();
    json!({
        "rid": rid,
        "number": null,
        "phase": ENCODING,
        "age_s": age_s,
        "queued_s": age_s,
        "running_s": 0.0,
        "prompt_tokens": null,
        "cached_tokens": 0,
        "loaded_tokens": 0,
        "computed_tokens": 0,
        "output_tokens": 0,
        "pages": 0,
        "retractions": 0,
        "losses": 0,
        "resumptions": 0,
    })
}

fn request_shape() -> Shape {
    let phases = LiveState::ALL.map(LiveState::name).into_iter();
    object()
        .has("rid", text().or_null().about("null without the admin key"))
        .has(
            "number",
            count()
                .or_null()
                .about("the position in the order of arrival; null while the prompt is encoded"),
        )
        .has("phase", enum_of(phases.chain([ENCODING])))
        .has("age_s", number().at_least(0))
        .has(
            "queued_s",
            number().at_least(0).about("until the first admission"),
        )
        .has("running_s", number().at_least(0).about("since then"))
        .has(
            "prompt_tokens",
            count().or_null().about("null while the prompt is encoded"),
        )
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
        .has(
            "is_complete",
            flag().about(
                "false if the Tokenizer did not answer: only the Scheduler's requests are listed",
            ),
        )
        .has("requests", list(request_shape()));
    may_hang(describe(Group::Server, "The requests in the engine"))
        .about(
            "Running requests in the order of their admission, then waiting ones in the order of the queue, then those \
             that no Scheduler has after a death (`held`), then those that are encoded. Prompts and outputs are left \
             out.",
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
        .fails(404, "the engine has no request with this id")
        .done()
}

fn may_hang(describe: Describe) -> Describe {
    describe.needs_engine(
        "there is no engine, or its Scheduler did not answer within 250 ms (`no_answer`): `engine` has the facts that are known without it",
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
