//! `POST /v1/completions`: OpenAI's plain text completions.

use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde::Serialize;

use super::answer::{self, ReceivedCall, WriteChoices};
use super::logprobs::{LegacyLogprobs, TextOffset};
use super::wire::{Extension, Head, Matched, Response, UsageReport};
use super::{Common, alternatives, matched_stop, suffix};
use crate::body::JsonBody;
use crate::budget::Charges;
use crate::call::{CallLimits, Prompts, check_size, samples_of, texts, tokens};
use crate::constraint;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::foreign;
use crate::lanes::Lane;
use crate::spelling::Spelling;
use crate::sse::{Chunks, Render};
use crate::state::AppState;
use crate::transcript::{Transcript, Update};
use souffleur_base::field::{Field, Shallow};
use souffleur_base::ids::RequestId;
use souffleur_request::{GenerateRequest, Prompt, Usage};
use souffleur_state::sampling::LogprobWish;

pub(crate) use super::docs::completions as operation;

/// OpenAI's default.
pub(super) const DEFAULT_MAX_TOKENS: u32 = 16;
/// Names by which other servers take images with plain prompts, in addition to those that every endpoint refuses.
const OF_IMAGES: [&str; 4] = ["image_url", "images", "multi_modal_data", "multimodal_data"];

pub(crate) async fn create(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let received = ReceivedCall::new(&state, body)?;
    let loaded = received.loaded;
    let (call, charges) = Call::parse(received.fields, received.limits)?;
    suffix::check(&call.prompts, call.echo, loaded)?;
    let head = Head::new(&call.common.id, "text_completion", loaded);
    call.check_echo(&loaded.spelling, state.config().max_body_bytes)?;
    let writer = Writer::new(&call, head, loaded.spelling.clone());
    let (stream, requests) = (call.common.stream, call.into_requests());
    let lanes = Lane::with_charges(Lane::open_all(&state, requests)?, charges);
    answer::respond(&state, lanes, stream, writer).await
}

struct Call {
    common: Common,
    prompts: Vec<Prompt>,
    echo: bool,
    logprobs: Option<u32>,
}

impl Call {
    fn parse(mut fields: Fields, limits: CallLimits<'_>) -> Result<(Self, Charges), ApiError> {
        let prompts = prompts(&mut fields, limits)?;
        let prompts = suffix::around(prompts, &mut fields)?;
        let constraint = constraint::of_openai_call;
        let mut common = Common::read(&mut fields, "cmpl-", constraint, limits)?;
        let n = common.sampling.n;
        match fields.integer::<u32>("best_of")? {
            Some(best_of) if best_of != 1 && best_of != n => {
                return Err(ApiError::unsupported("best_of"));
            }
            _ => (),
        }
        check_size(
            "n",
            prompts.len(),
            prompts.len().saturating_mul(n as usize),
            limits,
        )?;
        let max_tokens = fields.token_limit("max_tokens")?;
        if max_tokens.is_none() {
            // The name in chat completions, `max_completion_tokens`, is only accepted in addition to `max_tokens`.
            fields.refuse(&["max_completion_tokens"])?;
        }
        common.limit_length(max_tokens.unwrap_or(DEFAULT_MAX_TOKENS))?;
        let logprobs = fields
            .take("logprobs")?
            .filter(|value| *value != Shallow::Bool(false));
        let logprobs = logprobs
            .map(|value| alternatives("logprobs", &value))
            .transpose()?;
        let echo = fields.flag("echo")?;
        foreign::refuse_bare_prompts(&mut fields)?;
        foreign::refuse(&mut fields, &[])?;
        fields.refuse(&OF_IMAGES)?;
        let call = Self {
            common,
            prompts,
            echo,
            logprobs,
        };
        Ok((call, fields.into_charges()))
    }

