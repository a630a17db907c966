//! Parses the body of `/generate`, SGLang's `GenerateReqInput`.

mod images;
mod vectors;

use std::sync::Arc;

use super::reply::ReplyForm;
use crate::budget::Charges;
use crate::call::{
    CallLimits, Prompts, check_samples, check_size, read_rid, samples_of, texts, tokens,
};
use crate::constraint;
use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::foreign;
use crate::images::Wanted;
use crate::options::Scheduling;
use crate::raw::Raw;
use crate::spelling::Spelling;
use souffleur_base::field::{self, Field, Shallow, check_count};
use souffleur_base::ids::RequestId;
use souffleur_request::{GenerateRequest, Prompt};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::grammar::Constraint;
use souffleur_state::request_limits::RequestLimits;
use souffleur_state::sampling::LogprobWish;
use souffleur_state::sampling::{self, ReadParams, SamplingParams};

/// One `/generate` call: a request for each prompt and sample, ordered by prompt.
pub(crate) struct NativeCall {
    pub(crate) requests: Vec<GenerateRequest>,
    /// The answer is a list.
    pub(crate) is_batch: bool,
    pub(crate) stream: bool,
    pub(crate) charges: Charges,
    wants_token_texts: bool,
    /// The images of the requests that have URLs.
    wanted: Vec<Wanted>,
}

impl NativeCall {
    /// Parses a call. A field with one value for all prompts is parsed once and shared.
    pub(crate) fn parse(mut fields: Fields, limits: CallLimits<'_>) -> Result<Self, ApiError> {
        let prompts = prompts(&mut fields, limits)?;
        let mut wanted = Vec::new();
        let prompts = images::read(&mut fields, prompts, &mut wanted)?;
        let count = PromptCount::of(&prompts);
        let sampling = sampling_params(&mut fields, count, limits.request)?;
        let samples: usize = sampling.iter().map(|(params, _)| params.n as usize).sum();
        check_size("n", count.get(), samples, limits)?;
        let is_batch = count != PromptCount::One || samples > 1;
        let logprobs = logprob_requests(&mut fields, count, limits.request)?;
        let namespaces = namespaces(&mut fields, count, limits.request)?;
        let predictions = predictions(&mut fields, count)?;
        let rids = rids(&mut fields, count)?;
        let Scheduling { priority, timeouts } = Scheduling::table().read(&mut fields, limits)?;
        let stream = fields.flag("stream")?;
        let wants_token_texts = fields.flag("return_text_in_logprobs")?;
        // Unknown fields are ignored, as in SGLang, whose own clients and routers send some.
        foreign::refuse(&mut fields, &[])?;
        refuse_misplaced(&mut fields)?;
        let mut requests = Vec::with_capacity(samples);
        let per_prompt = prompts
            .into_vec()
            .into_iter()
            .zip(sampling)
            .zip(logprobs)
            .zip(namespaces)
            .zip(predictions)
            .zip(rids);
        for (((((prompt, (sampling, constraint)), logprobs), namespace), prediction), rid) in
            per_prompt
        {
            let request = GenerateRequest {
                rid,
                prompt,
                sampling,
                logprobs,
                constraint,
                pooling: None,
                parsing: None,
                prediction,
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
            charges: fields.into_charges(),
            wants_token_texts,
            wanted,
        })
    }

    /// The images that are to be fetched before the call is served.
    pub(crate) fn take_wanted(&mut self) -> Vec<Wanted> {
        std::mem::take(&mut self.wanted)
    }

    /// The requests, all streamed regardless of `stream`, and their charges.
    pub(crate) fn into_streamed(self) -> (Vec<GenerateRequest>, Charges) {
        let streamed = |request| GenerateRequest {
            is_streaming: true,
            ..request
        };
        let requests = self.requests.into_iter().map(streamed);
        (requests.collect(), self.charges)
    }

    pub(crate) fn forms(&self, spelling: &Spelling) -> Vec<ReplyForm> {
        let spelling = self.wants_token_texts.then_some(spelling);
        let form = |request: &GenerateRequest| ReplyForm::new(request.logprobs.as_ref(), spelling);
        self.requests.iter().map(form).collect()
    }
}

/// How many prompts a call has, which decides how its other fields are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PromptCount {
    /// One prompt outside a list.
    One,
    /// A list of this length, possibly 1.
    List(usize),
}

impl PromptCount {
    fn of(prompts: &Prompts) -> Self {
        match prompts {
            Prompts::One(_) => Self::One,
            Prompts::List(prompts) => Self::List(prompts.len()),
        }
    }

    fn get(self) -> usize {
        match self {
            Self::One => 1,
            Self::List(len) => len,
        }
    }

    /// The values of a field for each prompt: one value for all prompts, which is parsed once, or a list of values.
    fn each<T: Clone>(
        self,
        fields: &mut Fields,
        name: &'static str,
        default: T,
        read: impl Fn(&str, &Raw) -> Result<T, ApiError>,
    ) -> Result<Vec<T>, ApiError> {
        self.each_of(name, fields.take_raw(name), default, read)
    }

