//! Parses the body of `POST /infill`.

use std::sync::Arc;
use std::time::Duration;

use crate::budget::Charges;
use crate::call::{CallLimits, check_size, read_rid, samples_of};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::foreign;
use crate::line_limit::LineLimit;
use crate::openai::json_values::missing;
use crate::options::Options;
use crate::raw::Raw;
use souffleur_base::error::Plain;
use souffleur_base::field::{self, Field, check_bytes, check_count};
use souffleur_base::ids::RequestId;
use souffleur_request::{GenerateRequest, InfillFile, InfillPrompt, Prompt};
use souffleur_state::request_limits::RequestLimits;
use souffleur_state::sampling::{MAX_SAMPLES, SamplingParams, SetParam};

pub(super) const PREFIX: &str = "input_prefix";
const SUFFIX: &str = "input_suffix";
const FILES: &str = "input_extra";
const RESPONSE_FIELDS: &str = "response_fields";
const REPEAT_PENALTY: &str = "repeat_penalty";
const LENGTH: &str = "n_predict";
const SAMPLES: &str = "n_cmpl";

/// Editors send some dozen files.
pub(super) const MAX_FILES: usize = 1024;
pub(super) const MAX_RESPONSE_FIELDS: usize = 64;
pub(super) const MAX_RESPONSE_FIELD_BYTES: usize = 256;
/// llama.cpp's name for a file without one.
const NO_NAME: &str = "tmp";
/// llama.cpp's defaults, for values that neither the call nor the model's `generation_config.json` has.
pub(super) const DEFAULTS: [(&str, f64); 4] = [
    ("temperature", 0.8),
    ("top_k", 40.0),
    ("top_p", 0.95),
    ("min_p", 0.05),
];
/// llama.cpp's number for a random seed, besides -1.
const RANDOM_SEED: u64 = u32::MAX as u64;

pub(super) struct Call {
    pub(super) request: GenerateRequest,
    pub(super) line_limit: LineLimit,
    /// Paths such as `timings/prompt_ms` of the answer's fields; all fields if it is empty.
    pub(super) response_fields: Vec<String>,
    pub(super) return_tokens: bool,
}

impl Call {
    pub(super) fn parse(
        mut fields: Fields,
        limits: CallLimits<'_>,
    ) -> Result<(Self, Charges), ApiError> {
        let prompt = prompt(&mut fields)?;
        fields.string("model")?;
        let rid = match fields.take("rid")? {
            Some(value) => read_rid(value)?,
            None => RequestId::new(format!("infill-{}", RequestId::random())),
        };
        let options = Options::table().read(&mut fields, limits)?;
        let sampling = sampling(&mut fields, limits.request)?;
        check_size(SAMPLES, 1, sampling.n as usize, limits)?;
        let line_limit = line_limit(&mut fields)?;
        let response_fields = response_fields(&mut fields)?;
        let return_tokens = fields.flag("return_tokens")?;
        let call = Self {
            request: GenerateRequest {
                rid,
                sampling,
                namespace: options.namespace(limits)?,
                priority: options.scheduling.priority,
                timeouts: options.scheduling.timeouts,
                is_streaming: fields.flag("stream")?,
                ..GenerateRequest::new(prompt)
            },
            line_limit,
            response_fields,
            return_tokens,
        };
        ignore_samplers(&mut fields)?;
        foreign::refuse(&mut fields, &["json_schema"])?;
        Ok((call, fields.into_charges()))
    }

    pub(super) fn requests(&self) -> Vec<GenerateRequest> {
        samples_of(self.request.clone()).collect()
    }
}

/// Reads the fields of llama.cpp that llama.vim sends to `/v1/chat/completions`, and returns the limit in `n_predict`.
/// The other two have no effect there.
pub(crate) fn read_chat_fields(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    ignore_samplers(fields)?;
    response_fields(fields)?;
    let longest = fields.integer(LENGTH)?;
    at_least_minus_one(LENGTH, longest)
}

fn prompt(fields: &mut Fields) -> Result<Prompt, ApiError> {
    Ok(Prompt::from(InfillPrompt {
        prefix: required(fields, PREFIX)?,
        suffix: required(fields, SUFFIX)?,
        line_start: fields.string("prompt")?.unwrap_or_default().into(),
        files: Some(files(fields)?),
        may_be_cut: true,
    }))
}

fn required(fields: &mut Fields, name: &str) -> Result<Arc<str>, ApiError> {
    let text = fields.string(name)?;
    let text = text.ok_or_else(|| missing(name.to_owned(), "a string"))?;
    Ok(text.into())
}

