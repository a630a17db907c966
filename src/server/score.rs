//! `POST /v1/score`: the probability of each label token after a query and each of some items, as in SGLang.

use std::sync::Arc;

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
use super::lanes::{Lane, finish_all};
use super::openapi::facts::Facts;
use super::openapi::operation::{Group, describe};
use super::openapi::shape::{any_of, count, flag, list, name_of, number, object, text, token_id};
use super::openapi::shared;
use super::state::AppState;
use super::transcript::Transcript;
use super::whole;
use crate::field::check_count;
use crate::request::{GenerateRequest, Prompt};
use crate::state::cache::namespace::Namespace;
use crate::state::sampling::{LogprobWish, SamplingParams};

const QUERY: &str = "query";
const ITEMS: &str = "items";
const LABELS: &str = "label_token_ids";

/// Bytes that a score takes at most as JSON.
const SCORE_BYTES: usize = 26;

struct Call {
    requests: Vec<GenerateRequest>,
    n_labels: usize,
    /// Scores are probabilities among the labels, and not among all tokens.
    softmax: bool,
}

/// Answers `POST /v1/score`.
pub(super) async fn score(state: Data<AppState>, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let engine = &state.serving()?.engine;
    let model = engine.model();
    let limits = CallLimits {
        max_requests: state.config().max_batch_requests,
        websocket: None,
        request: engine.request_limits(),
        vectors: None,
    };
    let (call, charges) = Call::parse(body.0, limits, model.vocab_size)?;
    let answer_bytes = call.requests.len() * call.n_labels * SCORE_BYTES;
    let charge = state.answers().charge_bytes(answer_bytes)?;
    let softmax = call.softmax;
    let lanes = Lane::open_all(&state, call.requests)?;
    let transcripts = finish_all(Lane::with_charges(lanes, charges)).await?;
    let prompt_tokens: u64 = transcripts
        .iter()
        .map(|one| u64::from(one.usage.prompt_tokens))
        .sum();
    let scores: Result<Vec<Vec<f64>>, ApiError> =
        transcripts.iter().map(|one| scores(one, softmax)).collect();
    let answer = json!({
        "object": "scoring",
        "scores": scores?,
        "model": model.served_model_name,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 0,
            "total_tokens": prompt_tokens,
        },
    });
    Ok(whole::json(answer.to_string().into_bytes(), charge))
}

/// The probabilities of the labels after one item, in their order.
fn scores(transcript: &Transcript, softmax: bool) -> Result<Vec<f64>, ApiError> {
    let first = transcript.output_logprobs.first();
    let first = first.ok_or_else(|| ApiError::aborted("the request was cancelled"))?;
    let logprobs = first.chosen.iter().map(|(_, logprob)| f64::from(*logprob));
    let shares: Vec<f64> = if !softmax {
        logprobs.map(f64::exp).collect()
    } else {
        // Relative to the largest, so that not all of them underflow.
        let largest = logprobs.clone().fold(f64::NEG_INFINITY, f64::max);
        let shares: Vec<f64> = logprobs.map(|logprob| (logprob - largest).exp()).collect();
        let sum: f64 = shares.iter().sum();
        shares.iter().map(|share| share / sum).collect()
    };
    // A label that no distribution has room for is not a number in JSON.
    Ok(shares
        .into_iter()
        .map(|share| if share.is_finite() { share } else { 0.0 })
        .collect())
}

impl Call {
    fn parse(
        mut fields: Fields,
        limits: CallLimits<'_>,
        vocab_size: usize,
    ) -> Result<(Self, Charges), ApiError> {
        fields.string("model")?;
        let labels = labels(&mut fields, limits, vocab_size)?;
        let softmax = fields.flag("apply_softmax")?;
        let item_first = fields.flag("item_first")?;
        let query = match call::inputs(&mut fields, QUERY, limits)? {
            Prompts::One(query) => query,
            Prompts::List(_) => {
                let text = "query must be a string or one list of token ids: send a call for each";
                return Err(ApiError::field(QUERY, text));
            }
        };
        let items = call::inputs(&mut fields, ITEMS, limits)?.into_vec();
        check_size(ITEMS, items.len(), items.len(), limits)?;
        let (key, salt) = (fields.string("extra_key")?, fields.string("cache_salt")?);
        let namespace = Namespace::new(key.as_deref(), salt.as_deref());
        namespace.validate(limits.request).map_err(ApiError::from)?;
        let priority = fields.integer("priority")?;
        let timeouts = fields.timeouts()?;
        let temperature = fields.take("temperature")?;
        if temperature.is_some_and(|given| given.as_f64() != Some(1.0)) {
            return Err(ApiError::unsupported("temperature"));
        }
        foreign::refuse(&mut fields, &[])?;
        charge_copies(&mut fields, &query, &items)?;
        let wish = LogprobWish {
            token_ids: labels.clone(),
            ..LogprobWish::default()
        };
        let request = |item: &Prompt| {
            let prompt = if !item_first {
                joined(&query, item)?
            } else {
                joined(item, &query)?
            };
            Ok(GenerateRequest {
                sampling: SamplingParams {
                    max_new_tokens: 1,
                    temperature: 0.0,
                    ..SamplingParams::default()
                },
                logprobs: Some(wish.clone()),
                namespace: namespace.clone(),
                priority,
                timeouts,
                is_streaming: false,
                ..GenerateRequest::new(prompt)
            })
        };
        let requests: Result<_, ApiError> = items.iter().map(request).collect();
        let call = Self {
            requests: requests?,
            n_labels: labels.len(),
            softmax,
        };
        Ok((call, fields.into_charges()))
    }
}

