//! `POST /v1/embeddings`: the last token's final hidden state, or the mean over all tokens, normalised to length 1.

use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::web::Data;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use utoipa::openapi::path::Operation;

use super::answer::ReceivedCall;
use super::wire::UsageReport;
use crate::answers::AnswerCharge;
use crate::body::JsonBody;
use crate::budget::Charges;
use crate::call::{self, CallLimits, read_rid, sample_id};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::foreign;
use crate::lanes::{Lane, finish_all};
use crate::openapi::facts::Facts;
use crate::openapi::operation::{Group, describe};
use crate::openapi::shape::{any_of, count, enum_of, list, named, number, object, text};
use crate::openapi::shared;
use crate::options::{Options, Scheduling};
use crate::state::{AppState, Loaded};
use crate::table::Table;
use crate::transcript::Transcript;
use crate::whole;
use souffleur_base::ids::RequestId;
use souffleur_request::{GenerateRequest, Pooling, Prompt, Usage};
use souffleur_state::cache::namespace::Namespace;

const INPUT: &str = "input";
const DIMENSIONS: &str = "dimensions";

/// Maximum bytes of an embedding's value in the answer, as a JSON number and in base64.
pub(crate) const NUMBER_BYTES: usize = 16;
const BASE64_BYTES: usize = 6;

#[derive(Default)]
pub(crate) struct Body {
    prompts: Vec<Prompt>,
    pooling: Pooling,
    encoding: Encoding,
    dimensions: Option<u32>,
    rid: Option<RequestId>,
    options: Options,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Encoding {
    #[default]
    Float,
    /// The bytes of little-endian 32-bit floats, as OpenAI's clients request.
    Base64,
}

struct Call {
    request: EmbedRequest,
    encoding: Encoding,
}

#[derive(Serialize)]
struct Answer<'a> {
    object: &'static str,
    data: Vec<Embedding>,
    model: &'a str,
    usage: UsageReport,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Values,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Values {
    Numbers(Arc<[f32]>),
    Base64(String),
}

/// Prompts to embed, and the options that their requests share.
pub(crate) struct EmbedRequest {
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) pooling: Pooling,
    /// Number of values that are kept of each embedding.
    pub(crate) dimensions: usize,
    pub(crate) rid: RequestId,
    pub(crate) namespace: Namespace,
    pub(crate) scheduling: Scheduling,
}

/// Embeddings in the order of their prompts.
pub(crate) struct Embedded {
    pub(crate) vectors: Vec<Arc<[f32]>>,
    pub(crate) usages: Vec<Usage>,
    /// Maximum bytes of the answer, and the charge for them.
    pub(crate) answer_bytes: usize,
    pub(crate) charge: Option<AnswerCharge>,
}

pub(crate) async fn create(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let ReceivedCall {
        loaded,
        fields,
        limits,
    } = ReceivedCall::new(&state, body)?;
    let width = hidden_size(loaded)?;
    let (call, charges) = Call::parse(fields, limits, width)?;
    let encoding = call.encoding;
    let value_bytes = match encoding {
        Encoding::Float => NUMBER_BYTES,
        Encoding::Base64 => BASE64_BYTES,
    };
    let embedded = embed(&state, call.request, charges, value_bytes).await?;
    let usage = UsageReport::of(embedded.usages, 1);
    let model = loaded.engine.model().served_model_name.clone();
    let vectors = embedded.vectors;
    let write = move || json(&model, vectors, encoding, usage);
    let json = whole::written(embedded.answer_bytes, write).await?;
    Ok(whole::json(json, embedded.charge))
}

/// Embeds prompts. An answer takes at most `value_bytes` for each value.
pub(crate) async fn embed(
    state: &Data<AppState>,
    request: EmbedRequest,
    charges: Charges,
    value_bytes: usize,
) -> Result<Embedded, ApiError> {
    let dimensions = request.dimensions;
    let answer_bytes = request.prompts.len() * dimensions * (size_of::<f32>() + value_bytes);
    let charge = state.answers().charge_bytes(answer_bytes)?;
    let lanes = Lane::open_all(state, request.into_requests())?;
    let transcripts = finish_all(Lane::with_charges(lanes, charges)).await?;
    let vectors = transcripts.iter().map(|transcript| {
        let embedding = embedding(transcript)?;
        Ok(cut(embedding, dimensions))
    });
    let vectors: Result<_, ApiError> = vectors.collect();
    Ok(Embedded {
        vectors: vectors?,
        usages: transcripts
            .iter()
            .map(|transcript| transcript.usage)
            .collect(),
        answer_bytes,
        charge,
    })
}

/// The length of an embedding. Fails if the executor returns no hidden states.
pub(crate) fn hidden_size(loaded: &Loaded) -> Result<usize, ApiError> {
    let width = loaded.engine.model().hidden_size;
    width.ok_or_else(|| {
        ApiError::invalid(
            "this engine cannot compute embeddings: its custom executor does not return hidden states",
        )
    })
}

fn embedding(transcript: &Transcript) -> Result<Arc<[f32]>, ApiError> {
    let embedding = transcript
        .end
        .as_ref()
        .and_then(|end| end.embedding.clone());
    embedding.ok_or_else(ApiError::aborted)
}

/// Returns the first `dimensions` values of an embedding, normalised to length 1, as in Matryoshka representation
/// learning. An embedding of at most `dimensions` values is unchanged.
fn cut(embedding: Arc<[f32]>, dimensions: usize) -> Arc<[f32]> {
    if embedding.len() <= dimensions {
        return embedding;
    }
    let kept = &embedding[..dimensions];
    let squares: f64 = kept.iter().map(|value| f64::from(*value).powi(2)).sum();
    if squares == 0.0 {
        return kept.into();
    }
    let scale = squares.sqrt().recip();
    let scaled = kept.iter().map(|value| (f64::from(*value) * scale) as f32);
    scaled.collect()
}

