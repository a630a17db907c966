//! Reading SGLang's `GenerateReqInput`.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::reply::Shape;
use crate::executor::LogprobWish;
use crate::ids::RequestId;
use crate::request::{GenerateRequest, Prompt};
use crate::server::error::ApiError;
use crate::server::fields::{self, Fields, mismatch};
use crate::server::words::Words;
use crate::state::namespace::Namespace;
use crate::state::sampling::{MAX_SAMPLES, SamplingParams};

/// Longest request id, in bytes.
const MAX_RID_BYTES: usize = 256;

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
    /// Reads a call of at most `max_requests` prompts times samples.
    pub(in crate::server) fn parse(
        mut fields: Fields,
        max_requests: usize,
    ) -> Result<Self, ApiError> {
        let (prompts, is_list) = prompts(&mut fields)?;
        // Before one value is copied for each of them.
        check_size(prompts.len(), prompts.len(), max_requests)?;
        let sampling = PerPrompt::new(&mut fields, "sampling_params", prompts.len(), is_list)?;
        let sampling = sampling.map(sampling_params, SamplingParams::default)?;
        let samples: usize = sampling.iter().map(|sampling| sampling.n as usize).sum();
        check_size(prompts.len(), samples, max_requests)?;
        let is_batch = is_list || samples > 1;
        let wishes = logprob_wishes(&mut fields, prompts.len(), is_list)?;
        let namespaces = namespaces(&mut fields, prompts.len(), is_list)?;
        let rids = rids(&mut fields, prompts.len(), is_list)?;
        let priority = fields.integer("priority")?;
        let timeouts = fields.timeouts()?;
        let stream = fields.flag("stream")?;
        let wants_words = fields.flag("return_text_in_logprobs")?;
        // Names that nobody knows are ignored, as SGLang does: its own clients and routers send some.
        fields.refuse(&NOT_YET)?;
        let mut requests = Vec::with_capacity(samples);
        let per_prompt = prompts
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
    max_requests: usize,
) -> Result<(), ApiError> {
    if samples <= max_requests {
        return Ok(());
    }
    let text = format!("{prompts} prompts ask for {samples} samples, limit is {max_requests}");
    Err(ApiError::field(
        "n",
        format!("{text}: send several requests"),
    ))
}

/// The values of a field that is one for all prompts or a list with one for each.
struct PerPrompt {
    name: &'static str,
    values: Option<Vec<Value>>,
    prompts: usize,
}

impl PerPrompt {
    fn new(
        fields: &mut Fields,
        name: &'static str,
        prompts: usize,
        is_list: bool,
    ) -> Result<Self, ApiError> {
        let values = match fields.take(name) {
            None => None,
            Some(Value::Array(values)) if is_list => {
                if values.len() != prompts {
                    let found = values.len();
                    let text = format!("{name} has {found} entries, must have one a prompt");
                    return Err(ApiError::field(name, format!("{text}: {prompts}")));
                }
                Some(values)
            }
            Some(value) => Some(vec![value; prompts]),
        };
        Ok(Self {
            name,
            values,
            prompts,
        })
    }

    fn map<T>(
        self,
        read: impl Fn(&str, Value) -> Result<T, ApiError>,
        default: impl Fn() -> T,
    ) -> Result<Vec<T>, ApiError> {
        let Some(values) = self.values else {
            return Ok((0..self.prompts).map(|_| default()).collect());
        };
        let read = |value: Value| match value {
            Value::Null => Ok(default()),
            value => read(self.name, value),
        };
        values.into_iter().map(read).collect()
    }
}

