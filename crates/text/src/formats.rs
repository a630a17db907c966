//! Detects the formats of a model's tool calls and reasoning in its template and vocabulary.

use super::TextModel;
use souffleur_output::output::{ReasoningFormat, ToolFormat};

const DEEPSEEK_SECTION: &str = "<｜tool▁calls▁begin｜>";

impl TextModel {
    pub fn tool_format(&self) -> Option<ToolFormat> {
        let tool_call = ToolFormat::Hermes.opening();
        if self.has_harmony_tokens() {
            return Some(ToolFormat::GptOss);
        }
        if self.template_mentions(DEEPSEEK_SECTION) {
            // V3 writes arguments in a Markdown code fence.
            return Some(if self.template_mentions("```json") {
                ToolFormat::DeepSeekV3
            } else {
                ToolFormat::DeepSeekV31
            });
        }
        let braced = ToolFormat::Gemma4.opening();
        if self.has_token(braced) && self.template_mentions(braced) {
            return Some(ToolFormat::Gemma4);
        }
        // The vocabulary may come from a base model that writes calls in another format.
        let list_closes = ToolFormat::Phi4Mini.closing();
        let tagged_list = if list_closes.is_some_and(|tag| self.has_token(tag)) {
            ToolFormat::Phi4Mini
        } else {
            ToolFormat::Granite
        };
        let of_vocabulary = [ToolFormat::Lfm2, ToolFormat::Mistral, tagged_list]
            .into_iter()
            .find(|format| self.has_token(format.opening()));
        let shows_other = |format: &ToolFormat| {
            self.template_mentions(tool_call) && !self.template_mentions(format.opening())
        };
        if let Some(format) = of_vocabulary.filter(|format| !shows_other(format)) {
            return Some(format);
        }
        if self.template_mentions(tool_call) {
            return Some(match self {
                _ if self.template_mentions("</arg_key><arg_value>") => ToolFormat::Glm47,
                _ if self.template_mentions("<arg_key>") => ToolFormat::Glm45,
                _ if self.template_mentions("<function=") => ToolFormat::Qwen3Coder,
                _ => ToolFormat::Hermes,
            });
        }
        // Llama 4's templates show calls in Python syntax, Llama 3's as JSON with `parameters`.
        let asks_for_json = self.template_mentions("\"parameters\": ");
        match self.has_token(ToolFormat::Llama3.opening()) && self.template_mentions("tools") {
            true if asks_for_json => Some(ToolFormat::Llama3),
            true => Some(ToolFormat::Pythonic),
            false => None,
        }
    }

    /// Detects the reasoning format by its end tag, in the chat template, else in the vocabulary.
    pub fn reasoning_format(&self) -> Option<ReasoningFormat> {
        if self.has_harmony_tokens() {
            return Some(ReasoningFormat::GptOss);
        }
        let formats = [
            ReasoningFormat::Think,
            ReasoningFormat::MistralThink,
            ReasoningFormat::Gemma4,
        ];
        let find = |has_tag: &dyn Fn(&str) -> bool| {
            let mut formats = formats.into_iter();
            formats.find(|format| has_tag(format.closing()))
        };
        find(&|tag| self.template_mentions(tag)).or_else(|| find(&|tag| self.has_token(tag)))
    }

    fn has_harmony_tokens(&self) -> bool {
        ["<|channel|>", "<|message|>", "<|call|>"]
            .iter()
            .all(|tag| self.has_token(tag))
    }

    fn has_token(&self, token: &str) -> bool {
        self.added_token_id(token).is_some()
    }

    pub(super) fn template_mentions(&self, text: &str) -> bool {
        let template = self.template.as_ref();
        template.is_some_and(|template| template.mentions(text))
    }
}
