//! `POST /v1/rerank`, `/rerank` and `/v2/rerank`: ranks documents by their relevance to a query, in the forms of Jina,
//! Cohere, vLLM, llama.cpp and Text Embeddings Inference.
//!
//! A score is the probability of `yes`, normalised over `yes` and `no`, after the prompt of Qwen3-Reranker's model
//! card. The query comes before the document in the prompt, so the prompts of a call share a cached prefix.

use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde::Serialize;
use utoipa::openapi::path::Operation;

use super::body::JsonBody;
use super::budget::Charges;
use super::call::{CallLimits, check_size};
use super::encode;
use super::error::ApiError;
use super::fields::Fields;
use super::foreign;
use super::openai::json_values::missing;
use super::openai::wire::UsageReport;
use super::openapi::facts::Facts;
use super::openapi::operation::{Group, describe};
use super::openapi::shape::{
    Shape, any_of, count, enum_of, free_object, list, named, number, object, text,
};
use super::openapi::shared;
use super::options::Options;
use super::raw::Raw;
use super::scoring::{self, Labels, Requests, Scores};
use super::state::AppState;
use super::table::Table;
use super::whole;
use souffleur_base::field::{self, Field};
use souffleur_base::ids::RequestId;
use souffleur_engine::EngineHandle;
use souffleur_request::Prompt;

const QUERY: &str = "query";
const DOCUMENTS: &str = "documents";
/// Text Embeddings Inference's name for `documents`.
const TEXTS: &str = "texts";
const DOCUMENTS_WANTED: &str = "a list of strings, or of objects with a text";

const SYSTEM: &str = "Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
    Note that the answer can only be \"yes\" or \"no\".";
const INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";
/// The prompt after the document, up to the start of an answer without reasoning.
const END: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
/// The label tokens. The probability of the last one is the score.
const ANSWERS: [&str; 2] = ["no", "yes"];

/// Maximum bytes of a result's JSON, without its document.
const RESULT_BYTES: usize = 96;
/// Number of copies of a returned document: the text and its JSON.
const DOCUMENT_COPIES: usize = 2;

struct Documents {
    texts: Vec<String>,
    bytes: usize,
}

#[derive(Default)]
pub(super) struct Body {
    query: String,
    documents: Option<Documents>,
    texts: Option<Documents>,
    top_n: Option<u32>,
    returns_documents: bool,
    returns_text: bool,
    instruction: Option<String>,
    instruct: Option<String>,
    /// The instruction in `chat_template_kwargs`.
    inner_instruction: Option<String>,
    options: Options,
}

struct Call {
    requests: Requests,
    answer: AnswerForm,
}

struct AnswerForm {
    /// The answer is a list of scores instead of an object, as in Text Embeddings Inference.
    is_bare: bool,
    /// The texts of all documents, if the answer returns texts.
    texts: Option<Documents>,
    top_n: usize,
}

#[derive(Serialize)]
struct Answer<'a> {
    id: String,
    object: &'static str,
    model: &'a str,
    results: Vec<RerankResult>,
    usage: UsageReport,
}

#[derive(Serialize)]
struct RerankResult {
    index: usize,
    relevance_score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document>,
}

#[derive(Serialize)]
struct Document {
    text: String,
}