fn files(fields: &mut Fields) -> Result<Vec<InfillFile>, ApiError> {
    let Some(raw) = fields.take_raw(FILES) else {
        return Ok(Vec::new());
    };
    let (items, len) = raw.items(FILES, MAX_FILES)?;
    check_count(FILES, len, MAX_FILES, "files")?;
    let file = |(index, item): (usize, &Raw)| {
        let path = format!("{FILES}[{index}]");
        let mut file = fields.nested(&path, item)?;
        let mut text = |name: &str| -> Result<Option<String>, ApiError> {
            let value = file.take(name)?;
            let text = value.map(|value| field::text(&format!("{path}.{name}"), value));
            Ok(text.transpose()?)
        };
        Ok(InfillFile {
            name: text("filename")?.unwrap_or_else(|| NO_NAME.to_owned()),
            text: text("text")?.ok_or_else(|| missing(format!("{path}.text"), "a string"))?,
        })
    };
    items.iter().enumerate().map(file).collect()
}

fn sampling(fields: &mut Fields, limits: &RequestLimits) -> Result<SamplingParams, ApiError> {
    const NAMES: [&str; 12] = [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        REPEAT_PENALTY,
        "logit_bias",
        "stop",
        "stop_token_ids",
        "ignore_eos",
    ];
    for (name, default) in DEFAULTS {
        fields.default_to(name, Some(default.into()));
    }
    let mut sampling = SamplingParams::default();
    for name in NAMES {
        let Some(raw) = fields.take_raw(name) else {
            continue;
        };
        if name == REPEAT_PENALTY {
            sampling.repetition_penalty = repeat_penalty(&raw)?;
            continue;
        }
        let set = SetParam {
            params: &mut sampling,
            name,
            limits,
        };
        raw.parse_with(name, set)??;
    }
    let seed = fields.seed("seed")?;
    sampling.sampling_seed = seed.filter(|seed| ![RANDOM_SEED, u64::MAX].contains(seed));
    let [longest, other] = [LENGTH, "max_tokens"].map(|name| {
        let longest = fields.integer(name)?;
        at_least_minus_one(name, longest)
    });
    sampling.max_new_tokens = longest?.or(other?).unwrap_or(u32::MAX);
    sampling.n = fields.integer(SAMPLES)?.unwrap_or(1);
    if !(1..=MAX_SAMPLES).contains(&sampling.n) {
        let text = format!(
            "{SAMPLES} is {}, limits are 1 to {MAX_SAMPLES}: send several requests for more samples",
            sampling.n
        );
        return Err(ApiError::field(SAMPLES, text));
    }
    Ok(sampling)
}

/// llama.cpp's list of samplers and their order. This server applies those whose parameters are set, in its own order.
fn ignore_samplers(fields: &mut Fields) -> Result<(), ApiError> {
    const NAME: &str = "samplers";
    match fields.take_raw(NAME) {
        Some(raw) if !raw.is_list() && !raw.is_text() => {
            let value = raw.shallow(NAME)?;
            let error = Field::new(NAME, &value).must_be("a list of names");
            Err(error.into())
        }
        _ => Ok(()),
    }
}

fn repeat_penalty(raw: &Raw) -> Result<f32, ApiError> {
    let value = raw.shallow(REPEAT_PENALTY)?;
    let penalty = Field::new(REPEAT_PENALTY, &value).float()?;
    if penalty > 0.0 && penalty <= 2.0 {
        return Ok(penalty);
    }
    let text = format!(
        "{REPEAT_PENALTY} is {}, must be in (0, 2]: use 1 for none",
        Plain(penalty)
    );
    Err(ApiError::field(REPEAT_PENALTY, text))
}

/// `None` for -1, which is llama.cpp's number for no limit.
fn at_least_minus_one(name: &str, value: Option<i64>) -> Result<Option<u32>, ApiError> {
    match value {
        None | Some(-1) => Ok(None),
        Some(value) if value < 0 => {
            let text = format!("{name} is {value}, must be at least -1: use -1 for no limit");
            Err(ApiError::field(name, text))
        }
        Some(value) => Ok(Some(u32::try_from(value).unwrap_or(u32::MAX))),
    }
}

fn line_limit(fields: &mut Fields) -> Result<LineLimit, ApiError> {
    const TIME: &str = "t_max_predict_ms";
    let after = at_least_minus_one(TIME, fields.integer(TIME)?)?;
    let after = after.filter(|after| *after > 0);
    let indent: Option<u32> = fields.integer("n_indent")?;
    Ok(LineLimit {
        after: after.map(|after| Duration::from_millis(after.into())),
        indent: indent.unwrap_or(0) as usize,
    })
}

fn response_fields(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let Some(raw) = fields.take_raw(RESPONSE_FIELDS) else {
        return Ok(Vec::new());
    };
    let (items, len) = raw.items(RESPONSE_FIELDS, MAX_RESPONSE_FIELDS)?;
    check_count(RESPONSE_FIELDS, len, MAX_RESPONSE_FIELDS, "paths")?;
    let path = |(index, item): (usize, &Raw)| {
        let name = format!("{RESPONSE_FIELDS}[{index}]");
        let path = field::text(&name, item.shallow(&name)?)?;
        check_bytes(&name, &path, MAX_RESPONSE_FIELD_BYTES)?;
        Ok(path)
    };
    items.iter().enumerate().map(path).collect()
}

#[cfg(test)]
mod tests;