    /// Refuses echoes that are longer in total than a request body may be, since each sample repeats its prompt.
    fn check_echo(&self, spelling: &Spelling, limit_bytes: usize) -> Result<(), ApiError> {
        if !self.echo {
            return Ok(());
        }
        let samples = self.common.sampling.n as usize;
        let most = limit_bytes / samples;
        let mut bytes = 0;
        for prompt in &self.prompts {
            bytes += match prompt {
                Prompt::Tokens(tokens) => spelling.text_len_up_to(tokens, most),
                other => other.text_bytes(),
            };
            if bytes > most {
                let text = format!("echo of {samples} samples is longer than {limit_bytes} bytes");
                return Err(ApiError::field(
                    "echo",
                    format!("{text}, which is the limit: ask for fewer samples or no echo"),
                ));
            }
        }
        Ok(())
    }

    fn into_requests(self) -> Vec<GenerateRequest> {
        let Common {
            id,
            sampling,
            namespace,
            scheduling,
            stream,
            constraint,
            ..
        } = self.common;
        let start = self.echo.then_some(0);
        let logprobs = self.logprobs.map(|top| LogprobWish {
            start,
            top,
            token_ids: Arc::default(),
        });
        let is_batch = self.prompts.len() > 1;
        let requests = self.prompts.into_iter().enumerate().map(|(index, prompt)| {
            let rid = if is_batch {
                RequestId::new(format!("{id}-{index}"))
            } else {
                id.clone()
            };
            GenerateRequest {
                rid,
                prompt,
                sampling: sampling.clone(),
                logprobs: logprobs.clone(),
                constraint: constraint.clone(),
                pooling: None,
                parsing: None,
                prediction: None,
                namespace: namespace.clone(),
                priority: scheduling.priority,
                timeouts: scheduling.timeouts,
                is_streaming: stream,
            }
        });
        requests.flat_map(samples_of).collect()
    }
}

fn prompts(fields: &mut Fields, limits: CallLimits<'_>) -> Result<Vec<Prompt>, ApiError> {
    const NAME: &str = "prompt";
    let Some(raw) = fields.take_raw(NAME) else {
        let text = "prompt is missing: send a string";
        return Err(ApiError::field(NAME, text));
    };
    let prompts = match raw.first_of_list() {
        Some(b'"' | b']') => texts(NAME, &raw, limits)?,
        Some(_) => tokens(fields, NAME, &raw, limits)?,
        None => match raw.shallow(NAME)? {
            Shallow::Text(text) => Prompts::One(Prompt::Text(text.into())),
            other => {
                let wanted = "a string, token ids, or a list of either";
                return Err(Field::new(NAME, &other).must_be(wanted).into());
            }
        },
    };
    let prompts = prompts.into_vec();
    if prompts.is_empty() {
        Err(ApiError::field(
            "prompt",
            "the list of prompts is empty: send at least one",
        ))
    } else {
        Ok(prompts)
    }
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<LegacyLogprobs>,
    finish_reason: Option<&'static str>,
    matched_stop: Option<Matched>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

struct Writer {
    head: Head,
    spelling: Spelling,
    /// Each choice's prompt, until the prompt has been echoed.
    echoes: Vec<Option<Arc<str>>>,
    prompt_offsets: Vec<TextOffset>,
    output_offsets: Vec<TextOffset>,
    usages: Vec<Usage>,
    n: usize,
    /// Whether log probabilities include alternatives; `None` without log probabilities.
    top: Option<bool>,
    return_token_ids: bool,
    return_cached_tokens_details: bool,
    include_usage: bool,
    continuous_usage: bool,
}

impl Writer {
    fn new(call: &Call, head: Head, spelling: Spelling) -> Self {
        let n = call.common.sampling.n as usize;
        let echo = |prompt: &Prompt| match prompt {
            _ if !call.echo => None,
            Prompt::Text(text) => Some(text.clone()),
            Prompt::Tokens(tokens) => Some(spelling.text(tokens).into()),
            Prompt::Chat(_) | Prompt::Infill(_) => None,
            Prompt::Vectors(_) | Prompt::Images(_) | Prompt::TextImages(_) => None,
        };
        let echoes = call.prompts.iter().map(echo);
        let echoes: Vec<Option<Arc<str>>> = echoes
            .flat_map(|echo| std::iter::repeat_n(echo, n))
            .collect();
        Self {
            prompt_offsets: echoes.iter().map(|_| TextOffset::default()).collect(),
            output_offsets: echoes.iter().map(|echo| after(echo.as_deref())).collect(),
            usages: vec![Usage::default(); echoes.len()],
            echoes,
            head,
            spelling,
            n,
            top: call.logprobs.map(|top| top > 0),
            return_token_ids: call.common.return_token_ids,
            return_cached_tokens_details: call.common.return_cached_tokens_details,
            include_usage: call.common.include_usage,
            continuous_usage: call.common.continuous_usage,
        }
    }

    fn choice(&mut self, index: usize, update: Update) -> Choice {
        let Update { delta, end } = update;
        self.usages[index] = delta.usage;
        let echo = self.echoes[index].take();
        let logprobs = self.top.map(|top| {
            let mut lists = LegacyLogprobs::new(top);
            let (prompt, output) = (&mut self.prompt_offsets, &mut self.output_offsets);
            lists.extend(&delta.input_logprobs, &self.spelling, &mut prompt[index]);
            lists.extend(&delta.output_logprobs, &self.spelling, &mut output[index]);
            lists
        });
        Choice {
            index,
            text: format!("{}{}", echo.as_deref().unwrap_or_default(), delta.text),
            logprobs,
            finish_reason: end.as_ref().map(|end| end.reason.as_str()),
            matched_stop: end.and_then(|end| matched_stop(end.reason)),
            token_ids: self.return_token_ids.then_some(delta.tokens),
        }
    }

    fn extension(&self) -> Option<Extension> {
        self.return_cached_tokens_details
            .then(|| Extension::of_cached_tokens(&self.usages))
    }

    fn usage_so_far(&self, index: usize) -> Option<UsageReport> {
        self.continuous_usage
            .then(|| UsageReport::of([self.usages[index]], 1))
    }

    fn usage(&self) -> UsageReport {
        UsageReport::of(self.usages.iter().copied(), self.n)
    }
}

fn after(echo: Option<&str>) -> TextOffset {
    TextOffset::after(echo.map_or(0, |echo| echo.chars().count()))
}

impl WriteChoices for Writer {
    type Choice = Choice;

    fn whole_choice(&mut self, index: usize, transcript: Transcript) -> Choice {
        self.choice(index, transcript.into_update())
    }

    fn whole_answer(&self, choices: Vec<Choice>) -> Response<'_, Choice> {
        let whole = self.head.with(choices, Some(self.usage()));
        whole.extended(self.extension())
    }
}

