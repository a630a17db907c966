//! The formats in which a model writes calls and reasoning, as its template and vocabulary tell.

use super::TextModel;
use crate::state::output::{ReasoningFormat, ToolFormat};

impl TextModel {
    /// Returns the format of tool calls that the model's chat template asks for; `None` if it shows none that is known.
    pub fn tool_format(&self) -> Option<ToolFormat> {
        let tool_call = ToolFormat::Hermes.opening();
        if self.has_token(ToolFormat::Mistral.opening()) {
            return Some(ToolFormat::Mistral);
        }
        if self.template_mentions(tool_call) {
            return Some(match self.template_mentions("<function=") {
                true => ToolFormat::Qwen3Coder,
                false => ToolFormat::Hermes,
            });
        }
        // Llama 4's templates show calls as Python; those of Llama 3 ask for JSON with parameters.
        let asks_for_json = self.template_mentions("\"parameters\": ");
        match self.has_token(ToolFormat::Llama3.opening()) && self.template_mentions("tools") {
            true if asks_for_json => Some(ToolFormat::Llama3),
            true => Some(ToolFormat::Pythonic),
            false => None,
        }
    }

    /// Returns the format of reasoning that the model's vocabulary or chat template has; `None` if it has none that is
    /// known.
    pub fn reasoning_format(&self) -> Option<ReasoningFormat> {
        let knows = |format: ReasoningFormat| {
            let closing = format.closing();
            self.has_token(closing) || self.template_mentions(closing)
        };
        [ReasoningFormat::Think, ReasoningFormat::MistralThink]
            .into_iter()
            .find(|format| knows(*format))
    }

    fn has_token(&self, token: &str) -> bool {
        self.added_token_id(token).is_some()
    }

    fn template_mentions(&self, text: &str) -> bool {
        let template = self.template.as_ref();
        template.is_some_and(|template| template.mentions(text))
    }
}
