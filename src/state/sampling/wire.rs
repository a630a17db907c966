//! [`SamplingParams`] from and to JSON, in the format of SGLang's `/generate`.
//!
//! The code is hand-written, not derived: errors must name the field, null must mean the default, and integers may be
//! written as floats.

use std::fmt;

use rustc_hash::FxHashMap;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serializer};

use super::params::{BIAS_UNIT, STOP_TOKEN_UNIT, STOP_UNIT, SamplingParams};
use crate::request_limits::RequestLimits;
use souffleur_base::error::FieldError;
use souffleur_base::field::{Cut, Field, Keep, Shallow, check_bytes, check_count};

/// SGLang's output constraints, which are parsed separately.
pub const CONSTRAINTS: [&str; 4] = ["json_schema", "regex", "ebnf", "structural_tag"];

/// Fields of SGLang and vLLM that this engine does not support as sampling parameters. The OpenAI endpoints read vLLM's
/// constraints separately and reject the other fields.
pub const NOT_YET: [&str; 14] = [
    "stop_regex",
    "beam_width",
    "custom_params",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_json_object",
    "guided_decoding",
    "guided_whitespace_pattern",
    "structured_outputs",
    "allowed_token_ids",
    "bad_words",
    "watermark",
];

const FIELDS: &str = "max_new_tokens, min_new_tokens, stop, stop_token_ids, temperature, top_p, top_k, min_p, \
    frequency_penalty, presence_penalty, repetition_penalty, logit_bias, ignore_eos, sampling_seed, n, \
    skip_special_tokens, spaces_between_special_tokens, no_stop_trim, speculative_num_draft_tokens, stream_interval";

/// For trusted sources: reads lists of any length, which [`SamplingParams::validate`] then bounds.
impl<'de> Deserialize<'de> for SamplingParams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = ReadParams {
            limits: &RequestLimits::NONE,
            read_elsewhere: &[],
        };
        let read = read.deserialize(deserializer)?;
        read.map_err(D::Error::custom)
    }
}

/// Parses an object of parameters; keeps no more list items than the limits allow.
pub struct ReadParams<'a> {
    pub limits: &'a RequestLimits,
    pub read_elsewhere: &'a [&'a str],
}

impl<'de> DeserializeSeed<'de> for ReadParams<'_> {
    type Value = Result<SamplingParams, FieldError>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ReadParams<'_> {
    type Value = Result<SamplingParams, FieldError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sampling parameters")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut params = SamplingParams::default();
        while let Some(name) = map.next_key::<String>()? {
            if self.read_elsewhere.contains(&name.as_str()) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let set = SetParam {
                params: &mut params,
                name: &name,
                limits: self.limits,
            };
            if let Err(refused) = map.next_value_seed(set)? {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                return Ok(Err(refused));
            }
        }
        Ok(Ok(params))
    }
}

/// Parses and sets one parameter. The field of every error is the parameter, even if the text names a part of it.
pub struct SetParam<'a> {
    pub params: &'a mut SamplingParams,
    pub name: &'a str,
    pub limits: &'a RequestLimits,
}

impl<'de> DeserializeSeed<'de> for SetParam<'_> {
    type Value = Result<(), FieldError>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let Self {
            params,
            name,
            limits,
        } = self;
        let max_items = match name {
            "stop" => limits.max_stop_strings,
            "stop_token_ids" => limits.max_stop_token_ids,
            "logit_bias" => limits.max_logit_bias,
            _ => 0,
        };
        let value = Keep(max_items).deserialize(deserializer)?;
        if NOT_YET.contains(&name) && is_set(name, &value) {
            return Ok(Err(FieldError::not_yet(name)));
        }
        if CONSTRAINTS.contains(&name) {
            return Ok(if value.has_no_effect() {
                Ok(())
            } else {
                Err(constraint_error(name))
            });
        }
        let set = set(params, name, &value, limits);
        Ok(set.map_err(|error| error.within(short_name(name))))
    }
}

/// False for values that leave an unsupported parameter unused, such as null.
fn is_set(name: &str, value: &Shallow) -> bool {
    match value {
        Shallow::List { len: 0, .. } => name != "bad_words",
        Shallow::Map { len: 0, .. } => name != "custom_params",
        value => !value.has_no_effect(),
    }
}

/// The error for a constraint among a host's sampling parameters.
fn constraint_error(name: &str) -> FieldError {
    let text = format!(
        "{name} cannot be set among the sampling parameters: set GenerateRequest::constraint instead"
    );
    FieldError::new(name, text)
}

fn short_name(name: &str) -> String {
    const MAX_CHARS: usize = 48;
    name.chars().take(MAX_CHARS).collect()
}

