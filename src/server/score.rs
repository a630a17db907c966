//! `POST /v1/score`: the probability of each label token after a query joined with each item, as in SGLang.

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde_json::json;
use utoipa::openapi::path::Operation;

use super::body::JsonBody;
use super::budget::Charges;
use super::call::{self, CallLimits, Prompts, check_size};
use super::error::ApiError;
use super::fields::{self, Fields};
use super::foreign;
use super::openapi::facts::Facts;
use super::openapi::operation::{Group, describe};
use super::openapi::shape::{any_of, count, enum_of, list, number, object, text, token_id};
use super::openapi::shared;
use super::options::Options;
use super::scoring::{self, Labels, Requests};
use super::state::AppState;
use super::table::Table;
use super::whole;
use souffleur_base::field::check_count;
use souffleur_request::Prompt;

const QUERY: &str = "query";
const ITEMS: &str = "items";
const LABELS: &str = "label_token_ids";

/// Maximum bytes of a score in JSON, with its comma.
const SCORE_BYTES: usize = 26;

#[derive(Default)]
pub(super) struct Body {
    query: Option<Prompt>,
    items: Vec<Prompt>,
    labels: Vec<u32>,
    softmax: bool,
    item_first: bool,
    options: Options,
}

struct Call {
    requests: Requests,
    labels: Labels,
}

pub(super) async fn score(state: Data<AppState>, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let model = state.serving()?.engine.model();
    let (call, charges) = Call::parse(body.0, scoring::limits(&state)?, model.vocab_size)?;
    let n_prompts = call.requests.prompts.len();
    let answer_bytes = n_prompts * call.labels.tokens.len() * SCORE_BYTES;
    let charge = state.answers().charge_bytes(answer_bytes)?;
    let scored = scoring::run(&state, call.requests, &call.labels, charges).await?;
    let tokens = scored.usages.iter().map(|usage| usage.prompt_tokens);
    let prompt_tokens: u64 = tokens.map(u64::from).sum();
    let answer = json!({
        "object": "scoring",
        "scores": scored.scores,
        "model": model.served_model_name,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 0,
            "total_tokens": prompt_tokens,
        },
    });
    Ok(whole::json(answer.to_string().into_bytes(), charge))
}

pub(super) fn table() -> Table<Body> {
    let labels_shape = |facts: &Facts| {
        let labels = list(token_id()).longer_than(0);
        let labels = labels.up_to(facts.limits.max_logprobs);
        labels.about("the tokens to score")
    };
    let query_shape =
        |_: &Facts| any_of([text(), list(token_id()).longer_than(0)]).about("a text, or token ids");
    let items_shape = |facts: &Facts| {
        shared::prompts(facts).about("one or several, of the same kind as the query")
    };
    Table::new()
        .ignores("model", |_| shared::model())
        .has(LABELS, labels_shape, labels, |body: &mut Body, labels| {
            body.labels = labels
        })
        .flag(
            "apply_softmax",
            false,
            "normalise over the labels",
            |body, flag| body.softmax = flag,
        )
        .flag(
            "item_first",
            false,
            "the item comes before the query",
            |body, flag| body.item_first = flag,
        )
        .has(QUERY, query_shape, query, |body, query| {
            body.query = Some(query)
        })
        .has(ITEMS, items_shape, items, |body, items| body.items = items)
        .and(Options::table(), |body| &mut body.options)
}

