//! `POST /tokenize` and `POST /detokenize`, as SGLang, vLLM and llama.cpp have them, with and without `/v1`.

use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde::Serialize;
use utoipa::openapi::path::Operation;

use super::body::JsonBody;
use super::call::{self, CallLimits, Prompts};
use super::encode::{self, with_tokenizer};
use super::error::ApiError;
use super::fields::Fields;
use super::foreign;
use super::images;
use super::llama_cpp::content::{self, Content};
use super::openai::chat::call::read_prompt;
use super::openai::chat::docs as chat_docs;
use super::openai::json_values::missing;
use super::openapi::facts::Facts;
use super::openapi::operation::{Group, describe};
use super::openapi::shape::{any_of, count, flag, list, object, text, token_id};
use super::openapi::shared;
use super::spelling::SpellTokens;
use super::state::AppState;
use super::whole;
use souffleur_actors::pictures::{self, ImageReader, RenderedChat};
use souffleur_base::error::RequestError;
use souffleur_base::field::{Field, check_count};
use souffleur_model::text::TextModel;
use souffleur_request::Prompt;
use souffleur_state::detok::TokenText;
use souffleur_state::prompt_images::{decode_around, is_key};

const MAX_TOKENS: usize = 1 << 20;
/// Bytes of a token id in memory and as JSON; a text has at most one id per byte.
const ID_BYTES: usize = 12;
/// Bytes of a token id and the token's text, in memory and as JSON.
const TEXT_BYTES: usize = 52;
/// Bytes of the text that shows an image.
const IMAGE_BYTES: usize = "[image 0000…]".len();

/// Fields of other servers that would change the tokens. Sampling fields are ignored, since a chat's body has them.
const FOREIGN: [&str; 8] = [
    "add_special",
    "documents",
    "generation_prompt",
    "input_ids",
    "parse_special",
    "thinking_forced_open",
    "truncate_prompt_tokens",
    "with_pieces",
];

/// One value, or one value for each item of a list.
#[derive(Serialize)]
#[serde(untagged)]
enum Each<T> {
    One(T),
    List(Vec<T>),
}

#[derive(Serialize)]
struct TokenizeAnswer {
    tokens: Each<Vec<u32>>,
    count: Each<usize>,
    max_model_len: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Each<Vec<String>>>,
}

