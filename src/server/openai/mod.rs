//! OpenAI's completions, chat completions, responses and embeddings, with SGLang's extra sampling fields. Unknown
//! fields are ignored, as OpenAI's clients send many; unsupported fields that would change the answer are refused.
//!
//! Chats, responses and Anthropic's messages are written from the same pieces
//! ([`OutputPiece`](souffleur_request::OutputPiece)), which one parser of tools and reasoning produces.

pub(super) mod answer;
pub(super) mod chat;
pub(super) mod completions;
mod docs;
pub(super) mod embeddings;
pub(super) mod json_values;
pub(super) mod logprobs;
mod refusals;
pub(super) mod responses;
mod suffix;
pub(super) mod wire;

use std::sync::Arc;

use serde_json::Value;

use super::call::{CallLimits, check_samples, read_rid};
use super::error::ApiError;
use super::fields::Fields;
use super::options::{Options, Scheduling};
pub(super) use docs::components;
use souffleur_base::field::{Field, Shallow};
use souffleur_base::ids::RequestId;
use souffleur_model::generation::GenerationConfig;
use souffleur_request::{ChatPrompt, FinishReason, GenerateRequest, OutputParsing, Prompt};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::grammar::Constraint;
use souffleur_state::request_limits::RequestLimits;
use souffleur_state::sampling::{LogprobWish, SamplingParams, SetParam};
use wire::Matched;

/// Maximum number of alternatives per token, as in OpenAI's chat completions.
const MAX_TOP_LOGPROBS: u32 = 20;

pub(super) type ReadConstraint = fn(&mut Fields) -> Result<Option<Arc<Constraint>>, ApiError>;

/// The fields that completions, chats, responses and Anthropic's messages share.
pub(super) struct Common {
    pub(super) id: RequestId,
    pub(super) sampling: SamplingParams,
    pub(super) constraint: Option<Arc<Constraint>>,
    namespace: Namespace,
    scheduling: Scheduling,
    pub(super) stream: bool,
    include_usage: bool,
    /// Each chunk carries the counts of its choice so far.
    continuous_usage: bool,
    return_token_ids: bool,
    return_cached_tokens_details: bool,
}

impl Common {
    /// Reads the fields. A generated id begins with `id_prefix`.
    pub(super) fn read(
        fields: &mut Fields,
        id_prefix: &str,
        constraint: ReadConstraint,
        limits: CallLimits<'_>,
    ) -> Result<Self, ApiError> {
        let constraint = constraint(fields)?;
        refusals::inside_extra_body(fields)?;
        // The server's only model answers requests for any name.
        fields.string("model")?;
        let id = match fields.take("rid")? {
            Some(value) => read_rid(value)?,
            None => RequestId::new(format!("{id_prefix}{}", RequestId::random())),
        };
        let shared = Options::table().read(fields, limits)?;
        let stream = fields.flag("stream")?;
        let mut options = fields.object("stream_options")?;
        let include_usage = options.flag("include_usage")?;
        let continuous_usage = options.flag("continuous_usage_stats")?;
        Ok(Self {
            id,
            sampling: read_sampling(fields, limits.request)?,
            constraint,
            namespace: shared.namespace(limits)?,
            scheduling: shared.scheduling,
            stream,
            include_usage: include_usage && stream,
            continuous_usage: continuous_usage && stream,
            return_token_ids: fields.flag("return_token_ids")?,
            return_cached_tokens_details: fields.flag("return_cached_tokens_details")?,
        })
    }

    pub(super) fn into_chat_request(
        self,
        prompt: ChatPrompt,
        top_logprobs: Option<u32>,
        parsing: Option<OutputParsing>,
    ) -> GenerateRequest {
        let wish = |top| LogprobWish {
            start: None,
            top,
            token_ids: Arc::default(),
        };
        GenerateRequest {
            rid: self.id,
            prompt: Prompt::Chat(Arc::new(prompt)),
            sampling: self.sampling,
            logprobs: top_logprobs.map(wish),
            constraint: self.constraint,
            pooling: None,
            parsing,
            prediction: None,
            namespace: self.namespace,
            priority: self.scheduling.priority,
            timeouts: self.scheduling.timeouts,
            is_streaming: self.stream,
        }
    }

    /// Sets the maximum number of tokens to generate. Fails if `min_tokens` is larger.
    pub(super) fn limit_length(&mut self, max_tokens: u32) -> Result<(), ApiError> {
        self.sampling.max_new_tokens = max_tokens;
        Ok(self.sampling.check_lengths("min_tokens", "max_tokens")?)
    }
}

fn read_sampling(fields: &mut Fields, limits: &RequestLimits) -> Result<SamplingParams, ApiError> {
    const SHARED_NAMES: [&str; 16] = [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "logit_bias",
        "stop",
        "stop_token_ids",
        "n",
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "no_stop_trim",
        "speculative_num_draft_tokens",
    ];
    let mut sampling = SamplingParams::default();
    for name in SHARED_NAMES {
        let Some(raw) = fields.take_raw(name) else {
            continue;
        };
        let set = SetParam {
            params: &mut sampling,
            name,
            limits,
        };
        raw.parse_with(name, set)??;
    }
    check_samples(sampling.n)?;
    sampling.sampling_seed = fields.seed("seed")?;
    // vLLM's name of `no_stop_trim`.
    sampling.no_stop_trim |= fields.flag("include_stop_str_in_output")?;
    sampling.min_new_tokens = fields.token_limit("min_tokens")?.unwrap_or(0);
    Ok(sampling)
}

/// Fills absent sampling fields from the model's `generation_config.json`, as SGLang and vLLM do on these endpoints
/// (but not on `/generate`).
fn apply_model_defaults(fields: &mut Fields, defaults: &GenerationConfig) {
    fields.default_to("temperature", defaults.temperature.map(Value::from));
    fields.default_to("top_p", defaults.top_p.map(Value::from));
    fields.default_to("top_k", defaults.top_k.map(Value::from));
    fields.default_to("min_p", defaults.min_p.map(Value::from));
    fields.default_to(
        "repetition_penalty",
        defaults.repetition_penalty.map(Value::from),
    );
}

fn alternatives(name: &str, value: &Shallow) -> Result<u32, ApiError> {
    match Field::new(name, value).integer()? {
        top @ 0..=MAX_TOP_LOGPROBS => Ok(top),
        top => {
            let text = format!("{name} is {top}, limit is {MAX_TOP_LOGPROBS}: ask for fewer");
            Err(ApiError::field(name, text))
        }
    }
}

/// SGLang's addition to a choice: the token or text that ended it.
fn matched_stop(reason: FinishReason) -> Option<Matched> {
    match reason {
        FinishReason::StopToken(token) => Some(Matched::Token(token)),
        FinishReason::StopString(text) => Some(Matched::Text(text)),
        FinishReason::Grammar | FinishReason::Length { .. } | FinishReason::Abort => None,
    }
}

fn unix_now_s() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests;
