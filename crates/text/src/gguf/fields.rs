//! Holds a GGUF file's tokenizer metadata as plain data, and lists the tokens that end an output.

use std::borrow::Cow;

use crate::infill::FimIds;

/// The `tokenizer.` values of a GGUF file, and the architecture, unchecked. An absent list is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VocabularyFields<'a> {
    /// `general.architecture`, which determines how some models use their tokens.
    pub architecture: Option<String>,
    /// `tokenizer.ggml.model`: the kind of tokenizer.
    pub model: String,
    /// `tokenizer.ggml.pre`: how a byte-level tokenizer cuts texts into words.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Vec<Cow<'a, str>>,
    /// `tokenizer.ggml.token_type`, by id.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.scores`, by id; larger ones are merged first.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.merges`, best first: two tokens with a space between them.
    pub merges: Vec<Cow<'a, str>>,
    /// `tokenizer.ggml.bos_token_id`: begins a sequence.
    pub bos_id: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`: ends a sequence.
    pub eos_id: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`: ends a turn of a chat.
    pub eot_id: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`: ends a message that expects a tool's result.
    pub eom_id: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`: replaces text outside of the vocabulary.
    pub unknown_id: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`: pads sequences to the same length.
    pub padding_id: Option<u32>,
    /// `tokenizer.ggml.fim_…_token_id`: the tokens for filling in the middle. Ids beyond the tokens are ignored.
    pub fim: FimIds,
    /// `tokenizer.ggml.add_bos_token`: whether plain prompts start with the beginning-of-sequence token.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`: whether plain prompts end with the end-of-sequence token.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`: whether SentencePiece puts a space before a text.
    pub add_space_prefix: Option<bool>,
    pub chat_template: Option<String>,
    /// `tokenizer.chat_template.tool_use`: the template for requests with tools.
    pub tool_use_template: Option<String>,
}

/// Tokens that end an output in every vocabulary that has them as single tokens.
const ENDS: [&str; 22] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<turn|>",
    "<eos>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<｜end▁of▁sentence｜>",
];

/// Ends a message but not an output if the vocabulary also has `<|return|>`, and `<|call|>` or `<|calls|>`.
const END_OF_MESSAGE: &str = "<|end|>";

/// Values of `tokenizer.ggml.token_type`.
pub(super) const CONTROL: i32 = 3;
pub(super) const USER: i32 = 4;

impl VocabularyFields<'_> {
    /// The ids of the tokens that end an output, ascending: those that the file names, and the known end tokens.
    pub fn end_token_ids(&self) -> Vec<u32> {
        let named = [self.eos_id, self.eot_id, self.eom_id]
            .into_iter()
            .flatten();
        let mut ids: Vec<u32> = named
            .filter(|id| self.tokens.is_empty() || (*id as usize) < self.tokens.len())
            .collect();
        let marks_messages = self.has_control("<|return|>")
            && (self.has_control("<|call|>") || self.has_control("<|calls|>"));
        let typed = self.tokens.iter().zip(&self.token_types).zip(0..);
        ids.extend(typed.filter_map(|((token, &kind), id)| {
            let ends = match kind {
                CONTROL => ENDS.contains(&token.as_ref()),
                // Some converters mark end tokens as user-defined, but a user-defined "</s>" is an HTML tag.
                USER => token.starts_with("<|") && ENDS.contains(&token.as_ref()),
                _ => false,
            };
            ends.then_some(id)
        }));
        if marks_messages {
            ids.retain(|&id| self.tokens[id as usize] != END_OF_MESSAGE);
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn has_control(&self, text: &str) -> bool {
        let mut typed = self.tokens.iter().zip(&self.token_types);
        typed.any(|(token, &kind)| kind == CONTROL && token == text)
    }
}
