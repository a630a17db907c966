//! [`SamplingParams`] from and to JSON, as SGLang's `/generate` has them.
//!
//! Written by hand and not derived: errors have to name the field, null has to mean the default, and integers may
//! come as floats.

use std::fmt;

use rustc_hash::FxHashMap;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serializer};

use super::params::{SamplingParams, check_count, check_stop_bytes};
use crate::shallow::{Cut, Keep, Shallow};
use crate::state::request_limits::RequestLimits;

/// SGLang's and vLLM's fields that this engine does not have yet.
pub(crate) const NOT_YET: [&str; 18] = [
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "stop_regex",
    "beam_width",
    "custom_params",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_json_object",
    "guided_decoding",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "structured_outputs",
    "allowed_token_ids",
    "bad_words",
];

const FIELDS: &str = "max_new_tokens, min_new_tokens, stop, stop_token_ids, temperature, top_p, top_k, min_p, \
    frequency_penalty, presence_penalty, repetition_penalty, logit_bias, ignore_eos, sampling_seed, n, \
    skip_special_tokens, spaces_between_special_tokens, no_stop_trim, stream_interval";

/// What [`token_limit`] reads, in words.
pub(crate) const TOKEN_LIMIT: &str = "a whole number of at least 0";

/// What [`seed`] reads, in words.
pub(crate) const SEED: &str = "a whole number of 64 bits";

/// A limit in tokens. What is beyond `u32` is beyond every context, and clipped as the context clips it.
pub(crate) fn token_limit(value: &Shallow) -> Option<u32> {
    let number = value.as_f64()?;
    (number >= 0.0 && number.fract() == 0.0).then_some(number as u32)
}

/// A seed; negative ones are taken by their bits.
pub(crate) fn seed(value: &Shallow) -> Option<u64> {
    let negative = || whole_number(value).map(|number| number as u64);
    value.as_u64().or_else(negative)
}

/// Accepts floats without a fraction, which some clients send.
fn whole_number(value: &Shallow) -> Option<i64> {
    let from_float =
        |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
    value.as_i64().or_else(|| from_float(value.as_f64()?))
}

/// Why a parameter is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// This engine does not have it yet.
    NotYet(String),
    /// The parameter, and what is wrong with it.
    Wrong(String, String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYet(name) => {
                write!(f, "{name} is not supported yet: leave it out or send null")
            }
            Self::Wrong(_, reason) => f.write_str(reason),
        }
    }
}

/// Trusts its source: [`SamplingParams::validate`] bounds the lists.
impl<'de> Deserialize<'de> for SamplingParams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = ReadParams(&RequestLimits::NONE).deserialize(deserializer)?;
        read.map_err(D::Error::custom)
    }
}

/// Reads an object of parameters, of whose lists no more is kept than they may hold.
pub(crate) struct ReadParams<'a>(pub(crate) &'a RequestLimits);

impl<'de> DeserializeSeed<'de> for ReadParams<'_> {
    type Value = Result<SamplingParams, Refused>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ReadParams<'_> {
    type Value = Result<SamplingParams, Refused>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sampling parameters")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut params = SamplingParams::default();
        while let Some(name) = map.next_key::<String>()? {
            let set = SetParam {
                params: &mut params,
                name: &name,
                limits: self.0,
            };
            if let Err(refused) = map.next_value_seed(set)? {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                return Ok(Err(refused));
            }
        }
        Ok(Ok(params))
    }
}

/// Reads one parameter's value and sets it.
pub(crate) struct SetParam<'a> {
    pub(crate) params: &'a mut SamplingParams,
    pub(crate) name: &'a str,
    pub(crate) limits: &'a RequestLimits,
}

impl<'de> DeserializeSeed<'de> for SetParam<'_> {
    type Value = Result<(), Refused>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let Self {
            params,
            name,
            limits,
        } = self;
        let kept = match name {
            "stop" => limits.max_stop_strings,
            "stop_token_ids" => limits.max_stop_token_ids,
            "logit_bias" => limits.max_logit_bias,
            _ => 0,
        };
        let value = Keep(kept).deserialize(deserializer)?;
        if NOT_YET.contains(&name) && !value.asks_for_nothing() {
            return Ok(Err(Refused::NotYet(name.to_owned())));
        }
        let set = set(params, name, &value, limits);
        Ok(set.map_err(|reason| Refused::Wrong(short_name(name), reason)))
    }
}

/// A parameter's name as an error's `param`: what is longer than a name is cut.
fn short_name(name: &str) -> String {
    const MAX_CHARS: usize = 48;
    name.chars().take(MAX_CHARS).collect()
}