#[derive(Serialize)]
struct DetokenizeAnswer {
    text: Each<String>,
    /// vLLM's name of `text`, for a single list of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    /// The text in llama.cpp's form, which has special tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

/// Answers `POST /tokenize`: the token ids of a text, of each text of a list, or of a chat's prompt.
pub(super) async fn tokenize(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let mut fields = body.0;
    fields.string("model")?;
    if let Some(content) = Content::read(&mut fields)? {
        return tokenize_content(&state, content, fields).await;
    }
    let shows_texts = fields.flag("return_token_strs")?;
    let adds_special = fields.optional_flag("add_special_tokens")?;
    let mut prompts = read_prompts(&state, &mut fields)?;
    foreign::refuse_these(&mut fields, &FOREIGN)?;
    let text_bytes = total(&prompts, Prompt::text_bytes);
    let each = if shows_texts { TEXT_BYTES } else { ID_BYTES };
    let charge = state
        .answers()
        .charge_bytes(text_bytes.saturating_mul(each))?;
    let mut charges = fields.into_charges();
    if let Prompts::One(Prompt::Chat(chat)) = &mut prompts {
        let chat = Arc::make_mut(chat);
        let pending = images::take(&state, chat, &mut charges)?;
        pending.fetch(&state, chat, &mut charges).await?;
    }
    let reader = state.serving()?.engine.images().cloned();
    let work = move |tokenizer: &TextModel, limit| {
        let reader = reader.as_deref();
        let encode = |prompt: &Prompt| encode(tokenizer, reader, prompt, (adds_special, limit));
        let tokens = each_of(&prompts, encode)?;
        Ok(json(&tokenized(tokenizer, tokens, shows_texts, limit)))
    };
    let json = with_tokenizer(&state, charges, work).await?;
    Ok(whole::json(json, charge))
}

/// Answers `POST /tokenize` in llama.cpp's form.
async fn tokenize_content(
    state: &AppState,
    content: Content,
    fields: Fields,
) -> Result<HttpResponse, ApiError> {
    let each = if content.with_pieces {
        TEXT_BYTES
    } else {
        ID_BYTES
    };
    let bytes = content.text.len().saturating_mul(each);
    let charge = state.answers().charge_bytes(bytes)?;
    let work = move |tokenizer: &TextModel, limit| content.answer(tokenizer, limit);
    let json = with_tokenizer(state, fields.into_charges(), work).await?;
    Ok(whole::json(json, charge))
}

/// Answers `POST /detokenize`: the text of a list of token ids, or of each of several lists. Keys of images, as KV events
/// have them, are shown as images.
pub(super) async fn detokenize(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    const NAME: &str = "tokens";
    let mut fields = body.0;
    fields.string("model")?;
    let skips_special = fields.optional_flag("skip_special_tokens")?;
    let raw = fields.take_raw(NAME);
    let raw = raw.ok_or_else(|| missing(NAME.to_owned(), "a list of token ids"))?;
    let prompts = call::tokens(&mut fields, NAME, &raw, limits(&state)?)?;
    let n_tokens = total(&prompts, Prompt::estimated_tokens);
    check_count(NAME, n_tokens, MAX_TOKENS, "token ids")?;
    let longest = encode::tokenizer(&state.serving()?.engine)?.max_token_bytes();
    let longest = longest.max(IMAGE_BYTES);
    let charge = state
        .answers()
        .charge_bytes(n_tokens.saturating_mul(longest))?;
    let work = move |tokenizer: &TextModel, _| {
        let skips = skips_special.unwrap_or(true);
        let text = each_of(&prompts, |prompt| decode(tokenizer, prompt, skips))?;
        let prompt = match &text {
            Each::One(text) => Some(text.clone()),
            Each::List(_) => None,
        };
        let content = match &prompts {
            Prompts::One(prompt) => {
                let skips = skips_special.unwrap_or(false);
                Some(decode(tokenizer, prompt, skips)?)
            }
            Prompts::List(_) => None,
        };
        Ok(json(&DetokenizeAnswer {
            text,
            prompt,
            content,
        }))
    };
    let json = with_tokenizer(&state, fields.into_charges(), work).await?;
    Ok(whole::json(json, charge))
}

/// Reads `prompt`, or a chat's `messages` and the fields that belong to them.
fn read_prompts(state: &AppState, fields: &mut Fields) -> Result<Prompts, ApiError> {
    const NAME: &str = "prompt";
    let raw = match (fields.take_raw(NAME), fields.peek("messages").is_some()) {
        (Some(_), true) => {
            let text = "prompt and messages are both given: send one of them";
            return Err(ApiError::field(NAME, text));
        }
        (None, true) => {
            let chat = Arc::new(read_prompt(fields)?);
            return Ok(Prompts::One(Prompt::Chat(chat)));
        }
        (None, false) => return Err(missing(NAME.to_owned(), "a string, or messages")),
        (Some(raw), false) => raw,
    };
    if raw.is_list() {
        return call::texts(NAME, &raw, limits(state)?);
    }
    if !raw.is_text() {
        let value = raw.shallow(NAME)?;
        let error = Field::new(NAME, &value).must_be("a string or a list of strings");
        return Err(error.into());
    }
    let text: String = raw.parse(NAME)?;
    Ok(Prompts::One(Prompt::Text(text.into())))
}

fn limits(state: &AppState) -> Result<CallLimits<'_>, ApiError> {
    Ok(CallLimits {
        max_requests: state.config().max_batch_requests,
        websocket: None,
        request: state.serving()?.engine.request_limits(),
        embeds: None,
    })
}

fn total(prompts: &Prompts, measure: impl Fn(&Prompt) -> usize) -> usize {
    match prompts {
        Prompts::One(prompt) => measure(prompt),
        Prompts::List(prompts) => prompts.iter().map(measure).sum(),
    }
}

fn each_of<T>(
    prompts: &Prompts,
    make: impl Fn(&Prompt) -> Result<T, RequestError>,
) -> Result<Each<T>, RequestError> {
    match prompts {
        Prompts::One(prompt) => make(prompt).map(Each::One),
        Prompts::List(prompts) => Ok(Each::List(
            prompts.iter().map(make).collect::<Result<_, _>>()?,
        )),
    }
}

/// Encodes a prompt. By default only plain prompts get special tokens, since a chat template writes its own.
fn encode(
    tokenizer: &TextModel,
    reader: Option<&ImageReader>,
    prompt: &Prompt,
    (adds_special, limit_tokens): (Option<bool>, usize),
) -> Result<Vec<u32>, RequestError> {
    let (prompt, adds_special) = match prompt {
        Prompt::Chat(chat) => match pictures::render(reader, tokenizer, chat, limit_tokens)? {
            RenderedChat::Tokens(tokens) => return Ok(tokens),
            RenderedChat::Text(text) => (text.into(), adds_special.unwrap_or(false)),
        },
        Prompt::Text(prompt) => (prompt.clone(), adds_special.unwrap_or(true)),
        Prompt::Tokens(tokens) => return Ok(tokens.to_vec()),
        // Neither endpoint reads other prompts.
        Prompt::Infill(_) | Prompt::Vectors(_) => return Ok(Vec::new()),
        Prompt::Images(_) | Prompt::TextImages(_) => return Ok(Vec::new()),
    };
    encode::encode(tokenizer, &prompt, adds_special, limit_tokens)
}

