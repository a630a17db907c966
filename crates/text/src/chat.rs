//! The messages of a chat, brought into the shape that templates expect.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::calls::CallForm;
use crate::tool_place::ToolPlace;

/// The values that a chat template is rendered with.
#[derive(Clone, Copy, Debug)]
pub struct ChatPrompt<'a> {
    /// OpenAI's messages: a list of objects with `role` and `content` (text, or a list of text parts).
    pub messages: &'a Value,
    /// OpenAI's tools as JSON, if any. The template sees every field, in this order, and every digit.
    pub tools: Option<&'a RawValue>,
    /// Ends with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Ends inside the last message, after its content, as transformers' parameter of this name has it.
    pub continue_final_message: bool,
    /// The request's `chat_template_kwargs`: variables for the template, such as `enable_thinking`.
    pub template_kwargs: Option<&'a Map<String, Value>>,
}

impl<'a> ChatPrompt<'a> {
    /// A prompt for the assistant's answer to these messages, without tools.
    pub fn new(messages: &'a Value) -> Self {
        Self {
            messages,
            tools: None,
            add_generation_prompt: true,
            continue_final_message: false,
            template_kwargs: None,
        }
    }
}

/// The form in which a template expects messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) content: ContentFormat,
    /// It has a role for developers; others take them for the system.
    pub(super) developers: bool,
    pub(super) calls: CallForm,
    pub(super) thoughts: ThoughtForm,
    pub(super) tools: ToolPlace,
    /// Instructions may come after a user's message. Found by a probe.
    pub(super) late_system: bool,
}

/// How a template reads the thoughts of an earlier answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThoughtForm {
    /// In addition to the content.
    WithContent,
    /// A message with calls has thoughts or content: it refuses both.
    InsteadOfContent,
}

impl ThoughtForm {
    /// Looks for the check of the template.
    fn of(template: &str) -> Self {
        let source: String = template.split_whitespace().collect();
        if source.contains("message.contentandmessage.thinking") {
            Self::InsteadOfContent
        } else {
            Self::WithContent
        }
    }
}

impl Expected {
    /// Detects the form in the source of a template.
    pub(super) fn of(template: &str) -> Self {
        Self {
            content: ContentFormat::of(template),
            developers: ["'developer'", "\"developer\""]
                .iter()
                .any(|role| template.contains(role)),
            calls: CallForm::of(template),
            thoughts: ThoughtForm::of(template),
            tools: ToolPlace::of(template),
            late_system: false,
        }
    }
}

/// How a template reads `content`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentFormat {
    /// As text: lists of parts are joined for it.
    Text,
    /// It loops over parts itself.
    Parts,
}

impl ContentFormat {
    /// Looks for a loop over something called `content`.
    pub(super) fn of(template: &str) -> Self {
        let loops_over_content = template.split("{%").skip(1).any(|rest| {
            let tag = rest.split("%}").next().unwrap_or_default();
            let tag = tag.trim_matches(['-', '+', ' ', '\t', '\n']);
            let Some((_, iterated)) = tag
                .strip_prefix("for ")
                .and_then(|tag| tag.split_once(" in "))
            else {
                return false;
            };
            let iterated = iterated.split([' ', '|']).next().unwrap_or_default();
            let iterated = iterated.trim_end_matches(['\'', '"', ']']);
            iterated.ends_with("content")
        });
        if loops_over_content {
            Self::Parts
        } else {
            Self::Text
        }
    }
}
