//! `POST /v1/chat/completions`.

use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde::Serialize;
use serde_json::{Map, Value};

use super::logprobs::ChatLogprobs;
use super::wire::{Head, Matched, UsageReport};
use super::{
    Common, alternatives, apply_model_defaults, matched_stop, messages, refusals, unix_now_s,
};
use crate::field::{Field, Shallow};
use crate::request::{ChatPrompt, GenerateRequest, Prompt, Usage};
use crate::server::body::JsonBody;
use crate::server::budget::BodyCharge;
use crate::server::call::{CallLimits, check_size, samples_of};
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::lanes::{Lane, finish_all};
use crate::server::spelling::Spelling;
use crate::server::sse::{self, Chunks, Render};
use crate::server::state::AppState;
use crate::server::transcript::{News, Transcript};
use crate::server::whole;
use crate::state::sampling::LogprobWish;

/// Stands for as many tokens as the context has room for: the engine clips it.
const UNLIMITED: u32 = u32::MAX;

/// Answers `POST /v1/chat/completions`.
pub(in crate::server) async fn create(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let loaded = state.serving()?;
    let mut fields = body.0;
    apply_model_defaults(&mut fields, &loaded.engine.model().generation);
    let limits = CallLimits {
        max_requests: state.config().max_batch_requests,
        websocket: None,
        request: loaded.engine.request_limits(),
    };
    let (call, charge) = Call::parse(fields, limits)?;
    let stream = call.common.stream;
    let head = Head {
        id: call.common.id.to_string(),
        object: if stream {
            "chat.completion.chunk"
        } else {
            "chat.completion"
        },
        created: unix_now_s(),
        model: loaded.engine.model().served_model_name.clone(),
    };
    let mut writer = Writer::new(&call, head, loaded.spelling.clone());
    let lanes = Lane::open_all(&state, call.into_requests())?;
    let lanes = Lane::with_charge(lanes, charge);
    if stream {
        return sse::respond(lanes, writer, state.config().sse_keep_alive_s).await;
    }
    let answer_charge = Lane::answer_charge(&lanes);
    let transcripts = finish_all(lanes).await?;
    let write = move |transcripts: Vec<Transcript>| {
        let choices = transcripts.into_iter().enumerate();
        let choices = choices.map(|(index, transcript)| writer.message(index, transcript));
        let choices: Vec<Choice> = choices.collect();
        let response = writer.head.with(choices, Some(writer.usage()));
        serde_json::to_vec(&response).expect("responses have string keys only")
    };
    Ok(whole::respond(transcripts, answer_charge, write).await)
}

struct Call {
    common: Common,
    prompt: ChatPrompt,
    logprobs: Option<u32>,
}

impl Call {
    /// Reads a call. Its conversation keeps what it is charged for, as long as that is in memory.
    fn parse(mut fields: Fields, limits: CallLimits<'_>) -> Result<(Self, BodyCharge), ApiError> {
        refusals::tools(&mut fields)?;
        refusals::modalities(&mut fields)?;
        fields.refuse(&[
            "continue_final_message",
            "chat_template",
            "echo",
            "audio",
            "web_search_options",
        ])?;
        let messages = messages::read(fields.take_tree("messages")?)?;
        let mut common = Common::read(&mut fields, "chatcmpl", limits)?;
        check_size("n", 1, common.sampling.n as usize, limits)?;
        let max_tokens = fields.token_limit("max_tokens")?;
        let max_tokens = fields.token_limit("max_completion_tokens")?.or(max_tokens);
        common.limit_length(max_tokens.unwrap_or(UNLIMITED))?;
        let logprobs = logprobs(&mut fields)?;
        let template_kwargs = template_kwargs(&mut fields)?;
        let add_generation_prompt = fields
            .optional_flag("add_generation_prompt")?
            .unwrap_or(true);
        let prompt = ChatPrompt {
            messages,
            tools: None,
            template_kwargs,
            add_generation_prompt,
        };
        let call = Self {
            common,
            prompt,
            logprobs,
        };
        Ok((call, fields.into_trees_charge()))
    }

    fn into_requests(self) -> Vec<GenerateRequest> {
        let Common {
            id,
            sampling,
            namespace,
            priority,
            timeouts,
            stream,
            ..
        } = self.common;
        let wish = |top| LogprobWish {
            start: None,
            top,
            token_ids: Arc::default(),
        };
        let request = GenerateRequest {
            rid: id,
            prompt: Prompt::Chat(Arc::new(self.prompt)),
            sampling,
            logprobs: self.logprobs.map(wish),
            constraint: None,
            parsing: None,
            namespace,
            priority,
            timeouts,
            is_streaming: stream,
        };
        samples_of(request).collect()
    }
}

fn template_kwargs(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    const NAME: &str = "chat_template_kwargs";
    match fields.take_tree(NAME)? {
        None => Ok(Map::new()),
        Some(Value::Object(kwargs)) => Ok(kwargs),
        Some(other) => Err(Field::new(NAME, &Shallow::of(&other))
            .must_be("an object")
            .into()),
    }
}

