//! Reading SGLang's `GenerateReqInput`.

use std::sync::Arc;

use super::reply::Shape;
use crate::ids::RequestId;
use crate::request::{GenerateRequest, Prompt};
use crate::server::error::ApiError;
use crate::server::fields::{self, Fields, mismatch};
use crate::server::raw::Raw;
use crate::server::words::Words;
use crate::shallow::Shallow;
use crate::state::cache::namespace::Namespace;
use crate::state::request_limits::RequestLimits;
use crate::state::sampling::LogprobWish;
use crate::state::sampling::{self, MAX_SAMPLES, ReadParams, SamplingParams, check_count};

/// Longest request id, in bytes.
pub(in crate::server) const MAX_RID_BYTES: usize = 256;

/// The limits of one call.
#[derive(Clone, Copy)]
pub(in crate::server) struct CallLimits<'a> {
    /// Most prompts times samples.
    pub(in crate::server) max_requests: usize,
    /// The same, as far as the call's WebSocket has room for them.
    pub(in crate::server) websocket: Option<WebSocketRoom>,
    /// How long the lists and names of each request may be.
    pub(in crate::server) request: &'a RequestLimits,
}

/// Requests that a WebSocket may have under way, and those that are not yet.
#[derive(Clone, Copy)]
pub(in crate::server) struct WebSocketRoom {
    pub(in crate::server) free: usize,
    pub(in crate::server) limit: usize,
}

/// SGLang's fields that would change the answer and that this engine does not have yet.
const NOT_YET: [&str; 19] = [
    "input_embeds",
    "positional_embed_overrides",
    "image_data",
    "video_data",
    "audio_data",
    "lora_path",
    "lora_id",
    "session_params",
    "custom_logit_processor",
    "require_reasoning",
    "return_hidden_states",
    "return_routed_experts",
    "return_prompt_token_ids",
    "return_entropy",
    "return_bytes",
    "multi_item_delimiter_indices",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
];

/// One `/generate` call: a request for each prompt and sample, prompts first.
pub(in crate::server) struct NativeCall {
    pub(in crate::server) requests: Vec<GenerateRequest>,
    /// The answer is a list.
    pub(super) is_batch: bool,
    pub(super) stream: bool,
    wants_words: bool,
}

impl NativeCall {
    /// Reads a call. What is one for all its prompts is parsed once and shared.
    pub(in crate::server) fn parse(
        mut fields: Fields,
        limits: CallLimits<'_>,
    ) -> Result<Self, ApiError> {
        let fields = &mut fields;
        let prompts = prompts(fields, limits)?;
        let shape = PromptCount {
            prompts: prompts.values.len(),
            is_list: prompts.is_list,
        };
        let read = |name: &str, raw: &Raw| sampling_params(name, raw, limits.request);
        let sampling = shape.each(fields, "sampling_params", SamplingParams::default(), read)?;
        let samples: usize = sampling.iter().map(|sampling| sampling.n as usize).sum();
        check_size(shape.prompts, samples, limits)?;
        let is_batch = shape.is_list || samples > 1;
        let wishes = logprob_wishes(fields, shape, limits.request)?;
        let namespaces = namespaces(fields, shape, limits.request)?;
        let rids = rids(fields, shape)?;
        let priority = fields.integer("priority")?;
        let timeouts = fields.timeouts()?;
        let stream = fields.flag("stream")?;
        let wants_words = fields.flag("return_text_in_logprobs")?;
        // Names that nobody knows are ignored, as SGLang does: its own clients and routers send some.
        fields.refuse(&NOT_YET)?;
        fields.refuse(&sampling::NOT_YET)?;
        let mut requests = Vec::with_capacity(samples);
        let per_prompt = prompts
            .values
            .into_iter()
            .zip(sampling)
            .zip(wishes)
            .zip(namespaces)
            .zip(rids);
        for ((((prompt, sampling), logprobs), namespace), rid) in per_prompt {
            let request = GenerateRequest {
                rid,
                prompt,
                sampling,
                logprobs,
                namespace,
                priority,
                timeouts,
                is_streaming: stream,
            };
            requests.extend(samples_of(request));
        }
        Ok(Self {
            requests,
            is_batch,
            stream,
            wants_words,
        })
    }