impl Call {
    fn parse(
        mut fields: Fields,
        limits: CallLimits<'_>,
        vocab_size: usize,
    ) -> Result<(Self, Charges), ApiError> {
        let body = table().read(&mut fields, limits)?;
        check_labels(&body.labels, vocab_size)?;
        let query = body.query.expect("a body without a query is refused");
        let items = body.items;
        let temperature = fields.take("temperature")?;
        if temperature.is_some_and(|given| given.as_f64() != Some(1.0)) {
            return Err(ApiError::unsupported("temperature"));
        }
        foreign::refuse(&mut fields, &[])?;
        let item_bytes = items.iter().map(bytes).sum();
        scoring::charge_copies(&mut fields, bytes(&query), items.len(), item_bytes)?;
        let prompt = |item: &Prompt| {
            if !body.item_first {
                joined(&query, item)
            } else {
                joined(item, &query)
            }
        };
        let prompts: Result<_, ApiError> = items.iter().map(prompt).collect();
        let call = Self {
            requests: Requests {
                prompts: prompts?,
                namespace: body.options.namespace(limits)?,
                scheduling: body.options.scheduling,
            },
            labels: Labels {
                tokens: body.labels.into(),
                softmax: body.softmax,
            },
        };
        Ok((call, fields.into_charges()))
    }
}

fn query(fields: &mut Fields, name: &str, limits: CallLimits<'_>) -> Result<Prompt, ApiError> {
    match call::inputs(fields, name, limits)? {
        Prompts::One(query) => Ok(query),
        Prompts::List(_) => {
            let text = "query is a list of queries, must be a string or one list of token ids: send one call per query";
            Err(ApiError::field(name, text))
        }
    }
}

fn items(fields: &mut Fields, name: &str, limits: CallLimits<'_>) -> Result<Vec<Prompt>, ApiError> {
    let items = call::inputs(fields, name, limits)?.into_vec();
    check_size(name, items.len(), items.len(), limits)?;
    Ok(items)
}

fn labels(fields: &mut Fields, name: &str, limits: CallLimits<'_>) -> Result<Vec<u32>, ApiError> {
    let raw = fields.take_raw(name).filter(|raw| !raw.has_no_effect());
    let Some(raw) = raw else {
        let text = "label_token_ids is missing or empty: send the ids of the tokens to score";
        return Err(ApiError::field(name, text));
    };
    if raw.is_list() {
        let (_, len) = raw.items(name, 0)?;
        check_count(name, len, limits.request.max_logprobs, "ids")?;
    }
    fields::token_ids(name, &raw)
}

fn check_labels(labels: &[u32], vocab_size: usize) -> Result<(), ApiError> {
    match labels.iter().find(|label| **label as usize >= vocab_size) {
        None => Ok(()),
        Some(label) => {
            let text = format!(
                "{LABELS} contains token id {label}, but the vocabulary has {vocab_size} tokens: use ids below \
                 {vocab_size}"
            );
            Err(ApiError::field(LABELS, text))
        }
    }
}

fn bytes(prompt: &Prompt) -> usize {
    match prompt {
        Prompt::Tokens(tokens) => size_of_val::<[u32]>(tokens),
        text => text.text_bytes(),
    }
}

fn joined(first: &Prompt, second: &Prompt) -> Result<Prompt, ApiError> {
    match (first, second) {
        (Prompt::Text(first), Prompt::Text(second)) => {
            Ok(Prompt::Text([&**first, &**second].concat().into()))
        }
        (Prompt::Tokens(first), Prompt::Tokens(second)) => {
            Ok(Prompt::Tokens([&**first, &**second].concat().into()))
        }
        _ => {
            let text = "items and query differ in type: send both as text or both as token ids";
            Err(ApiError::field(ITEMS, text))
        }
    }
}

pub(super) fn operation(facts: &Facts) -> Operation {
    let usage = object()
        .has("prompt_tokens", count())
        .has("completion_tokens", count())
        .has("total_tokens", count());
    let scored = object()
        .has("object", enum_of(["scoring"]))
        .has("scores", list(list(number())))
        .has("model", text())
        .has("usage", usage.shape());
    let example =
        json!({"query": "Is it open? ", "items": ["Yes", "No"], "label_token_ids": [5, 6]});
    describe(
        Group::SgLang,
        "The probability of each label token after the query and an item",
    )
    .takes(table().shape(facts).shape(), example)
    .answers(
        scored.shape(),
        "the probabilities of the tokens, for each item",
    )
    .runs_requests()
    .done()
}