/// The prompts, and whether they came as a list.
fn prompts(fields: &mut Fields) -> Result<(Vec<Prompt>, bool), ApiError> {
    let (text, ids) = (fields.take("text"), fields.take("input_ids"));
    let (prompts, is_list) = match (text, ids) {
        (Some(Value::String(text)), None) => (vec![Prompt::Text(text.into())], false),
        (Some(Value::Array(items)), None) => (texts("text", items)?, true),
        (Some(other), None) => return Err(mismatch("text", &other, "a string or a list of them")),
        (None, Some(Value::Array(items))) => tokens("input_ids", items)?,
        (None, Some(other)) => return Err(mismatch("input_ids", &other, "a list of token ids")),
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
    match prompts.is_empty() {
        true => Err(ApiError::field(
            "text",
            "there is no prompt: the list is empty",
        )),
        false => Ok((prompts, is_list)),
    }
}

/// A list of texts.
pub(in crate::server) fn texts(name: &str, items: Vec<Value>) -> Result<Vec<Prompt>, ApiError> {
    let items = items.into_iter().enumerate();
    items
        .map(|(index, value)| {
            fields::string(&format!("{name}[{index}]"), value).map(|text| Prompt::Text(text.into()))
        })
        .collect()
}

/// One list of token ids, or a list of such lists.
pub(in crate::server) fn tokens(
    name: &str,
    items: Vec<Value>,
) -> Result<(Vec<Prompt>, bool), ApiError> {
    if !matches!(items.first(), Some(Value::Array(_))) {
        return Ok((
            vec![Prompt::Tokens(fields::token_ids(name, &items)?.into())],
            false,
        ));
    }
    let prompt = |(index, value): (usize, &Value)| {
        let name = format!("{name}[{index}]");
        match value {
            Value::Array(items) => {
                fields::token_ids(&name, items).map(|ids| Prompt::Tokens(ids.into()))
            }
            other => Err(mismatch(&name, other, "a list of token ids")),
        }
    };
    let prompts = items
        .iter()
        .enumerate()
        .map(prompt)
        .collect::<Result<_, _>>()?;
    Ok((prompts, true))
}

fn sampling_params(name: &str, value: Value) -> Result<SamplingParams, ApiError> {
    read_sampling(fields::object(name, value)?)
}

/// Reads SGLang's sampling parameters.
pub(in crate::server) fn read_sampling(
    map: Map<String, Value>,
) -> Result<SamplingParams, ApiError> {
    let names: Vec<String> = map.keys().cloned().collect();
    let sampling: SamplingParams = serde_json::from_value(Value::Object(map)).map_err(|error| {
        let text = error.to_string();
        let named = names.into_iter().find(|name| is_about(&text, name));
        let unsupported = named.as_deref().map(ApiError::unsupported);
        if let Some(unsupported) = unsupported.filter(|error| error.to_string() == text) {
            return unsupported;
        }
        ApiError::field(named.unwrap_or_else(|| "sampling_params".to_owned()), text)
    })?;
    match sampling.n {
        1..=MAX_SAMPLES => Ok(sampling),
        n => {
            let text = format!("n is {n}, limits are 1 to {MAX_SAMPLES}: send several requests");
            Err(ApiError::field("n", text))
        }
    }
}

/// True if an error text begins with the field's name or quotes it.
fn is_about(text: &str, name: &str) -> bool {
    let rest = text.strip_prefix(name);
    rest.is_some_and(|rest| rest.starts_with([' ', '['])) || text.contains(&format!("{name:?}"))
}

fn logprob_wishes(
    fields: &mut Fields,
    prompts: usize,
    is_list: bool,
) -> Result<Vec<Option<LogprobWish>>, ApiError> {
    let wanted = PerPrompt::new(fields, "return_logprob", prompts, is_list)?;
    let wanted = wanted.map(|name, value| fields::flag(name, &value), || false)?;
    let starts = PerPrompt::new(fields, "logprob_start_len", prompts, is_list)?;
    let starts = starts.map(logprob_start, || None)?;
    let tops = PerPrompt::new(fields, "top_logprobs_num", prompts, is_list)?;
    let tops = tops.map(|name, value| fields::count(name, &value), || 0)?;
    let chosen = chosen_tokens(fields, prompts)?;
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

fn logprob_start(name: &str, value: Value) -> Result<Option<u32>, ApiError> {
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
fn chosen_tokens(fields: &mut Fields, prompts: usize) -> Result<Vec<Arc<[u32]>>, ApiError> {
    const NAME: &str = "token_ids_logprob";
    let items = match fields.take(NAME) {
        None => return Ok(vec![Arc::default(); prompts]),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(mismatch(NAME, &other, "a list of token ids")),
    };
    if !matches!(items.first(), Some(Value::Array(_))) {
        return Ok(vec![fields::token_ids(NAME, &items)?.into(); prompts]);
    }
    if items.len() != prompts {
        let text = format!("{NAME} has {} entries, must have one a prompt", items.len());
        return Err(ApiError::field(NAME, format!("{text}: {prompts}")));
    }
    let list = |value: &Value| match value {
        Value::Array(items) => fields::token_ids(NAME, items).map(Arc::from),
        Value::Null => Ok(Arc::default()),
        other => Err(mismatch(NAME, other, "a list of token ids")),
    };
    items.iter().map(list).collect()
}

fn namespaces(
    fields: &mut Fields,
    prompts: usize,
    is_list: bool,
) -> Result<Vec<Namespace>, ApiError> {
    let keys = PerPrompt::new(fields, "extra_key", prompts, is_list)?;
    let keys = keys.map(text, || None)?;
    let salts = PerPrompt::new(fields, "cache_salt", prompts, is_list)?;
    let salts = salts.map(text, || None)?;
    Ok(keys
        .into_iter()
        .zip(salts)
        .map(|(key, salt)| Namespace::new(key.as_deref(), salt.as_deref()))
        .collect())
}

fn text(name: &str, value: Value) -> Result<Option<String>, ApiError> {
    fields::string(name, value).map(Some)
}

/// One id for each prompt: the client's, or its one id with `-i`, or random ones.
fn rids(fields: &mut Fields, prompts: usize, is_list: bool) -> Result<Vec<RequestId>, ApiError> {
    match fields.take("rid") {
        None => Ok((0..prompts).map(|_| RequestId::random()).collect()),
        Some(Value::Array(items)) if is_list => {
            if items.len() != prompts {
                let text = format!("rid has {} entries, must have one a prompt", items.len());
                return Err(ApiError::field("rid", format!("{text}: {prompts}")));
            }
            items.into_iter().map(rid).collect()
        }
        Some(value) if !is_list => Ok(vec![rid(value)?]),
        Some(value) => {
            let base = rid(value)?;
            Ok((0..prompts)
                .map(|index| RequestId::new(format!("{base}-{index}")))
                .collect())
        }
    }
}

/// Reads a request id.
pub(in crate::server) fn rid(value: Value) -> Result<RequestId, ApiError> {
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