/// Writes the pairs as the map they are read from.
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
) -> Result<(), String> {
    let field = Field { name, value };
    if value.is_null() && (NOT_YET.contains(&name) || FIELDS.split(", ").any(|known| known == name))
    {
        return Ok(());
    }
    match name {
        "max_new_tokens" => params.max_new_tokens = field.tokens()?,
        "min_new_tokens" => params.min_new_tokens = field.tokens()?,
        "stop" => params.stop = field.stops(limits)?.into(),
        "stop_token_ids" => {
            params.stop_token_ids = field.token_ids(limits.max_stop_token_ids)?.into()
        }
        "temperature" => params.temperature = field.float()?,
        "top_p" => params.top_p = field.float()?,
        "top_k" => params.top_k = field.top_k()?,
        "min_p" => params.min_p = field.float()?,
        "frequency_penalty" => params.frequency_penalty = field.float()?,
        "presence_penalty" => params.presence_penalty = field.float()?,
        "repetition_penalty" => params.repetition_penalty = field.float()?,
        "logit_bias" => params.logit_bias = field.biases(limits.max_logit_bias)?.into(),
        "ignore_eos" => params.ignore_eos = field.boolean()?,
        "sampling_seed" => params.sampling_seed = Some(field.seed()?),
        "n" => params.n = field.integer()?,
        "skip_special_tokens" => params.skip_special_tokens = field.boolean()?,
        "spaces_between_special_tokens" => {
            params.spaces_between_special_tokens = field.boolean()?
        }
        "no_stop_trim" => params.no_stop_trim = field.boolean()?,
        // The texts are the same however many tokens a chunk carries.
        "stream_interval" => field.interval()?,
        name if NOT_YET.contains(&name) => (),
        name => {
            let name = Cut(name);
            return Err(format!(
                "unknown sampling parameter {name}, there are {FIELDS}"
            ));
        }
    }
    Ok(())
}

struct Field<'a> {
    name: &'a str,
    value: &'a Shallow,
}

impl Field<'_> {
    fn expected<T>(&self, what: &str) -> Result<T, String> {
        Err(format!("{} is {}, expected {what}", self.name, self.value))
    }

    fn float(&self) -> Result<f32, String> {
        match self.value.as_f64() {
            Some(number) => Ok(number as f32),
            None => self.expected("a number"),
        }
    }

    fn integer<T: TryFrom<i64> + Bounds>(&self) -> Result<T, String> {
        match whole_number(self.value).map(T::try_from) {
            Some(Ok(number)) => Ok(number),
            _ => self.expected(T::RANGE),
        }
    }

    fn tokens(&self) -> Result<u32, String> {
        match token_limit(self.value) {
            Some(tokens) => Ok(tokens),
            None => self.expected(TOKEN_LIMIT),
        }
    }

    /// More tokens than there are is all of them.
    fn top_k(&self) -> Result<i32, String> {
        const ALL: i32 = -1;
        match self.value.as_f64() {
            Some(number) if number > f64::from(i32::MAX) && number.fract() == 0.0 => Ok(ALL),
            _ => self.integer(),
        }
    }

    fn interval(&self) -> Result<(), String> {
        match whole_number(self.value) {
            Some(1..) => Ok(()),
            _ => self.expected("a whole number of at least 1"),
        }
    }

    fn seed(&self) -> Result<u64, String> {
        match seed(self.value) {
            Some(seed) => Ok(seed),
            None => self.expected(SEED),
        }
    }

    fn boolean(&self) -> Result<bool, String> {
        match self.value {
            Shallow::Bool(value) => Ok(*value),
            _ => self.expected("true or false"),
        }
    }

    /// Empty strings are no stops.
    fn stops(&self, limits: &RequestLimits) -> Result<Vec<String>, String> {
        const WANTED: &str = "a string or a list of strings";
        let (items, len) = match self.value {
            Shallow::Text(_) => (std::slice::from_ref(self.value), 1),
            Shallow::List { items, len, .. } => (items.as_slice(), *len),
            _ => return self.expected(WANTED),
        };
        let texts: Option<Vec<&str>> = items.iter().map(Shallow::as_str).collect();
        let Some(texts) = texts else {
            return self.expected(WANTED);
        };
        check_count(self.name, len, limits.max_stop_strings)?;
        for (index, text) in texts.iter().enumerate() {
            check_stop_bytes(index, text, limits)?;
        }
        let stops = texts.into_iter().filter(|text| !text.is_empty());
        Ok(stops.map(str::to_owned).collect())
    }

    fn token_ids(&self, limit: usize) -> Result<Vec<u32>, String> {
        let Shallow::List { items, len, .. } = self.value else {
            return self.expected("a list of token ids");
        };
        check_count(self.name, *len, limit)?;
        let name = self.name;
        items
            .iter()
            .map(|value| Field { name, value }.integer())
            .collect()
    }

    /// Of a token that is named twice the last bias counts.
    fn biases(&self, limit: usize) -> Result<Vec<(u32, f32)>, String> {
        let Shallow::Map { entries, len } = self.value else {
            return self.expected("a map from token id to number");
        };
        check_count(self.name, *len, limit)?;
        let mut biases: Vec<(u32, f32)> = Vec::with_capacity(entries.len());
        let mut places: FxHashMap<u32, usize> = FxHashMap::default();
        for (token, value) in entries {
            let name = format!("{}[{}]", self.name, Cut(token));
            let bias = Field { name: &name, value }.float()?;
            let Ok(token) = token.parse() else {
                return Err(format!("{name}: the key is not a token id"));
            };
            let place = *places.entry(token).or_insert(biases.len());
            match biases.get_mut(place) {
                Some(earlier) => earlier.1 = bias,
                None => biases.push((token, bias)),
            }
        }
        Ok(biases)
    }
}

/// What an integer field holds, in words.
trait Bounds {
    const RANGE: &str;
}

impl Bounds for u32 {
    const RANGE: &str = "a whole number from 0 to 4294967295";
}

impl Bounds for i32 {
    const RANGE: &str = "a whole number from -2147483648 to 2147483647";
}
