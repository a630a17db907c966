//! [`SamplingParams`] from and to JSON, as SGLang's `/generate` has them.
//!
//! Written by hand and not derived: errors have to name the field, null has to mean the default, and integers may
//! come as floats.

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serializer};
use serde_json::{Map, Value};

use super::params::SamplingParams;

/// SGLang's fields that this engine does not have yet.
const NOT_YET: [&str; 7] = [
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "stop_regex",
    "beam_width",
    "custom_params",
];

const FIELDS: &str = "max_new_tokens, min_new_tokens, stop, stop_token_ids, temperature, top_p, top_k, min_p, \
    frequency_penalty, presence_penalty, repetition_penalty, logit_bias, ignore_eos, sampling_seed, n, \
    skip_special_tokens, spaces_between_special_tokens, no_stop_trim, stream_interval";

/// True of values that ask for nothing: null, false, empty texts and maps, and lists of nothing, which frontends
/// send for features they do not use.
pub(crate) fn asks_for_nothing(value: &Value) -> bool {
    let is_nothing = |item: &Value| match item {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) | Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(is_nothing),
        Value::Object(map) => map.is_empty(),
    }
}

/// What [`token_limit`] reads, in words.
pub(crate) const TOKEN_LIMIT: &str = "a whole number of at least 0";

/// What [`seed`] reads, in words.
pub(crate) const SEED: &str = "a whole number of 64 bits";

/// A limit in tokens. What is beyond `u32` is beyond every context, and clipped as the context clips it.
pub(crate) fn token_limit(value: &Value) -> Option<u32> {
    let number = value.as_f64()?;
    (number >= 0.0 && number.fract() == 0.0).then_some(number as u32)
}

/// A seed; negative ones are taken by their bits.
pub(crate) fn seed(value: &Value) -> Option<u64> {
    let negative = || whole_number(value).map(|number| number as u64);
    value.as_u64().or_else(negative)
}

/// Accepts floats without a fraction, which some clients send.
fn whole_number(value: &Value) -> Option<i64> {
    let from_float =
        |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
    value.as_i64().or_else(|| from_float(value.as_f64()?))
}

impl<'de> Deserialize<'de> for SamplingParams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Map::<String, Value>::deserialize(deserializer)?;
        let mut params = Self::default();
        for (name, value) in &fields {
            set(&mut params, name, value).map_err(D::Error::custom)?;
        }
        Ok(params)
    }
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

fn set(params: &mut SamplingParams, name: &str, value: &Value) -> Result<(), String> {
    let field = Field { name, value };
    if value.is_null() && (NOT_YET.contains(&name) || FIELDS.split(", ").any(|known| known == name))
    {
        return Ok(());
    }
    match name {
        "max_new_tokens" => params.max_new_tokens = field.tokens()?,
        "min_new_tokens" => params.min_new_tokens = field.tokens()?,
        "stop" => params.stop = field.strings()?.into(),
        "stop_token_ids" => params.stop_token_ids = field.token_ids()?.into(),
        "temperature" => params.temperature = field.float()?,
        "top_p" => params.top_p = field.float()?,
        "top_k" => params.top_k = field.top_k()?,
        "min_p" => params.min_p = field.float()?,
        "frequency_penalty" => params.frequency_penalty = field.float()?,
        "presence_penalty" => params.presence_penalty = field.float()?,
        "repetition_penalty" => params.repetition_penalty = field.float()?,
        "logit_bias" => params.logit_bias = field.biases()?.into(),
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
        name if NOT_YET.contains(&name) && asks_for_nothing(value) => (),
        name if NOT_YET.contains(&name) => {
            return Err(format!(
                "{name} is not supported yet: leave it out or send null"
            ));
        }
        name => {
            return Err(format!(
                "unknown sampling parameter {name:?}, there are {FIELDS}"
            ));
        }
    }
    Ok(())
}

struct Field<'a> {
    name: &'a str,
    value: &'a Value,
}

impl Field<'_> {
    fn expected<T>(&self, what: &str) -> Result<T, String> {
        Err(format!(
            "{} is {}, expected {what}",
            self.name,
            Excerpt(self.value)
        ))
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
            Value::Bool(value) => Ok(*value),
            _ => self.expected("true or false"),
        }
    }

    fn strings(&self) -> Result<Vec<String>, String> {
        match self.value {
            Value::String(text) => Ok(vec![text.clone()]),
            Value::Array(items) => items
                .iter()
                .map(|item| match item {
                    Value::String(text) => Ok(text.clone()),
                    _ => self.expected("a string or a list of strings"),
                })
                .collect(),
            _ => self.expected("a string or a list of strings"),
        }
    }

    fn token_ids(&self) -> Result<Vec<u32>, String> {
        let Value::Array(items) = self.value else {
            return self.expected("a list of token ids");
        };
        let name = self.name;
        items
            .iter()
            .map(|value| Field { name, value }.integer())
            .collect()
    }

    fn biases(&self) -> Result<Vec<(u32, f32)>, String> {
        let Value::Object(entries) = self.value else {
            return self.expected("a map from token id to number");
        };
        entries
            .iter()
            .map(|(token, value)| {
                let name = format!("{}[{token:?}]", self.name);
                let bias = Field { name: &name, value }.float()?;
                match token.parse() {
                    Ok(token) => Ok((token, bias)),
                    Err(_) => Err(format!("{name}: the key is not a token id")),
                }
            })
            .collect()
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

/// A value as it goes into an error text: cut, because it may be as long as the request.
struct Excerpt<'a>(&'a Value);

impl std::fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const MAX_CHARS: usize = 64;
        match self.0 {
            Value::Array(items) => write!(f, "a list of {}", items.len()),
            Value::Object(entries) => write!(f, "a map of {}", entries.len()),
            Value::String(text) if text.chars().count() > MAX_CHARS => {
                let start: String = text.chars().take(MAX_CHARS).collect();
                write!(f, "{start:?}...")
            }
            value => value.fmt(f),
        }
    }
}
