//! Defines a chat prompt, and detects in a template's source the form of messages that it expects.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::calls::CallForm;
use crate::tool_place::ToolPlace;

/// The type of a part that is an image.
pub(super) const IMAGE: &str = "image";

#[derive(Clone, Copy, Debug)]
pub struct ChatPrompt<'a> {
    /// OpenAI's messages: a list of objects with `role` and `content` (text, or a list of text parts).
    pub messages: &'a Value,
    /// OpenAI's tools as JSON, if any. The template sees all fields in this order, and all digits of numbers.
    pub tools: Option<&'a RawValue>,
    /// The prompt ends with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The prompt ends inside the last message, after its content, as in transformers.
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

/// The forms of messages, calls and tools that a template expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forms {
    pub(super) content: ContentFormat,
    /// Whether the template knows the role `developer`. For other templates the role becomes `system`.
    pub(super) knows_developer: bool,
    pub(super) calls: CallForm,
    pub(super) reasoning: ReasoningForm,
    pub(super) tools: ToolPlace,
    /// Whether a probe found that system messages may come after a user's message.
    pub(super) late_system: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReasoningForm {
    /// A message may have both reasoning and content.
    WithContent,
    /// The template rejects messages with calls that have both reasoning and content.
    InsteadOfContent,
}

impl ReasoningForm {
    fn of(template: &str) -> Self {
        let source: String = template.split_whitespace().collect();
        if source.contains("message.contentandmessage.thinking") {
            Self::InsteadOfContent
        } else {
            Self::WithContent
        }
    }
}

impl Forms {
    pub(super) fn of(template: &str) -> Self {
        Self {
            content: ContentFormat::of(template),
            knows_developer: ["'developer'", "\"developer\""]
                .iter()
                .any(|role| template.contains(role)),
            calls: CallForm::of(template),
            reasoning: ReasoningForm::of(template),
            tools: ToolPlace::of(template),
            late_system: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentFormat {
    Text,
    /// The template loops over the parts of a content.
    Parts,
    /// It does, and the parts may be images.
    PartsWithImages,
}

impl ContentFormat {
    /// The format of messages with images; `None` if the template takes text only.
    pub(super) fn with_images(self) -> Option<Self> {
        match self {
            Self::Text => None,
            Self::Parts | Self::PartsWithImages => Some(Self::PartsWithImages),
        }
    }

    /// Looks for a loop over an expression that ends in `content`.
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
