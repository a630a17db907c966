//! Parses the body of `POST /v1/messages`.

use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use super::messages::{self, Conversation};
use super::system::HeaderFilter;
use super::{thinking, tools};
use crate::budget::Charges;
use crate::call::CallLimits;
use crate::constraint;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::foreign;
use crate::openai::Common;
use crate::openai::chat::call::{Call, template_kwargs};
use crate::openai::chat::reasoning::Reasoning;
use crate::openai::json_values::missing;
use crate::raw::Raw;
use souffleur_base::error::FieldError;
use souffleur_model::text::TextModel;
use souffleur_request::{ChatPrompt, ToolUse};
use souffleur_state::request_limits::RequestLimits;
use souffleur_state::sampling::{SamplingParams, SetParam};

/// The tokenizer and the setting that affect the parsing of a call.
#[derive(Clone, Copy)]
pub(super) struct ParseOptions<'a> {
    pub(super) tokenizer: Option<&'a TextModel>,
    /// Headers in the system prompt that change with every request are left out.
    pub(super) drops_headers: bool,
}

/// The fields of a call that determine its prompt, for generating and for counting tokens.
pub(super) struct PromptFields {
    conversation: Conversation,
    tools: Option<Box<RawValue>>,
    usage: Option<Arc<ToolUse>>,
    template_kwargs: serde_json::Map<String, Value>,
    shows_thinking: bool,
    schema: Option<Raw>,
}

impl PromptFields {
    pub(super) fn read(fields: &mut Fields, options: ParseOptions<'_>) -> Result<Self, ApiError> {
        let tools = tools::read(fields)?;
        let mut template_kwargs = template_kwargs(fields)?;
        let shows_thinking = thinking::read(fields, &mut template_kwargs)?;
        let schema = thinking::read_output(fields, &mut template_kwargs)?;
        let has_tools = tools.prompt.is_some();
        let takes_late_system = options
            .tokenizer
            .is_none_or(|tokenizer| tokenizer.takes_late_system(has_tools));
        let mut filter = HeaderFilter::new(options.drops_headers);
        let conversation = messages::read(fields, takes_late_system, &mut filter)?;
        filter.count();
        Ok(Self {
            conversation,
            tools: tools.prompt,
            usage: tools.usage,
            template_kwargs,
            shows_thinking,
            schema,
        })
    }

    /// The prompt to generate from. If the last message is the assistant's, it is continued.
    fn into_prompt(self) -> Result<ChatPrompt, ApiError> {
        let continues = self.conversation.ends_with_assistant();
        if continues && self.conversation.ends_with_calls() {
            let text =
                "messages ends with a tool_use, which cannot be continued: send its tool_result";
            return Err(ApiError::field("messages", text));
        }
        Ok(self.into_prompt_with(continues))
    }

    /// The prompt whose tokens are counted, which may end with calls.
    pub(super) fn into_counted_prompt(self) -> ChatPrompt {
        let continues = self.conversation.ends_with_assistant();
        let has_calls = self.conversation.ends_with_calls();
        let mut prompt = self.into_prompt_with(continues && !has_calls);
        prompt.add_generation_prompt = !continues;
        prompt
    }

    fn into_prompt_with(self, continues: bool) -> ChatPrompt {
        ChatPrompt {
            messages: Value::Array(self.conversation.into_messages()),
            tools: self.tools,
            template_kwargs: self.template_kwargs,
            add_generation_prompt: !continues,
            continue_final_message: continues,
            known: None,
            images: Vec::new(),
        }
    }
}

pub(super) struct MessagesCall {
    pub(super) chat: Call,
    pub(super) shows_thinking: bool,
}

impl MessagesCall {
    /// Parses a call. Returns it with the charges for the memory of its values.
    pub(super) fn parse(
        mut fields: Fields,
        limits: CallLimits<'_>,
        options: ParseOptions<'_>,
    ) -> Result<(Self, Charges), ApiError> {
        let max_tokens = fields.token_limit("max_tokens")?;
        let max_tokens = max_tokens.ok_or_else(|| missing("max_tokens".to_owned(), "a number"))?;
        let stop = stop_sequences(&mut fields, limits.request)?;
        let mut prompt_fields = PromptFields::read(&mut fields, options)?;
        let mut common = Common::read(&mut fields, "msg_", constraint::of_openai_call, limits)?;
        if common.sampling.n != 1 {
            return Err(ApiError::unsupported("n"));
        }
        if let Some(stop) = stop {
            common.sampling.stop = stop;
        }
        common.limit_length(max_tokens)?;
        if let Some(schema) = prompt_fields.schema.take() {
            if common.constraint.is_some() {
                let text = "output_config.format and another field, such as regex or ebnf, constrain the answer: send one of them";
                return Err(ApiError::field("output_config.format", text));
            }
            common.constraint = constraint::of_schema(&mut fields, thinking::SCHEMA, schema)?;
        }
        foreign::refuse(&mut fields, &[])?;
        let (shows_thinking, tools) = (prompt_fields.shows_thinking, prompt_fields.usage.clone());
        let chat = Call {
            common,
            prompt: prompt_fields.into_prompt()?,
            tools,
            reasoning: Reasoning::Streamed,
            logprobs: None,
            prediction: None,
        };
        let call = Self {
            chat,
            shows_thinking,
        };
        Ok((call, fields.into_charges()))
    }
}

fn stop_sequences(
    fields: &mut Fields,
    limits: &RequestLimits,
) -> Result<Option<Arc<[String]>>, ApiError> {
    const NAME: &str = "stop_sequences";
    let Some(raw) = fields.take_raw(NAME) else {
        return Ok(None);
    };
    let mut params = SamplingParams::default();
    let set = SetParam {
        params: &mut params,
        name: "stop",
        limits,
    };
    let renamed = |error: FieldError| {
        let text = error.to_string().replacen("stop", NAME, 1);
        FieldError::new(NAME, text)
    };
    raw.parse_with(NAME, set)?.map_err(renamed)?;
    Ok(Some(params.stop))
}
