//! Parses `options` of a call: sampling parameters by Ollama's names.
//!
//! Other options are ignored, as in Ollama. Those of the runner, such as `num_ctx`, have no counterpart here: one pool
//! of KV memory serves prompts of all lengths.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::chat::call::UNLIMITED;
use souffleur_base::error::FieldError;
use souffleur_base::field::Field;
use souffleur_model::generation::GenerationConfig;
use souffleur_state::request_limits::RequestLimits;
use souffleur_state::sampling::{SamplingParams, SetParam};

pub(super) const NAME: &str = "options";
const REPEAT_PENALTY: &str = "repeat_penalty";
/// Ollama's names of sampling parameters, and those of this engine.
const NAMES: [(&str, &str); 8] = [
    ("temperature", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    (REPEAT_PENALTY, "repetition_penalty"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("stop", "stop"),
];
/// Ollama's values of `num_predict` for no limit, and for as many tokens as the context holds.
const NO_LIMIT: [i64; 2] = [-1, -2];
/// Ollama's seed for a random one.
const RANDOM_SEED: i64 = -1;

/// Reads the options. Parameters that are absent have the model's defaults.
pub(super) fn read(
    fields: &mut Fields,
    defaults: &GenerationConfig,
    limits: &RequestLimits,
) -> Result<SamplingParams, ApiError> {
    let mut options = fields.object(NAME)?;
    options.default_to("temperature", defaults.temperature.map(Into::into));
    options.default_to("top_k", defaults.top_k.map(Into::into));
    options.default_to("top_p", defaults.top_p.map(Into::into));
    options.default_to("min_p", defaults.min_p.map(Into::into));
    options.default_to(REPEAT_PENALTY, defaults.repetition_penalty.map(Into::into));
    let mut sampling = SamplingParams {
        max_new_tokens: max_new_tokens(&mut options)?,
        sampling_seed: seed(&mut options)?,
        ..SamplingParams::default()
    };
    for (name, own_name) in NAMES {
        let Some(raw) = options.take_raw(name) else {
            continue;
        };
        let path = path(name);
        // litellm sends OpenAI's `frequency_penalty` by this name, in which 0 is off.
        if name == REPEAT_PENALTY && raw.shallow(&path)?.as_f64() == Some(0.0) {
            continue;
        }
        let set = SetParam {
            params: &mut sampling,
            name: own_name,
            limits,
        };
        let renamed = |error: FieldError| {
            let text = error.to_string().replacen(own_name, &path, 1);
            FieldError::new(path.as_str(), text)
        };
        raw.parse_with(&path, set)?.map_err(renamed)?;
    }
    Ok(sampling)
}

fn path(name: &str) -> String {
    format!("{NAME}.{name}")
}

fn max_new_tokens(options: &mut Fields) -> Result<u32, ApiError> {
    let Some(raw) = options.take_raw("num_predict") else {
        return Ok(UNLIMITED);
    };
    let path = path("num_predict");
    let value = raw.shallow(&path)?;
    if value
        .as_i64()
        .is_some_and(|number| NO_LIMIT.contains(&number))
    {
        return Ok(UNLIMITED);
    }
    let field = Field::new(&path, &value);
    field.token_limit().map_err(|_| {
        let wanted = "a whole number of at least 0, or -1 or -2 for no limit";
        field.must_be(wanted).into()
    })
}

/// `None` for a random seed.
fn seed(options: &mut Fields) -> Result<Option<u64>, ApiError> {
    let Some(raw) = options.take_raw("seed") else {
        return Ok(None);
    };
    let path = path("seed");
    let value = raw.shallow(&path)?;
    if value.as_i64() == Some(RANDOM_SEED) {
        return Ok(None);
    }
    Ok(Some(Field::new(&path, &value).seed()?))
}