fn labels(
    fields: &mut Fields,
    limits: CallLimits<'_>,
    vocab_size: usize,
) -> Result<Arc<[u32]>, ApiError> {
    let raw = fields
        .take_raw(LABELS)
        .filter(|raw| !raw.asks_for_nothing());
    let Some(raw) = raw else {
        let text = "label_token_ids is missing: send the ids of the tokens to score";
        return Err(ApiError::field(LABELS, text));
    };
    if raw.is_list() {
        let (_, len) = raw.items(LABELS, 0)?;
        check_count(LABELS, len, limits.request.max_logprobs, "ids")?;
    }
    let labels = fields::token_ids(LABELS, &raw)?;
    match labels.iter().find(|label| **label as usize >= vocab_size) {
        None => Ok(labels.into()),
        Some(label) => {
            let text = format!(
                "{LABELS} holds {label}, the vocabulary has {vocab_size} tokens: use ids below it"
            );
            Err(ApiError::field(LABELS, text))
        }
    }
}

/// The query is written once for each item: that is charged before it is done.
fn charge_copies(fields: &mut Fields, query: &Prompt, items: &[Prompt]) -> Result<(), ApiError> {
    let bytes = |prompt: &Prompt| match prompt {
        Prompt::Tokens(tokens) => size_of_val::<[u32]>(tokens),
        text => text.text_bytes(),
    };
    let of_query = bytes(query).saturating_mul(items.len());
    let of_items: usize = items.iter().map(bytes).sum();
    fields.charge_request_bytes(of_query.saturating_add(of_items))
}

fn joined(first: &Prompt, then: &Prompt) -> Result<Prompt, ApiError> {
    match (first, then) {
        (Prompt::Text(first), Prompt::Text(then)) => {
            Ok(Prompt::Text([&**first, &**then].concat().into()))
        }
        (Prompt::Tokens(first), Prompt::Tokens(then)) => {
            Ok(Prompt::Tokens([&**first, &**then].concat().into()))
        }
        _ => {
            let text = "items and query are of two kinds: send both as text or both as token ids";
            Err(ApiError::field(ITEMS, text))
        }
    }
}

pub(super) fn operation(facts: &Facts) -> Operation {
    let labels = list(token_id())
        .longer_than(0)
        .up_to(facts.limits.max_logprobs);
    let query = any_of([text(), list(token_id()).longer_than(0)]);
    let fields = object()
        .takes("model", shared::model())
        .has(QUERY, query.about("a text, or token ids"))
        .has(
            ITEMS,
            shared::prompts(facts).about("one or several, of the same kind as the query"),
        )
        .has(LABELS, labels.about("the tokens to score"))
        .takes(
            "apply_softmax",
            flag().or(false).about("normalise over the labels"),
        )
        .takes(
            "item_first",
            flag().or(false).about("the item stands before the query"),
        )
        .and(shared::namespace(facts))
        .and(shared::urgency());
    let usage = object()
        .has("prompt_tokens", count())
        .has("completion_tokens", count())
        .has("total_tokens", count());
    let scored = object()
        .has("object", name_of(["scoring"]))
        .has("scores", list(list(number())))
        .has("model", text())
        .has("usage", usage.shape());
    let example =
        json!({"query": "Is it open? ", "items": ["Yes", "No"], "label_token_ids": [5, 6]});
    describe(
        Group::SgLang,
        "How likely tokens are behind a query and each of some items",
    )
    .takes(fields.shape(), example)
    .answers(
        scored.shape(),
        "the probabilities of the tokens, for each item",
    )
    .runs()
    .done()
}
