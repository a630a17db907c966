//! Parses the body of a chat completion call.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::messages;
use super::prediction;
use super::reasoning::Reasoning;
use super::tools::CallTools;
use crate::budget::Charges;
use crate::call::{CallLimits, check_size, samples_of};
use crate::constraint;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::foreign;
use crate::llama_cpp;
use crate::openai::json_values::must_be;
use crate::openai::{Common, alternatives, refusals};
use souffleur_request::{ChatPrompt, GenerateRequest, OutputParsing, ToolUse};

/// Sets no limit on output tokens: the engine clips the value to the context length.
pub(crate) const UNLIMITED: u32 = u32::MAX;

/// One call: a conversation to be continued, once or several times.
pub(crate) struct Call {
    pub(crate) common: Common,
    pub(crate) prompt: ChatPrompt,
    pub(crate) tools: Option<Arc<ToolUse>>,
    pub(crate) reasoning: Reasoning,
    pub(crate) logprobs: Option<u32>,
    pub(crate) prediction: Option<Arc<str>>,
}

impl Call {
    /// Parses a call. Returns it with the charges for the memory of its values.
    pub(crate) fn parse(
        mut fields: Fields,
        limits: CallLimits<'_>,
    ) -> Result<(Self, Charges), ApiError> {
        refusals::modalities(&mut fields)?;
        let messages = messages::read(&mut fields)?;
        let ending = Ending::read(&mut fields, &messages)?;
        let tools = CallTools::read(&mut fields)?;
        let constraint = constraint::of_openai_call;
        let mut common = Common::read(&mut fields, "chatcmpl-", constraint, limits)?;
        check_size("n", 1, common.sampling.n as usize, limits)?;
        let max_tokens = fields.token_limit("max_tokens")?;
        let max_tokens = fields.token_limit("max_completion_tokens")?.or(max_tokens);
        let max_tokens = llama_cpp::read_chat_fields(&mut fields)?.or(max_tokens);
        common.limit_length(max_tokens.unwrap_or(UNLIMITED))?;
        let logprobs = logprobs(&mut fields)?;
        let prediction = prediction::read(&mut fields)?;
        let mut template_kwargs = template_kwargs(&mut fields)?;
        let reasoning = Reasoning::read(&mut fields, &mut template_kwargs)?;
        foreign::refuse(&mut fields, &[])?;
        let prompt = ChatPrompt {
            messages: Value::Array(messages),
            tools: tools.prompt,
            template_kwargs,
            add_generation_prompt: ending == Ending::AssistantTurn,
            continue_final_message: ending == Ending::InLastMessage,
            known: None,
            images: Vec::new(),
        };
        let call = Self {
            common,
            prompt,
            tools: tools.usage,
            reasoning,
            logprobs,
            prediction,
        };
        Ok((call, fields.into_charges()))
    }

    pub(crate) fn into_requests(self) -> Vec<GenerateRequest> {
        let parsing = self.parsing();
        let request = self
            .common
            .into_chat_request(self.prompt, self.logprobs, parsing);
        let request = GenerateRequest {
            prediction: self.prediction,
            ..request
        };
        samples_of(request).collect()
    }

    /// How the answers are parsed; `None` if they are text only.
    fn parsing(&self) -> Option<OutputParsing> {
        let separates_reasoning = self.reasoning != Reasoning::InText;
        let is_wanted = separates_reasoning || self.tools.is_some();
        is_wanted.then(|| OutputParsing {
            tools: self.tools.clone(),
            separates_reasoning,
        })
    }
}

/// Reads only the fields of a call that determine its prompt.
pub(crate) fn read_prompt(fields: &mut Fields) -> Result<ChatPrompt, ApiError> {
    fields.refuse(&["chat_template"])?;
    let messages = messages::read(fields)?;
    let ending = Ending::read(fields, &messages)?;
    let tools = CallTools::read(fields)?;
    let mut template_kwargs = template_kwargs(fields)?;
    Reasoning::read(fields, &mut template_kwargs)?;
    Ok(ChatPrompt {
        messages: Value::Array(messages),
        tools: tools.prompt,
        template_kwargs,
        add_generation_prompt: ending == Ending::AssistantTurn,
        continue_final_message: ending == Ending::InLastMessage,
        known: None,
        images: Vec::new(),
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The prompt ends with the beginning of the assistant's answer.
    AssistantTurn,
    /// The prompt ends after the last message.
    LastMessage,
    /// The prompt ends inside the last message, the assistant's, which is continued.
    InLastMessage,
}

impl Ending {
    fn read(fields: &mut Fields, messages: &[Value]) -> Result<Self, ApiError> {
        const CONTINUE: &str = "continue_final_message";
        const OPEN: &str = "add_generation_prompt";
        let opens = fields.optional_flag(OPEN)?;
        if !fields.flag(CONTINUE)? {
            return Ok(if opens.unwrap_or(true) {
                Self::AssistantTurn
            } else {
                Self::LastMessage
            });
        }
        if opens == Some(true) {
            let text = format!("{OPEN} and {CONTINUE} contradict each other: send one of them");
            return Err(ApiError::field(OPEN, text));
        }
        let refuse = |text: &str| Err(ApiError::field(CONTINUE, format!("{CONTINUE} {text}")));
        match messages.last() {
            Some(last) if last["role"] != "assistant" => {
                refuse("needs an assistant's message at the end of messages")
            }
            Some(last) if last.get("tool_calls").is_some() => {
                refuse("needs a last message without tool_calls: calls cannot be continued")
            }
            _ => Ok(Self::InLastMessage),
        }
    }
}

pub(crate) fn template_kwargs(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    const NAME: &str = "chat_template_kwargs";
    match fields.take_tree(NAME)? {
        None => Ok(Map::new()),
        Some(Value::Object(kwargs)) => Ok(kwargs),
        Some(other) => Err(must_be(NAME, &other, "an object")),
    }
}

/// Reads `logprobs` and `top_logprobs` as the number of alternatives; `None` means no log probabilities.
pub(crate) fn logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let wanted = fields.flag("logprobs")?;
    let top = fields.take("top_logprobs")?;
    let top = top
        .map(|value| alternatives("top_logprobs", &value))
        .transpose()?;
    match (wanted, top) {
        (false, None | Some(0)) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, Some(top)) => {
            let text = format!("top_logprobs is {top}, which needs logprobs: true");
            Err(ApiError::field("top_logprobs", text))
        }
    }
}