/// `logprobs` and `top_logprobs` as the number of alternatives, `None` for no log probabilities.
fn logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let wanted = fields.flag("logprobs")?;
    let top = fields.take("top_logprobs")?;
    let top = top
        .map(|value| alternatives("top_logprobs", &value))
        .transpose()?;
    match (wanted, top) {
        (false, None | Some(0)) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, Some(top)) => Err(Field::new("top_logprobs", &Shallow::Number(top.into()))
            .must_be("used with logprobs: true")
            .into()),
    }
}

/// A choice of a whole response.
#[derive(Serialize)]
struct Choice {
    index: usize,
    message: Message,
    #[serde(flatten)]
    details: ChoiceDetails,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: String,
    refusal: Option<String>,
}

/// A choice of a chunk.
#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    delta: MessageDelta,
    #[serde(flatten)]
    details: ChoiceDetails,
}

#[derive(Default, Serialize)]
struct MessageDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

/// What whole choices and chunks have in common.
#[derive(Default, Serialize)]
struct ChoiceDetails {
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    matched_stop: Option<Matched>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

/// Writes choices, whole or chunk by chunk.
struct Writer {
    head: Head,
    spelling: Spelling,
    usages: Vec<Usage>,
    logprobs: bool,
    return_token_ids: bool,
    include_usage: bool,
    continuous_usage: bool,
}

impl Writer {
    fn new(call: &Call, head: Head, spelling: Spelling) -> Self {
        Self {
            head,
            spelling,
            usages: vec![Usage::default(); call.common.sampling.n as usize],
            logprobs: call.logprobs.is_some(),
            return_token_ids: call.common.return_token_ids,
            include_usage: call.common.include_usage,
            continuous_usage: call.common.continuous_usage,
        }
    }

    fn message(&mut self, index: usize, transcript: Transcript) -> Choice {
        let (content, details) = self.split(index, transcript.into_news());
        let message = Message {
            role: "assistant",
            content,
            refusal: None,
        };
        Choice {
            index,
            message,
            details,
        }
    }

    fn split(&mut self, index: usize, news: News) -> (String, ChoiceDetails) {
        let News { delta, end } = news;
        self.usages[index] = delta.usage;
        let logprobs = self
            .logprobs
            .then(|| ChatLogprobs::new(&delta.output_logprobs, &self.spelling));
        let details = ChoiceDetails {
            logprobs,
            finish_reason: end.as_ref().map(|end| end.reason.as_str()),
            matched_stop: end.and_then(|end| matched_stop(end.reason)),
            token_ids: self.return_token_ids.then_some(delta.tokens),
        };
        (delta.text, details)
    }

    /// The counts of one choice so far, for its chunk.
    fn usage_so_far(&self, index: usize) -> Option<UsageReport> {
        self.continuous_usage
            .then(|| UsageReport::of([self.usages[index]], 1))
    }

    fn usage(&self) -> UsageReport {
        UsageReport::of(self.usages.iter().copied(), self.usages.len())
    }
}

impl Render for Writer {
    fn start(&mut self, out: &mut Chunks) {
        for index in 0..self.usages.len() {
            let delta = MessageDelta {
                role: Some("assistant"),
                content: Some(String::new()),
            };
            let choice = ChunkChoice {
                index,
                delta,
                details: ChoiceDetails::default(),
            };
            out.data(&self.head.with(vec![choice], None));
        }
    }

    fn news(&mut self, index: usize, news: News, out: &mut Chunks) {
        if news.is_empty() {
            return;
        }
        let (content, mut details) = self.split(index, news);
        let usage = self.usage_so_far(index);
        let content = (!content.is_empty()).then_some(content);
        let reason = details.finish_reason.take();
        let matched_stop = details.matched_stop.take();
        let has_tokens = details
            .token_ids
            .as_ref()
            .is_some_and(|tokens| !tokens.is_empty());
        if content.is_some()
            || has_tokens
            || details.logprobs.as_ref().is_some_and(|l| !l.is_empty())
        {
            let delta = MessageDelta {
                role: None,
                content,
            };
            out.data(&self.head.with(
                vec![ChunkChoice {
                    index,
                    delta,
                    details,
                }],
                usage,
            ));
        }
        if reason.is_some() {
            let details = ChoiceDetails {
                finish_reason: reason,
                matched_stop,
                ..ChoiceDetails::default()
            };
            let delta = MessageDelta::default();
            out.data(&self.head.with(
                vec![ChunkChoice {
                    index,
                    delta,
                    details,
                }],
                usage,
            ));
        }
    }