#[derive(Serialize)]
struct Rank {
    index: usize,
    score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

pub(super) async fn rerank(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let engine = &state.serving()?.engine;
    let (call, charges) = Call::parse(body.0, scoring::limits(&state)?)?;
    let labels = labels(engine)?;
    let answer = call.answer;
    let answer_bytes = answer.bytes(call.requests.prompts.len());
    let charge = state.answers().charge_bytes(answer_bytes)?;
    let scored = scoring::run(&state, call.requests, &labels, charges).await?;
    let model = engine.model().served_model_name.clone();
    let json = whole::written(answer_bytes, move || answer.json(&model, scored)).await?;
    Ok(whole::json(json, charge))
}

/// Fails if the engine has no tokenizer, or if an answer is not a single token of the vocabulary.
fn labels(engine: &EngineHandle) -> Result<Labels, ApiError> {
    let tokenizer = encode::tokenizer(engine)?;
    let vocab_size = engine.model().vocab_size;
    let label = |answer: &str| {
        let id = tokenizer.token_id(answer);
        id.filter(|id| (*id as usize) < vocab_size).ok_or_else(|| {
            let remedy = "load a model that judges with yes or no, such as Qwen3-Reranker";
            ApiError::invalid(format!("the vocabulary has no token {answer:?}: {remedy}"))
        })
    };
    let tokens: Result<Arc<[u32]>, ApiError> = ANSWERS.into_iter().map(label).collect();
    Ok(Labels {
        tokens: tokens?,
        softmax: true,
    })
}

pub(super) fn table() -> Table<Body> {
    let documents = |facts: &Facts| {
        let with_text = object().has("text", text()).shape();
        let items = list(any_of([text(), with_text])).longer_than(0);
        let items = items.up_to(facts.max_requests);
        any_of([text(), items]).about("texts to rank, as strings or as objects with a `text`")
    };
    let texts = |facts: &Facts| {
        let texts = list(text()).longer_than(0).up_to(facts.max_requests);
        texts.about("in place of `documents`: the answer is a list of `index` and `score`")
    };
    let instruction = |_: &Facts| {
        let text = text().or(INSTRUCTION);
        text.about("the task, which the model reads before the query")
    };
    Table::new()
        .ignores("model", |_| shared::model())
        .has(
            QUERY,
            |_| text(),
            query,
            |body: &mut Body, query| body.query = query,
        )
        .takes(DOCUMENTS, documents, Documents::take, |body, documents| {
            body.documents = documents
        })
        .takes(TEXTS, texts, Documents::take, |body, texts| {
            body.texts = texts
        })
        .integer(
            "top_n",
            |shape| shape.or(0).about("limit of results; 0 returns all"),
            |body, top_n| body.top_n = top_n,
        )
        .flag(
            "return_documents",
            true,
            "the results have their `document`",
            |body, flag| body.returns_documents = flag,
        )
        .flag(
            "return_text",
            false,
            "the same for `texts`, as `text`",
            |body, flag| body.returns_text = flag,
        )
        .text("instruction", instruction, |body, text| {
            body.instruction = text
        })
        .text(
            "instruct",
            |_| text().about("SGLang's name of `instruction`"),
            |body, text| body.instruct = text,
        )
        .takes(
            "chat_template_kwargs",
            |_| free_object().about("vLLM's place of `instruction`"),
            inner_instruction,
            |body, text| body.inner_instruction = text,
        )
        .and(Options::table(), |body| &mut body.options)
}

impl Call {
    fn parse(mut fields: Fields, limits: CallLimits<'_>) -> Result<(Self, Charges), ApiError> {
        let body = table().read(&mut fields, limits)?;
        foreign::refuse(&mut fields, &["truncate"])?;
        let start = prompt_start(body.instruction(), &body.query);
        let is_bare = body.texts.is_some();
        let documents = match (body.documents, body.texts) {
            (Some(documents), None) | (None, Some(documents)) => documents,
            (None, None) => return Err(missing(DOCUMENTS.to_owned(), DOCUMENTS_WANTED)),
            (Some(_), Some(_)) => {
                let text = "documents and texts are both given: send one of them";
                return Err(ApiError::field(TEXTS, text));
            }
        };
        let n = documents.texts.len();
        scoring::charge_copies(&mut fields, start.len() + END.len(), n, documents.bytes)?;
        let prompt = |document: &String| Prompt::Text([&*start, document, END].concat().into());
        let returns_texts = if is_bare {
            body.returns_text
        } else {
            body.returns_documents
        };
        let call = Self {
            requests: Requests {
                prompts: documents.texts.iter().map(prompt).collect(),
                namespace: body.options.namespace(limits)?,
                scheduling: body.options.scheduling,
            },
            answer: AnswerForm {
                is_bare,
                texts: returns_texts.then_some(documents),
                top_n: match body.top_n {
                    None | Some(0) => usize::MAX,
                    Some(top_n) => top_n as usize,
                },
            },
        };
        Ok((call, fields.into_charges()))
    }
}

impl Body {
    /// The instruction under any of its names; an empty one counts as absent.
    fn instruction(&self) -> &str {
        let given = [&self.inner_instruction, &self.instruction, &self.instruct];
        let mut given = given.into_iter().flatten();
        let given = given.find(|text| !text.is_empty());
        given.map_or(INSTRUCTION, String::as_str)
    }
}

fn query(fields: &mut Fields, name: &str, _: CallLimits<'_>) -> Result<String, ApiError> {
    let query = fields.string(name)?;
    query.ok_or_else(|| missing(name.to_owned(), "a string"))
}

fn inner_instruction(
    fields: &mut Fields,
    name: &str,
    _: CallLimits<'_>,
) -> Result<Option<String>, ApiError> {
    let mut kwargs = fields.object(name)?;
    let given = [kwargs.string("instruction")?, kwargs.string("instruct")?];
    Ok(given.into_iter().flatten().find(|text| !text.is_empty()))
}

fn prompt_start(instruction: &str, query: &str) -> String {
    format!(
        "<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n\
         <Instruct>: {instruction}\n<Query>: {query}\n<Document>: "
    )
}

impl Documents {
    fn take(
        fields: &mut Fields,
        name: &str,
        limits: CallLimits<'_>,
    ) -> Result<Option<Self>, ApiError> {
        let Some(raw) = fields.take_raw(name) else {
            return Ok(None);
        };
        if !raw.is_list() && !raw.is_text() {
            let value = raw.shallow(name)?;
            return Err(Field::new(name, &value).must_be(DOCUMENTS_WANTED).into());
        }
        let texts = if raw.is_list() {
            let (items, len) = raw.items(name, limits.max_requests)?;
            check_size(name, len, len, limits)?;
            let items = items.iter().enumerate();
            items
                .map(|(index, item)| document(fields, &format!("{name}[{index}]"), item))
                .collect::<Result<Vec<String>, _>>()?
        } else {
            vec![document(fields, name, &raw)?]
        };
        if texts.is_empty() {
            let text = format!("{name} is an empty list: send {DOCUMENTS_WANTED}");
            return Err(ApiError::field(name, text));
        }
        Ok(Some(Self {
            texts,
            bytes: raw.bytes().len(),
        }))
    }
}

fn document(fields: &Fields, name: &str, item: &Raw) -> Result<String, ApiError> {
    if !item.is_object() {
        return Ok(field::text(name, item.shallow(name)?)?);
    }
    let name = format!("{name}.text");
    match fields.nested(&name, item)?.take("text")? {
        Some(value) => Ok(field::text(&name, value)?),
        None => Err(missing(name, "a string")),
    }
}

impl AnswerForm {
    /// Maximum bytes of the answer and of the texts that it returns.
    fn bytes(&self, n_prompts: usize) -> usize {
        let documents = self.texts.as_ref().map_or(0, |documents| documents.bytes);
        // A text's JSON in the answer is at most as long as its JSON in the request.
        n_prompts * RESULT_BYTES + documents * DOCUMENT_COPIES
    }