    /// The requests, read token by token whatever `stream` says.
    pub(in crate::server) fn streamed_requests(self) -> Vec<GenerateRequest> {
        let streamed = |request| GenerateRequest {
            is_streaming: true,
            ..request
        };
        self.requests.into_iter().map(streamed).collect()
    }

    /// How each request's answer looks.
    pub(in crate::server) fn shapes(&self, words: &Words) -> Vec<Shape> {
        let words = self.wants_words.then_some(words);
        let shape = |request: &GenerateRequest| Shape::new(request.logprobs.as_ref(), words);
        self.requests.iter().map(shape).collect()
    }
}

/// A request of `n` samples as `n` requests of one: ids get `-i`, seeds grow by one.
pub(in crate::server) fn samples_of(
    request: GenerateRequest,
) -> impl Iterator<Item = GenerateRequest> {
    let n = request.sampling.n;
    (0..n).map(move |index| {
        let mut sample = request.clone();
        sample.sampling.n = 1;
        if n > 1 {
            sample.rid = RequestId::new(format!("{}-{index}", request.rid));
        }
        let seed = &mut sample.sampling.sampling_seed;
        *seed = seed.map(|seed| seed.wrapping_add(index.into()));
        sample
    })
}

/// Refuses calls of too many samples before anything is made for them.
pub(in crate::server) fn check_size(
    prompts: usize,
    samples: usize,
    limits: CallLimits<'_>,
) -> Result<(), ApiError> {
    let limit = limits.max_requests;
    if samples > limit {
        let text = format!("{prompts} prompts ask for {samples} samples, limit is {limit}");
        return Err(ApiError::field(
            "n",
            format!("{text}: send several requests"),
        ));
    }
    match limits.websocket {
        Some(room) if samples > room.free => Err(ApiError::too_many_on_websocket(room.limit)),
        _ => Ok(()),
    }
}

/// How many prompts a call has, which decides how its other fields are read.
#[derive(Clone, Copy)]
struct PromptCount {
    prompts: usize,
    is_list: bool,
}

impl PromptCount {
    /// The values of a field that is one for all prompts, parsed once, or a list with one for each.
    fn each<T: Clone>(
        self,
        fields: &mut Fields,
        name: &'static str,
        default: T,
        read: impl Fn(&str, &Raw) -> Result<T, ApiError>,
    ) -> Result<Vec<T>, ApiError> {
        match fields.take_raw(name) {
            None => Ok(vec![default; self.prompts]),
            Some(raw) if self.is_list && raw.is_list() => self.read_list(name, &raw, default, read),
            Some(raw) => Ok(vec![read(name, &raw)?; self.prompts]),
        }
    }

    fn read_list<T: Clone>(
        self,
        name: &'static str,
        raw: &Raw,
        default: T,
        read: impl Fn(&str, &Raw) -> Result<T, ApiError>,
    ) -> Result<Vec<T>, ApiError> {
        let (items, found) = raw.items(name, self.prompts)?;
        if found != self.prompts {
            let text = format!("{name} has {found} entries, must have one a prompt");
            return Err(ApiError::field(name, format!("{text}: {}", self.prompts)));
        }
        let read = |item: &Raw| match item.is_null() {
            true => Ok(default.clone()),
            false => read(name, item),
        };
        items.iter().map(read).collect()
    }
}

/// The prompts, and whether they came as a list.
pub(in crate::server) struct Prompts {
    pub(in crate::server) values: Vec<Prompt>,
    pub(in crate::server) is_list: bool,
}

