//! Reading a call.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::messages;
use crate::field::{Field, Shallow};
use crate::request::{ChatPrompt, GenerateRequest, Prompt};
use crate::server::budget::BodyCharge;
use crate::server::call::{CallLimits, check_size, samples_of};
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::openai::{Common, alternatives, refusals};
use crate::state::sampling::LogprobWish;

/// Stands for as many tokens as the context has room for: the engine clips it.
pub(super) const UNLIMITED: u32 = u32::MAX;

/// One call: a conversation to be continued, once or several times.
pub(super) struct Call {
    pub(super) common: Common,
    pub(super) prompt: ChatPrompt,
    pub(super) logprobs: Option<u32>,
}

impl Call {
    /// Reads a call. Its conversation keeps what it is charged for, as long as that is in memory.
    pub(super) fn parse(
        mut fields: Fields,
        limits: CallLimits<'_>,
    ) -> Result<(Self, BodyCharge), ApiError> {
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
            continue_final_message: false,
        };
        let call = Self {
            common,
            prompt,
            logprobs,
        };
        Ok((call, fields.into_trees_charge()))
    }

    /// The requests of its samples.
    pub(super) fn into_requests(self) -> Vec<GenerateRequest> {
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
