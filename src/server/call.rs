//! Parts common to the calls of all endpoints: limits, prompts, samples and ids.

use super::error::ApiError;
use super::fields::Fields;
use super::raw::Raw;
use souffleur_base::field::{self, Field, Shallow, check_bytes};
use souffleur_base::ids::RequestId;
use souffleur_engine::EngineHandle;
use souffleur_request::{GenerateRequest, Prompt};
use souffleur_state::request_limits::RequestLimits;
use souffleur_state::sampling::MAX_SAMPLES;

pub(super) const MAX_RID_BYTES: usize = 256;

#[derive(Clone, Copy)]
pub(super) struct CallLimits<'a> {
    pub(super) max_requests: usize,
    /// Set for a call on a WebSocket, whose free slots limit prompts × samples as well.
    pub(super) websocket: Option<WebSocketSlots>,
    pub(super) request: &'a RequestLimits,
    /// Limits of `input_embeds` prompts; `None` if the endpoint does not accept them.
    pub(super) embeds: Option<EmbedLimits>,
}

#[derive(Clone, Copy)]
pub(super) struct EmbedLimits {
    pub(super) dim: usize,
    pub(super) max_len: usize,
}

impl EmbedLimits {
    /// The limits of an engine. `max_len` only bounds parsing: the Tokenizer checks the exact prompt length.
    pub(super) fn of(engine: &EngineHandle) -> Option<Self> {
        let model = engine.model();
        let max_len = model.context_length.min(model.max_total_tokens);
        model.hidden_size.map(|dim| Self { dim, max_len })
    }
}

/// The limit of requests in flight on a WebSocket, and the number of free slots.
#[derive(Clone, Copy)]
pub(super) struct WebSocketSlots {
    pub(super) free: usize,
    pub(super) limit: usize,
}

pub(super) enum Prompts {
    /// A single prompt outside a list.
    One(Prompt),
    /// A list, possibly of a single prompt.
    List(Vec<Prompt>),
}

impl Prompts {
    pub(super) fn into_vec(self) -> Vec<Prompt> {
        match self {
            Self::One(prompt) => vec![prompt],
            Self::List(prompts) => prompts,
        }
    }
}

pub(super) fn texts(name: &str, raw: &Raw, limits: CallLimits<'_>) -> Result<Prompts, ApiError> {
    let (items, len) = raw.items(name, limits.max_requests)?;
    check_size(name, len, len, limits)?;
    let text = |(index, item): (usize, &Raw)| {
        let name = format!("{name}[{index}]");
        let text = field::text(&name, item.shallow(&name)?)?;
        Ok(Prompt::Text(text.into()))
    };
    let values: Result<_, ApiError> = items.iter().enumerate().map(text).collect();
    Ok(Prompts::List(values?))
}

/// One list of token ids, or a list of such lists.
pub(super) fn tokens(
    fields: &mut Fields,
    name: &str,
    raw: &Raw,
    limits: CallLimits<'_>,
) -> Result<Prompts, ApiError> {
    if raw.first_of_list() != Some(b'[') {
        let ids = fields.token_ids(name, raw)?;
        return Ok(Prompts::One(Prompt::Tokens(ids.into())));
    }
    let (items, len) = raw.items(name, limits.max_requests)?;
    check_size(name, len, len, limits)?;
    let prompt = |(index, item): (usize, &Raw)| {
        let ids = fields.token_ids(&format!("{name}[{index}]"), item)?;
        Ok(Prompt::Tokens(ids.into()))
    };
    let values: Result<_, ApiError> = items.iter().enumerate().map(prompt).collect();
    Ok(Prompts::List(values?))
}

/// Reads the prompts of a call that generates nothing: a text, a list of texts, token ids or a list of token id lists.
pub(super) fn inputs(
    fields: &mut Fields,
    name: &str,
    limits: CallLimits<'_>,
) -> Result<Prompts, ApiError> {
    const WANTED: &str =
        "a string, a list of strings, a list of token ids or a list of token id lists";
    let Some(raw) = fields.take_raw(name) else {
        let text = format!("{name} is missing: send {WANTED}");
        return Err(ApiError::field(name, text));
    };
    match raw.first_of_list() {
        Some(b']') => Err(ApiError::field(
            name,
            format!("{name} is an empty list: send {WANTED}"),
        )),
        Some(b'"') => texts(name, &raw, limits),
        Some(_) => tokens(fields, name, &raw, limits),
        None if raw.is_text() => {
            let text: String = raw.parse(name)?;
            Ok(Prompts::One(Prompt::Text(text.into())))
        }
        None => Err(Field::new(name, &raw.shallow(name)?).must_be(WANTED).into()),
    }
}

pub(super) fn check_samples(n: u32) -> Result<(), ApiError> {
    match n {
        1..=MAX_SAMPLES => Ok(()),
        n => {
            let limits = format!("n is {n}, limits are 1 to {MAX_SAMPLES}");
            let text = format!("{limits}: send several requests for more samples");
            Err(ApiError::field("n", text))
        }
    }
}

/// Splits a request of `n` samples into `n` requests: the id of sample `i` ends with `-i`, and its seed is `i` larger.
pub(super) fn samples_of(request: GenerateRequest) -> impl Iterator<Item = GenerateRequest> {
    let n = request.sampling.n;
    (0..n).map(move |index| {
        let mut sample = request.clone();
        sample.sampling.n = 1;
        sample.rid = sample_id(&request.rid, index, n);
        let seed = &mut sample.sampling.sampling_seed;
        *seed = seed.map(|seed| seed.wrapping_add(index.into()));
        sample
    })
}

pub(super) fn sample_id(rid: &RequestId, index: u32, n: u32) -> RequestId {
    match n {
        1 => rid.clone(),
        _ => RequestId::new(format!("{rid}-{index}")),
    }
}

/// Refuses a call with too many samples before memory is allocated for them. The error names `field`.
pub(super) fn check_size(
    field: &str,
    prompts: usize,
    samples: usize,
    limits: CallLimits<'_>,
) -> Result<(), ApiError> {
    let limit = limits.max_requests;
    if samples > limit {
        let text = format!("{prompts} prompts ask for {samples} samples, limit is {limit}");
        return Err(ApiError::field(
            field,
            format!("{text}: send several requests"),
        ));
    }
    match limits.websocket {
        Some(slots) if samples > slots.free => Err(ApiError::too_many_on_websocket(slots.limit)),
        _ => Ok(()),
    }
}

pub(super) fn read_rid(value: Shallow) -> Result<RequestId, ApiError> {
    let name = field::text("rid", value)?;
    if name.is_empty() {
        let text = "rid is empty: send an id, or no rid to get a random one";
        return Err(ApiError::field("rid", text));
    }
    check_bytes("rid", &name, MAX_RID_BYTES)?;
    Ok(RequestId::new(name))
}