    /// As [`Self::each`], for a field that has already been taken from the body.
    fn each_of<T: Clone>(
        self,
        name: &'static str,
        raw: Option<Raw>,
        default: T,
        mut read: impl FnMut(&str, &Raw) -> Result<T, ApiError>,
    ) -> Result<Vec<T>, ApiError> {
        match (self, raw) {
            (_, None) => Ok(vec![default; self.get()]),
            (Self::List(_), Some(raw)) if raw.is_list() => {
                self.read_list(name, &raw, default, read)
            }
            (_, Some(raw)) => Ok(vec![read(name, &raw)?; self.get()]),
        }
    }

    fn read_list<T: Clone>(
        self,
        name: &'static str,
        raw: &Raw,
        default: T,
        mut read: impl FnMut(&str, &Raw) -> Result<T, ApiError>,
    ) -> Result<Vec<T>, ApiError> {
        let (items, found) = raw.items(name, self.get())?;
        if found != self.get() {
            let text = format!("{name} has {found} entries, must have {}", self.get());
            return Err(ApiError::field(name, format!("{text}, one per prompt")));
        }
        let read = |item: &Raw| {
            if item.is_null() {
                Ok(default.clone())
            } else {
                read(name, item)
            }
        };
        items.iter().map(read).collect()
    }
}

fn prompts(fields: &mut Fields, limits: CallLimits<'_>) -> Result<Prompts, ApiError> {
    let (text, ids) = (fields.take_raw("text"), fields.take_raw("input_ids"));
    let embeds = fields.take_raw(vectors::NAME);
    let prompts = match (text, ids, embeds.filter(|raw| !raw.has_no_effect())) {
        (None, None, Some(embeds)) => vectors::read(fields, &embeds, limits)?,
        (text, _, Some(_)) => {
            let other = if text.is_some() { "text" } else { "input_ids" };
            let text = format!("{other} and input_embeds are both given: send one of them");
            return Err(ApiError::field(vectors::NAME, text));
        }
        (Some(text), None, None) if text.is_list() => texts("text", &text, limits)?,
        (Some(text), None, None) => match text.shallow("text")? {
            Shallow::Text(text) => Prompts::One(Prompt::Text(text.into())),
            other => {
                return Err(Field::new("text", &other)
                    .must_be("a string or a list of strings")
                    .into());
            }
        },
        (None, Some(ids), None) => tokens(fields, "input_ids", &ids, limits)?,
        (Some(_), Some(_), None) => {
            let text = "text and input_ids are both given: send one of them";
            return Err(ApiError::field("input_ids", text));
        }
        (None, None, None) => {
            return Err(ApiError::field(
                "text",
                "text is missing: send text, input_ids or input_embeds",
            ));
        }
    };
    match PromptCount::of(&prompts) {
        PromptCount::List(0) => Err(ApiError::field(
            "text",
            "the list of prompts is empty: send at least one",
        )),
        _ => Ok(prompts),
    }
}

type Sampling = (SamplingParams, Option<Arc<Constraint>>);

fn sampling_params(
    fields: &mut Fields,
    count: PromptCount,
    limits: &RequestLimits,
) -> Result<Vec<Sampling>, ApiError> {
    const NAME: &str = "sampling_params";
    let raw = fields.take_raw(NAME);
    count.each_of(NAME, raw, Sampling::default(), |name, raw| {
        let params = plain_params(name, raw, limits)?;
        let constraint = constraint::of_sampling_params(fields, name, raw)?;
        Ok((params, constraint))
    })
}

/// Reads the sampling parameters, except constraints.
fn plain_params(name: &str, raw: &Raw, limits: &RequestLimits) -> Result<SamplingParams, ApiError> {
    if !raw.is_object() {
        return Err(Field::new(name, &raw.shallow(name)?)
            .must_be("an object")
            .into());
    }
    let read = ReadParams {
        limits,
        read_elsewhere: &sampling::CONSTRAINTS,
    };
    let sampling = raw.parse_with(name, read)??;
    check_samples(sampling.n)?;
    Ok(sampling)
}

fn refuse_misplaced(fields: &mut Fields) -> Result<(), ApiError> {
    for name in sampling::CONSTRAINTS {
        let raw = fields.take_raw(name);
        if raw.is_some_and(|raw| !raw.has_no_effect()) {
            let text = format!("{name} is a sampling parameter: send it in sampling_params");
            return Err(ApiError::field(name, text));
        }
    }
    Ok(())
}

