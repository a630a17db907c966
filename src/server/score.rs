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
use super::openapi::facts::Facts;
use super::openapi::operation::{Group, describe};
use super::openapi::shape::{any_of, count, flag, list, name_of, number, object, text, token_id};
use super::openapi::shared;
use super::scoring::{self, Labels, Options};
use super::state::AppState;
use super::whole;
use crate::field::check_count;
use crate::request::Prompt;

const QUERY: &str = "query";
const ITEMS: &str = "items";
const LABELS: &str = "label_token_ids";

/// Bytes that a score takes at most as JSON.
const SCORE_BYTES: usize = 26;

struct Call {
    prompts: Vec<Prompt>,
    labels: Labels,
    options: Options,
}

/// Answers `POST /v1/score`.
pub(super) async fn score(state: Data<AppState>, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let model = state.serving()?.engine.model();
    let (call, charges) = Call::parse(body.0, scoring::limits(&state)?, model.vocab_size)?;
    let answer_bytes = call.prompts.len() * call.labels.tokens.len() * SCORE_BYTES;
    let charge = state.answers().charge_bytes(answer_bytes)?;
    let scored = scoring::run(&state, call.prompts, &call.labels, &call.options, charges).await?;
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

impl Call {
    fn parse(
        mut fields: Fields,
        limits: CallLimits<'_>,
        vocab_size: usize,
    ) -> Result<(Self, Charges), ApiError> {
        fields.string("model")?;
        let labels = Labels {
            tokens: labels(&mut fields, limits, vocab_size)?,
            softmax: fields.flag("apply_softmax")?,
        };
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
        let options = Options::read(&mut fields, limits)?;
        let temperature = fields.take("temperature")?;
        if temperature.is_some_and(|given| given.as_f64() != Some(1.0)) {
            return Err(ApiError::unsupported("temperature"));
        }
        foreign::refuse(&mut fields, &[])?;
        let of_items = items.iter().map(bytes).sum();
        scoring::charge_copies(&mut fields, bytes(&query), items.len(), of_items)?;
        let prompt = |item: &Prompt| {
            if !item_first {
                joined(&query, item)
            } else {
                joined(item, &query)
            }
        };
        let prompts: Result<_, ApiError> = items.iter().map(prompt).collect();
        let call = Self {
            prompts: prompts?,
            labels,
            options,
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

fn bytes(prompt: &Prompt) -> usize {
    match prompt {
        Prompt::Tokens(tokens) => size_of_val::<[u32]>(tokens),
        text => text.text_bytes(),
    }
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