impl Render for Writer {
    fn update(&mut self, index: usize, update: Update, out: &mut Chunks) {
        if update.is_empty() {
            return;
        }
        let choice = self.choice(index, update);
        let usage = self.usage_so_far(index);
        out.data(&self.head.with(vec![choice], usage));
    }

    fn end(&mut self, out: &mut Chunks) {
        if let Some(extension) = self.extension() {
            let chunk = self.head.with(Vec::<Choice>::new(), None);
            out.data(&chunk.extended(Some(extension)));
        }
        if self.include_usage {
            out.data(&self.head.with(Vec::<Choice>::new(), Some(self.usage())));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{events, fields, head, limits, spelling, update};
    use super::*;
    use souffleur_request::FinishReason;

    fn parse(value: Value) -> Result<Call, ApiError> {
        Call::parse(fields(value), limits()).map(|(call, _)| call)
    }

    fn call(value: Value) -> Call {
        parse(value).unwrap_or_else(|error| panic!("{error}"))
    }

    #[track_caller]
    fn refuses(value: Value, expected: &str) {
        assert_eq!(
            parse(value).err().map(|error| error.to_string()).as_deref(),
            Some(expected)
        );
    }

    fn rids(value: Value) -> Vec<String> {
        let requests = call(value).into_requests();
        requests
            .into_iter()
            .map(|request| request.rid.to_string())
            .collect()
    }

    #[test]
    fn prompts_come_in_four_shapes() {
        assert_eq!(rids(json!({"prompt": "a", "rid": "r"})), ["r"]);
        assert_eq!(
            rids(json!({"prompt": ["a", "b"], "rid": "r"})),
            ["r-0", "r-1"]
        );
        assert_eq!(rids(json!({"prompt": [1, 2], "rid": "r"})), ["r"]);
        let many = json!({"prompt": [[1], [2]], "rid": "r", "n": 2});
        assert_eq!(rids(many), ["r-0-0", "r-0-1", "r-1-0", "r-1-1"]);
        refuses(json!({}), "prompt is missing: send a string");
        refuses(
            json!({"prompt": []}),
            "the list of prompts is empty: send at least one",
        );
        refuses(
            json!({"prompt": {}}),
            "prompt is an object, must be a string, token ids, or a list of either",
        );
        refuses(
            json!({"prompt": "a", "best_of": 3}),
            "best_of is not supported yet: leave it out or send null",
        );
        refuses(
            json!({"prompt": "a", "logprobs": 21}),
            "logprobs is 21, limit is 20: ask for fewer",
        );
    }

    #[test]
    fn a_choice_echoes_its_prompt_and_offsets_continue_after_it() {
        let call = call(json!({"prompt": "hé", "echo": true, "logprobs": 0}));
        let mut writer = Writer::new(&call, head(), spelling());
        let choice = writer.choice(0, update("ab", Some(FinishReason::StopToken(2))));
        let expected = json!({
            "index": 0, "text": "héab", "finish_reason": "stop", "matched_stop": 2,
            "logprobs": {
                "tokens": ["a", "b"], "token_logprobs": [-0.5, -0.5], "top_logprobs": null,
                "text_offset": [2, 3],
            },
        });
        assert_eq!(serde_json::to_value(choice).expect("plain data"), expected);
    }

    #[test]
    fn echoes_are_bounded_before_they_are_made() {
        let check = |value: Value| call(value).check_echo(&spelling(), 8);
        assert_eq!(
            check(json!({"prompt": "abcd", "echo": true, "n": 2})),
            Ok(())
        );
        assert_eq!(
            check(json!({"prompt": [97, 98, 99, 100], "echo": true, "n": 2})),
            Ok(())
        );
        for prompt in [
            json!("abcde"),
            json!([97, 98, 99, 100, 101]),
            json!(["abc", "de"]),
        ] {
            assert_eq!(check(json!({"prompt": prompt, "n": 2})), Ok(()));
            let error =
                check(json!({"prompt": prompt, "echo": true, "n": 2})).expect_err("too long");
            assert!(error.to_string().contains("longer than 8 bytes"), "{error}");
        }
    }

    #[test]
    fn chunks_have_the_usage_of_their_choice_if_requested() {
        let options = json!({"continuous_usage_stats": true});
        let call = call(json!({"prompt": "p", "stream": true, "stream_options": options, "n": 2}));
        let mut writer = Writer::new(&call, head(), spelling());
        let mut out = Chunks::default();
        writer.update(1, update("ab", None), &mut out);
        writer.end(&mut out);
        let events = events(out);
        assert_eq!(events.len(), 1);
        assert_eq!(events[0]["usage"]["completion_tokens"], 2);
        assert_eq!(events[0]["usage"]["total_tokens"], 7);
    }

    #[test]
    fn a_stream_echoes_once_and_ends_with_the_usage() {
        let options = json!({"include_usage": true});
        let call =
            call(json!({"prompt": "p", "echo": true, "stream": true, "stream_options": options}));
        let mut writer = Writer::new(&call, head(), spelling());
        let mut out = Chunks::default();
        writer.update(0, update("a", None), &mut out);
        writer.update(0, Update::default(), &mut out);
        let end = FinishReason::StopString("x".to_owned());
        writer.update(0, update("b", Some(end)), &mut out);
        writer.end(&mut out);
        let events = events(out);
        let [first, last, usage] = events.as_slice() else {
            panic!("three events: {events:?}")
        };
        assert_eq!(first["choices"][0]["text"], "pa");
        assert_eq!(first["choices"][0]["finish_reason"], Value::Null);
        assert_eq!(last["choices"][0]["text"], "b");
        assert_eq!(last["choices"][0]["matched_stop"], "x");
        assert_eq!(usage["choices"], json!([]));
        assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
    }
}