pub(super) fn serialize_logit_bias<S: Serializer>(
    bias: &[(u32, f32)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(bias.len()))?;
    for (token, bias) in bias {
        map.serialize_entry(&token.to_string(), bias)?;
    }
    map.end()
}

fn set(
    params: &mut SamplingParams,
    name: &str,
    value: &Shallow,
    limits: &RequestLimits,
) -> Result<(), FieldError> {
    if value.is_null() && (NOT_YET.contains(&name) || FIELDS.split(", ").any(|known| known == name))
    {
        return Ok(());
    }
    let field = Field::new(name, value);
    match name {
        "max_new_tokens" => params.max_new_tokens = field.token_limit()?,
        "min_new_tokens" => params.min_new_tokens = field.token_limit()?,
        "stop" => params.stop = stops(value, limits)?.into(),
        "stop_token_ids" => {
            params.stop_token_ids = token_ids(field, limits.max_stop_token_ids)?.into()
        }
        "temperature" => params.temperature = field.float()?,
        "top_p" => params.top_p = field.float()?,
        "top_k" => params.top_k = field.top_k()?,
        "min_p" => params.min_p = field.float()?,
        "frequency_penalty" => params.frequency_penalty = field.float()?,
        "presence_penalty" => params.presence_penalty = field.float()?,
        "repetition_penalty" => params.repetition_penalty = field.float()?,
        "logit_bias" => params.logit_bias = biases(field, limits.max_logit_bias)?.into(),
        "ignore_eos" => params.ignore_eos = field.boolean()?,
        "sampling_seed" => params.sampling_seed = Some(field.seed()?),
        "n" => params.n = field.integer()?,
        "skip_special_tokens" => params.skip_special_tokens = field.boolean()?,
        "spaces_between_special_tokens" => {
            params.spaces_between_special_tokens = field.boolean()?
        }
        "no_stop_trim" => params.no_stop_trim = field.boolean()?,
        "speculative_num_draft_tokens" => {
            params.speculative_num_draft_tokens = Some(field.integer()?)
        }
        // Checked and ignored: the text does not depend on the size of stream chunks.
        "stream_interval" => {
            field.positive()?;
        }
        name if NOT_YET.contains(&name) => (),
        name => {
            let shown = Cut(name);
            let text = format!("unknown sampling parameter {shown}, must be one of {FIELDS}");
            return Err(FieldError::new(short_name(name), text));
        }
    }
    Ok(())
}

fn stops(value: &Shallow, limits: &RequestLimits) -> Result<Vec<String>, FieldError> {
    const NAME: &str = "stop";
    const WANTED: &str = "a string or a list of strings";
    let field = Field::new(NAME, value);
    let items = match value {
        Shallow::Text(_) => {
            check_count(NAME, 1, limits.max_stop_strings, STOP_UNIT)?;
            std::slice::from_ref(value)
        }
        _ => field.list(WANTED, limits.max_stop_strings, STOP_UNIT)?,
    };
    let mut stops = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let stop = item.as_str().ok_or_else(|| field.must_be(WANTED))?;
        check_bytes(&format!("{NAME}[{index}]"), stop, limits.max_stop_bytes)?;
        if !stop.is_empty() {
            stops.push(stop.to_owned());
        }
    }
    Ok(stops)
}

fn token_ids(field: Field<'_>, limit: usize) -> Result<Vec<u32>, FieldError> {
    const NAME: &str = "stop_token_ids";
    let items = field.list("a list of token ids", limit, STOP_TOKEN_UNIT)?;
    let id = |(index, item): (usize, &Shallow)| {
        let name = format!("{NAME}[{index}]");
        Field::new(&name, item).token_id()
    };
    items.iter().enumerate().map(id).collect()
}

/// Reads `logit_bias`; if a token occurs twice, its last bias counts.
fn biases(field: Field<'_>, limit: usize) -> Result<Vec<(u32, f32)>, FieldError> {
    const NAME: &str = "logit_bias";
    let entries = field.map("a map from token id to number", limit, BIAS_UNIT)?;
    let mut biases: Vec<(u32, f32)> = Vec::with_capacity(entries.len());
    let mut places: FxHashMap<u32, usize> = FxHashMap::default();
    for (token, value) in entries {
        let name = format!("{NAME}[{}]", Cut(token));
        let bias = Field::new(&name, value).float()?;
        let Ok(token) = token.parse() else {
            let text = format!("the key of {name} is not a token id: use integers as keys");
            return Err(FieldError::new(NAME, text));
        };
        let place = *places.entry(token).or_insert(biases.len());
        match biases.get_mut(place) {
            Some(earlier) => earlier.1 = bias,
            None => biases.push((token, bias)),
        }
    }
    Ok(biases)
}