fn prompts(fields: &mut Fields, limits: CallLimits<'_>) -> Result<Prompts, ApiError> {
    let (text, ids) = (fields.take_raw("text"), fields.take_raw("input_ids"));
    let prompts = match (text, ids) {
        (Some(text), None) if text.is_list() => texts("text", &text, limits)?,
        (Some(text), None) => match text.shallow("text")? {
            Shallow::Text(text) => Prompts::one(Prompt::Text(text.into())),
            other => return Err(mismatch("text", &other, "a string or a list of them")),
        },
        (None, Some(ids)) => tokens(fields, "input_ids", &ids, limits)?,
        (Some(_), Some(_)) => {
            let text = "text and input_ids are both given: leave one out";
            return Err(ApiError::field("input_ids", text));
        }
        (None, None) => {
            return Err(ApiError::field(
                "text",
                "text is missing: send text or input_ids",
            ));
        }
    };
    match prompts.values.is_empty() {
        true => Err(ApiError::field(
            "text",
            "there is no prompt: the list is empty",
        )),
        false => Ok(prompts),
    }
}

impl Prompts {
    pub(in crate::server) fn one(prompt: Prompt) -> Self {
        Self {
            values: vec![prompt],
            is_list: false,
        }
    }
}

/// A list of texts.
pub(in crate::server) fn texts(
    name: &str,
    raw: &Raw,
    limits: CallLimits<'_>,
) -> Result<Prompts, ApiError> {
    let (items, len) = raw.items(name, limits.max_requests)?;
    check_size(len, len, limits)?;
    let text = |(index, item): (usize, &Raw)| {
        let name = format!("{name}[{index}]");
        let text = fields::string(&name, item.shallow(&name)?)?;
        Ok(Prompt::Text(text.into()))
    };
    let values: Result<_, ApiError> = items.iter().enumerate().map(text).collect();
    Ok(Prompts {
        values: values?,
        is_list: true,
    })
}

/// One list of token ids, or a list of such lists.
pub(in crate::server) fn tokens(
    fields: &mut Fields,
    name: &str,
    raw: &Raw,
    limits: CallLimits<'_>,
) -> Result<Prompts, ApiError> {
    if raw.first_of_list() != Some(b'[') {
        let ids = fields.token_ids(name, raw)?;
        return Ok(Prompts::one(Prompt::Tokens(ids.into())));
    }
    let (items, len) = raw.items(name, limits.max_requests)?;
    check_size(len, len, limits)?;
    let prompt = |(index, item): (usize, &Raw)| {
        let ids = fields.token_ids(&format!("{name}[{index}]"), item)?;
        Ok(Prompt::Tokens(ids.into()))
    };
    let values: Result<_, ApiError> = items.iter().enumerate().map(prompt).collect();
    Ok(Prompts {
        values: values?,
        is_list: true,
    })
}

/// Reads SGLang's sampling parameters.
fn sampling_params(
    name: &str,
    raw: &Raw,
    limits: &RequestLimits,
) -> Result<SamplingParams, ApiError> {
    if !raw.is_object() {
        return Err(mismatch(name, &raw.shallow(name)?, "an object"));
    }
    let sampling = raw.parse_seed(name, ReadParams(limits))??;
    check_samples(sampling.n)?;
    Ok(sampling)
}

/// Refuses more samples of one prompt than there may be.
pub(in crate::server) fn check_samples(n: u32) -> Result<(), ApiError> {
    match n {
        1..=MAX_SAMPLES => Ok(()),
        n => {
            let text = format!("n is {n}, limits are 1 to {MAX_SAMPLES}: send several requests");
            Err(ApiError::field("n", text))
        }
    }
}

fn logprob_wishes(
    fields: &mut Fields,
    shape: PromptCount,
    limits: &RequestLimits,
) -> Result<Vec<Option<LogprobWish>>, ApiError> {
    let wanted = shape.each(fields, "return_logprob", false, |name, raw| {
        fields::flag(name, &raw.shallow(name)?)
    })?;
    let starts = shape.each(fields, "logprob_start_len", None, logprob_start)?;
    let tops = shape.each(fields, "top_logprobs_num", 0, |name, raw| {
        fields::count(name, &raw.shallow(name)?)
    })?;
    let chosen = chosen_tokens(fields, shape, limits)?;
    let wishes = starts.into_iter().zip(tops).zip(chosen);
    let wishes = wishes.map(|((start, top), token_ids)| LogprobWish {
        start,
        top,
        token_ids,
    });
    Ok(wanted
        .into_iter()
        .zip(wishes)
        .map(|(wanted, wish)| wanted.then_some(wish))
        .collect())
}