    /// Writes the results, the best first; equal scores keep the order of the documents.
    fn json(self, model: &str, scored: Scores) -> Vec<u8> {
        let scores = scored.scores.iter();
        let scores = scores.map(|scores| scores.last().copied().unwrap_or_default());
        let mut ranks: Vec<(usize, f64)> = scores.enumerate().collect();
        ranks.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        ranks.truncate(self.top_n);
        let mut texts = self.texts.map(|documents| documents.texts);
        let mut text = |index: usize| Some(std::mem::take(&mut texts.as_mut()?[index]));
        let written = if self.is_bare {
            let rank = |(index, score)| Rank {
                index,
                score,
                text: text(index),
            };
            serde_json::to_vec(&ranks.into_iter().map(rank).collect::<Vec<_>>())
        } else {
            let ranked = |(index, relevance_score)| RerankResult {
                index,
                relevance_score,
                document: text(index).map(|text| Document { text }),
            };
            serde_json::to_vec(&Answer {
                id: format!("rerank-{}", RequestId::random()),
                object: "list",
                model,
                results: ranks.into_iter().map(ranked).collect(),
                usage: UsageReport::of(scored.usages, 1),
            })
        };
        written.expect("answers have string keys only")
    }
}

pub(super) fn operation(facts: &Facts) -> Operation {
    let example = serde_json::json!({
        "query": "Where do pandas live?",
        "documents": ["Pandas live in the mountains of China.", "Paris is in France."],
    });
    describe(
        Group::SgLang,
        "Rank documents by their relevance to a query",
    )
    .about("Jina's, Cohere's and vLLM's form. `documents` or `texts` is required.")
    .takes(table().shape(facts).shape(), example)
    .answers(answer(), "the documents' scores, the best first")
    .runs_requests()
    .done()
}

fn answer() -> Shape {
    let result = object()
        .has("index", count().about("of the document in the request"))
        .has("relevance_score", number().at_least(0).at_most(1))
        .may_have("document", object().has("text", text()).shape());
    let rank = object()
        .has("index", count())
        .has("score", number().at_least(0).at_most(1))
        .may_have("text", text());
    let ranked = object()
        .has("id", text())
        .has("object", enum_of(["list"]))
        .has("model", text())
        .has("results", list(result.shape()))
        .has("usage", named("Usage"));
    any_of([ranked.shape(), list(rank.shape())])
}