fn json(
    model: &str,
    embeddings: Vec<Arc<[f32]>>,
    encoding: Encoding,
    usage: UsageReport,
) -> Vec<u8> {
    let written = |values: Arc<[f32]>| match encoding {
        Encoding::Float => Values::Numbers(values),
        Encoding::Base64 => {
            let bytes: Vec<u8> = values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            Values::Base64(STANDARD.encode(bytes))
        }
    };
    let entry = |(index, values)| Embedding {
        object: "embedding",
        index,
        embedding: written(values),
    };
    let answer = Answer {
        object: "list",
        data: embeddings.into_iter().enumerate().map(entry).collect(),
        model,
        usage,
    };
    serde_json::to_vec(&answer).expect("answers have string keys only")
}

impl Call {
    fn parse(
        mut fields: Fields,
        limits: CallLimits<'_>,
        width: usize,
    ) -> Result<(Self, Charges), ApiError> {
        let body = table().read(&mut fields, limits)?;
        let call = Self {
            encoding: body.encoding,
            request: EmbedRequest {
                dimensions: dimensions(body.dimensions, width)?,
                prompts: body.prompts,
                pooling: body.pooling,
                rid: body.rid.unwrap_or_else(RequestId::random),
                namespace: body.options.namespace(limits)?,
                scheduling: body.options.scheduling,
            },
        };
        foreign::refuse_bare_prompts(&mut fields)?;
        foreign::refuse(&mut fields, &["content"])?;
        Ok((call, fields.into_charges()))
    }
}

impl EmbedRequest {
    fn into_requests(self) -> Vec<GenerateRequest> {
        let n = self.prompts.len() as u32;
        let requests = (0..)
            .zip(self.prompts)
            .map(|(index, prompt)| GenerateRequest {
                rid: sample_id(&self.rid, index, n),
                pooling: Some(self.pooling),
                namespace: self.namespace.clone(),
                priority: self.scheduling.priority,
                timeouts: self.scheduling.timeouts,
                is_streaming: false,
                ..GenerateRequest::new(prompt)
            });
        requests.collect()
    }
}

/// Refuses blank texts, which would get the embedding of the tokenizer's leading special tokens.
pub(crate) fn check_texts(prompts: &[Prompt]) -> Result<(), ApiError> {
    let is_blank = |prompt: &Prompt| matches!(prompt, Prompt::Text(text) if text.trim().is_empty());
    match prompts.iter().position(is_blank) {
        None => Ok(()),
        Some(index) => {
            let text = format!("{INPUT}[{index}] is empty or white space: send some text");
            Err(ApiError::field(INPUT, text))
        }
    }
}

fn dimensions(given: Option<u32>, width: usize) -> Result<usize, ApiError> {
    match given {
        None => Ok(width),
        Some(dimensions) if (1..=width).contains(&(dimensions as usize)) => Ok(dimensions as usize),
        Some(dimensions) => {
            let text = format!(
                "{DIMENSIONS} is {dimensions}, limits are 1 to {width}, the model's hidden size: send no {DIMENSIONS} to get all"
            );
            Err(ApiError::field(DIMENSIONS, text))
        }
    }
}

pub(crate) fn table() -> Table<Body> {
    let dimensions =
        "first values to keep, at most the model's `hidden_size`; they are normalised to length 1";
    Table::new()
        .ignores("model", |_| shared::model())
        .has(
            INPUT,
            |facts| shared::prompts(facts).about("texts or token ids"),
            prompts,
            |body: &mut Body, prompts| body.prompts = prompts,
        )
        .integer(
            DIMENSIONS,
            move |shape| shape.at_least(1).about(dimensions),
            |body, dimensions| body.dimensions = dimensions,
        )
        .name(
            "encoding_format",
            [("float", Encoding::Float), ("base64", Encoding::Base64)],
            "numbers, or the bytes of 32-bit floats",
            |body, encoding| body.encoding = encoding,
        )
        .name(
            "pooling",
            [("last", Pooling::Last), ("mean", Pooling::Mean)],
            "the state of the last token, or the mean of all",
            |body, pooling| body.pooling = pooling,
        )
        .takes("rid", |_| shared::rid(), rid, |body, rid| body.rid = rid)
        .and(Options::table(), |body| &mut body.options)
}

fn prompts(
    fields: &mut Fields,
    name: &str,
    limits: CallLimits<'_>,
) -> Result<Vec<Prompt>, ApiError> {
    let prompts = call::inputs(fields, name, limits)?.into_vec();
    check_texts(&prompts)?;
    Ok(prompts)
}

fn rid(fields: &mut Fields, name: &str, _: CallLimits<'_>) -> Result<Option<RequestId>, ApiError> {
    fields.take(name)?.map(read_rid).transpose()
}

pub(crate) fn operation(facts: &Facts) -> Operation {
    let embedding = object()
        .has("object", enum_of(["embedding"]))
        .has("index", count())
        .has("embedding", any_of([list(number()), text()]));
    let answer = object()
        .has("object", enum_of(["list"]))
        .has("data", list(embedding.shape()))
        .has("model", text())
        .has("usage", named("Usage"));
    let example = serde_json::json!({"input": "Act one."});
    describe(Group::OpenAi, "Embed texts")
        .takes(table().shape(facts).shape(), example)
        .answers(answer.shape(), "the embeddings, in the order of the texts")
        .runs_requests()
        .done()
}