    fn end(&mut self, out: &mut Chunks) {
        if self.include_usage {
            out.data(
                &self
                    .head
                    .with(Vec::<ChunkChoice>::new(), Some(self.usage())),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{events, fields, head, limits, news, spelling};
    use super::*;
    use crate::request::FinishReason;

    fn parse(value: Value) -> Result<Call, ApiError> {
        let mut fields = fields(value);
        if fields.text("no_messages").is_none() {
            fields.put("messages", json!([{"role": "user", "content": "hi"}]));
        }
        Call::parse(fields, limits()).map(|(call, _)| call)
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

    #[test]
    fn the_length_is_unlimited_unless_either_name_limits_it() {
        let length = |value: Value| call(value).common.sampling.max_new_tokens;
        assert_eq!(length(json!({})), UNLIMITED);
        assert_eq!(length(json!({"max_tokens": 5})), 5);
        assert_eq!(
            length(json!({"max_tokens": 5, "max_completion_tokens": 6})),
            6
        );
    }

    #[test]
    fn tools_are_refused_and_their_absence_is_not() {
        let none = json!({"tools": [], "tool_choice": "none", "functions": null});
        assert!(parse(none).is_ok());
        refuses(
            json!({"tools": [{}]}),
            "tools is not supported yet: leave it out or send null",
        );
        let choice = "tool_choice is not supported yet: leave it out or send null";
        refuses(json!({"tool_choice": "required"}), choice);
    }

    #[test]
    fn tools_of_which_none_is_chosen_ask_for_nothing() {
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        let read = call(json!({"tools": tools, "tool_choice": "none"}));
        assert_eq!(read.prompt.tools, None);
        assert!(parse(json!({"functions": tools, "function_call": "none"})).is_ok());
        let text = "tools is not supported yet: leave it out or send null";
        refuses(json!({"tools": tools, "tool_choice": "auto"}), text);
        refuses(json!({"tools": tools, "tool_choice": "required"}), text);
    }

    #[test]
    fn text_is_the_only_modality() {
        assert!(parse(json!({"modalities": ["text"]})).is_ok());
        assert!(parse(json!({"modalities": []})).is_ok());
        let text = "modalities is not supported yet: leave it out or send null";
        for modalities in [json!(["audio"]), json!(["text", "audio"]), json!("text")] {
            refuses(json!({ "modalities": modalities }), text);
        }
    }

    #[test]
    fn templates_of_the_client_and_echoes_are_refused() {
        let template = "chat_template is not supported yet: leave it out or send null";
        refuses(json!({"chat_template": "{{ x }}"}), template);
        let echo = "echo is not supported yet: leave it out or send null";
        refuses(json!({"echo": true}), echo);
        assert!(parse(json!({"echo": false, "chat_template": null})).is_ok());
    }

    #[test]
    fn alternatives_need_log_probabilities() {
        assert_eq!(
            call(json!({"logprobs": true, "top_logprobs": 2})).logprobs,
            Some(2)
        );
        assert_eq!(call(json!({"logprobs": true})).logprobs, Some(0));
        assert_eq!(call(json!({"top_logprobs": 0})).logprobs, None);
        let text = "top_logprobs is 2, must be used with logprobs: true";
        refuses(json!({"top_logprobs": 2}), text);
    }

    #[test]
    fn a_message_has_content_reason_and_log_probabilities() {
        let call = call(json!({"logprobs": true, "return_token_ids": true}));
        let mut writer = Writer::new(&call, head(), spelling());
        let mut transcript = Transcript::default();
        transcript.push(news("a", Some(FinishReason::Length { max_new_tokens: 1 })));
        let choice = writer.message(0, transcript);
        let expected = json!({
            "index": 0,
            "message": {"role": "assistant", "content": "a", "refusal": null},
            "logprobs": {"content": [{
                "token": "a", "logprob": -0.5, "bytes": [97],
                "top_logprobs": [{"token": "x", "logprob": -0.25, "bytes": [120]}],
            }]},
            "finish_reason": "length", "matched_stop": null, "token_ids": [97],
        });
        assert_eq!(serde_json::to_value(choice).expect("plain data"), expected);
    }

    #[test]
    fn a_stream_has_role_content_reason_and_usage_in_this_order() {
        let options = json!({"include_usage": true, "continuous_usage_stats": true});
        let call = call(json!({"stream": true, "stream_options": options}));
        let mut writer = Writer::new(&call, head(), spelling());
        let mut out = Chunks::default();
        writer.start(&mut out);
        writer.news(0, news("a", None), &mut out);
        writer.news(0, news("b", Some(FinishReason::StopToken(7))), &mut out);
        writer.end(&mut out);
        let events = events(out);
        let delta = |index: usize| &events[index]["choices"][0]["delta"];
        assert_eq!(events.len(), 5);
        assert_eq!(delta(0), &json!({"role": "assistant", "content": ""}));
        assert_eq!(delta(1), &json!({"content": "a"}));
        assert_eq!(delta(2), &json!({"content": "b"}));
        assert_eq!(events[2]["choices"][0]["finish_reason"], Value::Null);
        assert_eq!(events[2]["usage"]["completion_tokens"], 1);
        assert_eq!(delta(3), &json!({}));
        assert_eq!(events[3]["choices"][0]["finish_reason"], "stop");
        assert_eq!(events[4]["usage"]["total_tokens"], 6);
    }
}