fn logprob_start(name: &str, raw: &Raw) -> Result<Option<u32>, ApiError> {
    let value = raw.shallow(name)?;
    match fields::integer(name, &value)? {
        -1 => Ok(None),
        start => match u32::try_from(start) {
            Ok(start) => Ok(Some(start)),
            Err(_) => Err(mismatch(
                name,
                &value,
                "a position in the prompt, or -1 for none",
            )),
        },
    }
}

/// `token_ids_logprob`: one list for all prompts, or a list of lists.
fn chosen_tokens(
    fields: &mut Fields,
    shape: PromptCount,
    limits: &RequestLimits,
) -> Result<Vec<Arc<[u32]>>, ApiError> {
    const NAME: &str = "token_ids_logprob";
    let Some(raw) = fields.take_raw(NAME) else {
        return Ok(vec![Arc::default(); shape.prompts]);
    };
    let list = |_: &str, raw: &Raw| -> Result<Arc<[u32]>, ApiError> {
        if raw.is_list() {
            let (_, len) = raw.items(NAME, 0)?;
            check_count(NAME, len, limits.max_logprobs)
                .map_err(|text| ApiError::field(NAME, text))?;
        }
        fields::token_ids(NAME, raw).map(Arc::from)
    };
    match raw.first_of_list() {
        Some(b'[') => shape.read_list(NAME, &raw, Arc::default(), list),
        _ => Ok(vec![list(NAME, &raw)?; shape.prompts]),
    }
}

fn namespaces(
    fields: &mut Fields,
    shape: PromptCount,
    limits: &RequestLimits,
) -> Result<Vec<Namespace>, ApiError> {
    let text = |name: &str, raw: &Raw| -> Result<Option<Arc<str>>, ApiError> {
        let text = fields::string(name, raw.shallow(name)?)?;
        Ok(Some(text.into()))
    };
    let keys = shape.each(fields, "extra_key", None, text)?;
    let salts = shape.each(fields, "cache_salt", None, text)?;
    let namespace = |(key, salt): (Option<Arc<str>>, Option<Arc<str>>)| {
        let namespace = Namespace::new(key.as_deref(), salt.as_deref());
        namespace.validate(limits).map_err(ApiError::from)?;
        Ok(namespace)
    };
    keys.into_iter().zip(salts).map(namespace).collect()
}

/// One id for each prompt: the client's, or its one id with `-i`, or random ones.
fn rids(fields: &mut Fields, shape: PromptCount) -> Result<Vec<RequestId>, ApiError> {
    const NAME: &str = "rid";
    let count = shape.prompts;
    match fields.take_raw(NAME) {
        None => Ok((0..count).map(|_| RequestId::random()).collect()),
        Some(raw) if shape.is_list && raw.is_list() => {
            let read = |name: &str, raw: &Raw| rid(raw.shallow(name)?).map(Some);
            let rids = shape.read_list(NAME, &raw, None, read)?;
            let named = |name: Option<RequestId>| {
                name.ok_or_else(|| mismatch(NAME, &Shallow::Null, "a string for each prompt"))
            };
            rids.into_iter().map(named).collect()
        }
        Some(raw) if !shape.is_list => Ok(vec![rid(raw.shallow(NAME)?)?]),
        Some(raw) => {
            let base = rid(raw.shallow(NAME)?)?;
            let name = |index| RequestId::new(format!("{base}-{index}"));
            Ok((0..count).map(name).collect())
        }
    }
}

/// Reads a request id.
pub(in crate::server) fn rid(value: Shallow) -> Result<RequestId, ApiError> {
    let name = fields::string("rid", value)?;
    match name.len() {
        0 => Err(ApiError::field(
            "rid",
            "rid is empty: leave it out for a random one",
        )),
        1..=MAX_RID_BYTES => Ok(RequestId::new(name)),
        bytes => {
            let text = format!("rid has {bytes} bytes, limit is {MAX_RID_BYTES}: shorten it");
            Err(ApiError::field("rid", text))
        }
    }
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
