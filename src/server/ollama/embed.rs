//! `POST /api/embed`, and the older `POST /api/embeddings`, which takes one text.

use std::sync::Arc;
use std::time::Instant;

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde::Serialize;

use super::call::rid;
use super::target::Target;
use super::wire::nanoseconds;
use super::{keep_alive, names};
use crate::body::JsonBody;
use crate::call::inputs;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::embeddings::{
    self, EmbedRequest, Embedded, NUMBER_BYTES, check_texts, hidden_size,
};
use crate::options::Options;
use crate::state::AppState;
use crate::whole;
use souffleur_request::{Pooling, Prompt};

const INPUT: &str = "input";
const PROMPT: &str = "prompt";

#[derive(Serialize)]
struct Answer {
    model: String,
    embeddings: Vec<Arc<[f32]>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u64,
}

#[derive(Serialize)]
struct OneAnswer {
    embedding: Arc<[f32]>,
}

pub(crate) async fn embed(state: Data<AppState>, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let began = Instant::now();
    let target = Target::of(&state)?;
    let mut fields = body.0;
    let model = names::take(&mut fields, &["model"], target.served_name())?;
    keep_alive::is_zero(&mut fields)?;
    let prompts = prompts(&mut fields, &target)?;
    let dimensions = fields.integer::<u32>("dimensions")?;
    let mut answer = Answer {
        model,
        embeddings: Vec::new(),
        total_duration: 0,
        load_duration: 0,
        prompt_eval_count: 0,
    };
    if prompts.is_empty() {
        answer.total_duration = nanoseconds(began.elapsed());
        return Ok(HttpResponse::Ok().json(answer));
    }
    let embedded = run(&state, &target, fields, (prompts, dimensions)).await?;
    let tokens = embedded.usages.iter().map(|usage| usage.prompt_tokens);
    answer.prompt_eval_count = tokens.map(u64::from).sum();
    answer.embeddings = embedded.vectors;
    let write = move || {
        answer.total_duration = nanoseconds(began.elapsed());
        serde_json::to_vec(&answer).expect("answers have string keys only")
    };
    let json = whole::written(embedded.answer_bytes, write).await?;
    Ok(whole::json(json, embedded.charge))
}

pub(crate) async fn embeddings(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let target = Target::of(&state)?;
    let mut fields = body.0;
    names::take(&mut fields, &["model"], target.served_name())?;
    keep_alive::is_zero(&mut fields)?;
    let prompt = fields.string(PROMPT)?.unwrap_or_default();
    if prompt.is_empty() {
        let embedding = Arc::default();
        return Ok(HttpResponse::Ok().json(OneAnswer { embedding }));
    }
    if prompt.trim().is_empty() {
        let text = "prompt is white space: send some text";
        return Err(ApiError::field(PROMPT, text));
    }
    let prompts = vec![Prompt::Text(prompt.into())];
    let embedded = run(&state, &target, fields, (prompts, None)).await?;
    let embedding = embedded.vectors.into_iter().next();
    let embedding = embedding.ok_or_else(ApiError::aborted)?;
    let write = move || {
        serde_json::to_vec(&OneAnswer { embedding }).expect("answers have string keys only")
    };
    let json = whole::written(embedded.answer_bytes, write).await?;
    Ok(whole::json(json, embedded.charge))
}

/// Reads `input`; without texts, the call only loads the model.
fn prompts(fields: &mut Fields, target: &Target<'_>) -> Result<Vec<Prompt>, ApiError> {
    let is_empty = fields.peek(INPUT).is_none_or(|raw| {
        let is_text = raw.is_text() && raw.has_no_effect();
        is_text || raw.first_of_list() == Some(b']')
    });
    if is_empty {
        return Ok(Vec::new());
    }
    let prompts = inputs(fields, INPUT, target.limits)?.into_vec();
    check_texts(&prompts)?;
    Ok(prompts)
}

/// Embeds prompts. Embeddings keep all values without dimensions, with 0, and with more than the model has.
async fn run(
    state: &Data<AppState>,
    target: &Target<'_>,
    mut fields: Fields,
    (prompts, dimensions): (Vec<Prompt>, Option<u32>),
) -> Result<Embedded, ApiError> {
    let width = hidden_size(target.loaded)?;
    let options = Options::table().read(&mut fields, target.limits)?;
    let request = EmbedRequest {
        prompts,
        pooling: Pooling::default(),
        dimensions: match dimensions {
            None | Some(0) => width,
            Some(dimensions) => width.min(dimensions as usize),
        },
        rid: rid(&mut fields)?,
        namespace: options.namespace(target.limits)?,
        scheduling: options.scheduling,
    };
    embeddings::embed(state, request, fields.into_charges(), NUMBER_BYTES).await
}