fn tokenized(
    tokenizer: &TextModel,
    tokens: Each<Vec<u32>>,
    shows_texts: bool,
    max_model_len: usize,
) -> TokenizeAnswer {
    let spell = |ids: &Vec<u32>| {
        let texts = ids.iter().map(|id| SpellTokens::bytes(tokenizer, *id));
        let texts = texts.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        texts.collect::<Vec<String>>()
    };
    let (count, texts) = match &tokens {
        Each::One(ids) => (
            Each::One(ids.len()),
            shows_texts.then(|| Each::One(spell(ids))),
        ),
        Each::List(lists) => (
            Each::List(lists.iter().map(Vec::len).collect()),
            shows_texts.then(|| Each::List(lists.iter().map(spell).collect())),
        ),
    };
    TokenizeAnswer {
        tokens,
        count,
        max_model_len,
        token_strs: texts,
    }
}

fn decode(
    tokenizer: &TextModel,
    prompt: &Prompt,
    skips_special: bool,
) -> Result<String, RequestError> {
    let Prompt::Tokens(tokens) = prompt else {
        return Ok(String::new());
    };
    let vocab_size = tokenizer.vocab_size();
    let is_known = |token: u32| (token as usize) < vocab_size || is_key(token);
    match tokens.iter().find(|token| !is_known(**token)) {
        Some(token) => Err(RequestError::Invalid(format!(
            "tokens contains token id {token}, but the vocabulary has {vocab_size} tokens: use ids below {vocab_size}"
        ))),
        None => {
            let decode = |tokens: &[u32]| tokenizer.decode(tokens, skips_special, true);
            Ok(decode_around(tokens, decode))
        }
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("answers have string keys only")
}

pub(super) fn operation(facts: &Facts) -> Operation {
    let prompt = any_of([text(), list(text()).up_to(facts.max_requests)]);
    let special =
        "add tokens such as the one that begins a text; by default for plain prompts only";
    let fields = object()
        .takes("model", shared::model())
        .takes("prompt", prompt.about("a text, or a list of texts"))
        .takes("add_special_tokens", flag().about(special))
        .takes(
            "return_token_strs",
            flag().or(false).about("the texts of the tokens as well"),
        )
        .and(content::fields())
        .and(chat_docs::optional_prompt());
    let ids = || list(token_id());
    let texts = || list(text());
    let tokenized = object()
        .has(
            "tokens",
            any_of([ids(), list(ids()), list(content::token())]),
        )
        .may_have("count", any_of([count(), list(count())]))
        .may_have("max_model_len", count())
        .may_have("token_strs", any_of([texts(), list(texts())]));
    describe(
        Group::Tokens,
        "The tokens of a text, of each of some texts, or of a chat",
    )
    .about(
        "`prompt`, `messages` or `content` is required. With `content`, the answer has `tokens` alone.",
    )
    .takes(fields.shape(), serde_json::json!({"prompt": "Hello"}))
    .answers(tokenized.shape(), "the tokens; lists of them for a list")
    .needs_engine("overloaded, or without an engine")
    .done()
}

pub(super) fn decode_operation(facts: &Facts) -> Operation {
    let ids = || list(token_id()).up_to(MAX_TOKENS);
    let tokens = any_of([ids(), list(ids()).up_to(facts.max_requests)]);
    let special = "leave out tokens such as the one that begins a text";
    let fields = object()
        .takes("model", shared::model())
        .has(
            "tokens",
            tokens.about("a list of token ids, or a list of such lists"),
        )
        .takes("skip_special_tokens", flag().or(true).about(special));
    let detokenized = object()
        .has("text", any_of([text(), list(text())]))
        .may_have("prompt", text().about("the same, of a single list"))
        .may_have(
            "content",
            text().about("the same, with special tokens unless `skip_special_tokens` is true"),
        );
    describe(Group::Tokens, "The text of tokens")
        .takes(fields.shape(), serde_json::json!({"tokens": [5, 6]}))
        .answers(detokenized.shape(), "the text; a list for a list of lists")
        .needs_engine("overloaded, or without an engine")
        .done()
}