fn logprob_requests(
    fields: &mut Fields,
    count: PromptCount,
    limits: &RequestLimits,
) -> Result<Vec<Option<LogprobWish>>, ApiError> {
    let wanted = count.each(fields, "return_logprob", false, |name, raw| {
        Ok(Field::new(name, &raw.shallow(name)?).boolean()?)
    })?;
    let starts = count.each(fields, "logprob_start_len", None, logprob_start)?;
    let tops = count.each(fields, "top_logprobs_num", 0, |name, raw| {
        Ok(Field::new(name, &raw.shallow(name)?).integer()?)
    })?;
    let chosen = chosen_tokens(fields, count, limits)?;
    let each = starts.into_iter().zip(tops).zip(chosen);
    let each = each.map(|((start, top), token_ids)| LogprobWish {
        start,
        top,
        token_ids,
    });
    let requests = wanted.into_iter().zip(each);
    let requests: Vec<_> = requests
        .map(|(wanted, request)| wanted.then_some(request))
        .collect();
    // Checked here, because the answer's memory is charged before the engine checks the request.
    for request in requests.iter().flatten() {
        let (top, limit) = (request.top, limits.max_logprobs);
        if top as usize > limit {
            let text = format!("top_logprobs_num asks for {top}, limit is {limit}: ask for fewer");
            return Err(ApiError::field("top_logprobs_num", text));
        }
    }
    Ok(requests)
}

fn logprob_start(name: &str, raw: &Raw) -> Result<Option<u32>, ApiError> {
    let value = raw.shallow(name)?;
    match Field::new(name, &value).integer::<i64>()? {
        -1 => Ok(None),
        start => match u32::try_from(start) {
            Ok(start) => Ok(Some(start)),
            Err(_) => Err(Field::new(name, &value)
                .must_be("a position in the prompt, or -1 for none")
                .into()),
        },
    }
}

/// `token_ids_logprob`: one list for all prompts, or a list of lists.
fn chosen_tokens(
    fields: &mut Fields,
    count: PromptCount,
    limits: &RequestLimits,
) -> Result<Vec<Arc<[u32]>>, ApiError> {
    const NAME: &str = "token_ids_logprob";
    let Some(raw) = fields.take_raw(NAME) else {
        return Ok(vec![Arc::default(); count.get()]);
    };
    let list = |_: &str, raw: &Raw| -> Result<Arc<[u32]>, ApiError> {
        if raw.is_list() {
            let (_, len) = raw.items(NAME, 0)?;
            check_count(NAME, len, limits.max_logprobs, "ids")?;
        }
        fields::token_ids(NAME, raw).map(Arc::from)
    };
    match raw.first_of_list() {
        Some(b'[') => count.read_list(NAME, &raw, Arc::default(), list),
        _ => Ok(vec![list(NAME, &raw)?; count.get()]),
    }
}

/// `prediction`: a guess of the output's text for each prompt.
fn predictions(fields: &mut Fields, count: PromptCount) -> Result<Vec<Option<Arc<str>>>, ApiError> {
    const NAME: &str = "prediction";
    let bytes = fields.peek(NAME).map_or(0, |raw| raw.bytes().len());
    fields.charge_request_bytes(bytes)?;
    count.each(fields, NAME, None, |name, raw| {
        let text = field::text(name, raw.shallow(name)?)?;
        Ok(Some(text).filter(|text| !text.is_empty()).map(Arc::from))
    })
}

fn namespaces(
    fields: &mut Fields,
    count: PromptCount,
    limits: &RequestLimits,
) -> Result<Vec<Namespace>, ApiError> {
    let text = |name: &str, raw: &Raw| -> Result<Option<Arc<str>>, ApiError> {
        let text = field::text(name, raw.shallow(name)?)?;
        Ok(Some(text.into()))
    };
    let keys = count.each(fields, "extra_key", None, text)?;
    let salts = count.each(fields, "cache_salt", None, text)?;
    let namespace = |(key, salt): (Option<Arc<str>>, Option<Arc<str>>)| {
        let namespace = Namespace::new(key.as_deref(), salt.as_deref());
        namespace.validate(limits).map_err(ApiError::from)?;
        Ok(namespace)
    };
    keys.into_iter().zip(salts).map(namespace).collect()
}

/// One id for each prompt: from the client's list, its single id (with `-i` appended for a list of prompts), or random.
fn rids(fields: &mut Fields, count: PromptCount) -> Result<Vec<RequestId>, ApiError> {
    const NAME: &str = "rid";
    match (count, fields.take_raw(NAME)) {
        (_, None) => Ok((0..count.get()).map(|_| RequestId::random()).collect()),
        (PromptCount::List(_), Some(raw)) if raw.is_list() => {
            let read = |name: &str, raw: &Raw| read_rid(raw.shallow(name)?).map(Some);
            let rids = count.read_list(NAME, &raw, None, read)?;
            let required = |name: Option<RequestId>| {
                name.ok_or_else(|| {
                    Field::new(NAME, &Shallow::Null)
                        .must_be("a string for each prompt")
                        .into()
                })
            };
            rids.into_iter().map(required).collect()
        }
        (PromptCount::One, Some(raw)) => Ok(vec![read_rid(raw.shallow(NAME)?)?]),
        (PromptCount::List(count), Some(raw)) => {
            let base = read_rid(raw.shallow(NAME)?)?;
            let name = |index| RequestId::new(format!("{base}-{index}"));
            Ok((0..count).map(name).collect())
        }
    }
}

#[cfg(test)]
mod tests;
