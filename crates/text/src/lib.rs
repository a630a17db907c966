#![doc = include_str!("../README.md")]

mod arguments;
mod calls;
mod chat;
mod count;
mod ending;
mod files;
mod formats;
mod frozen;
mod gguf;
mod image_marks;
mod infill;
mod jinja;
mod known;
mod letters;
mod messages;
mod python;
mod pythonic;
mod refusal;
mod template;
mod tool_place;
mod turns;
mod vocabulary;
mod written;

use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;

use tokenizers::Tokenizer;

pub use chat::ChatPrompt;
pub use count::MAX_COUNTED_BYTES;
use files::{TemplateSources, TokenizerConfig};
use frozen::FrozenPieces;
pub use gguf::VocabularyFields;
pub use image_marks::{ImageMarks, ImageNames, ImagePart, ImageTokens, RenderedImages};
use infill::InfillTokens;
pub use infill::{FimIds, InfillFile, InfillPrompt, NO_INFILL_TOKENS};
pub use known::KnownBeginning;
use souffleur_base::error::{LoadError, RequestError};
use souffleur_output::detok::TokenText;
use souffleur_output::output::ToolFormat;
use template::ChatTemplate;
pub use turns::TurnMarks;
use vocabulary::Spelling;
pub use vocabulary::TokenPiece;
use written::CallWriter;

/// A tokenizer with its special tokens and its chat template.
#[derive(Debug)]
pub struct TextModel {
    tokenizer: Tokenizer,
    /// The user-defined pieces of SentencePiece that are matched before merges and are not added tokens.
    frozen: Option<FrozenPieces>,
    /// Added tokens of white space only. `encode_fragment` matches no other added tokens.
    blanks: Option<FrozenPieces>,
    /// The text of each added token that the byte-level decoder would decode to other bytes.
    misread: HashMap<u32, String>,
    special: SpecialTokens,
    vocab_size: usize,
    /// Bytes of the longest vocabulary entry, at least 1.
    max_token_bytes: usize,
    /// Whether plain prompts start with the beginning-of-sequence token; `None` leaves it to tokenizer.json.
    adds_bos: Option<bool>,
    template: Option<ChatTemplate>,
    /// Advice for the error about a missing chat template.
    missing_template_advice: &'static str,
    spelling: Option<Spelling>,
    /// The tokens for filling in the middle; `None` if the vocabulary lacks one of them.
    infill: Option<InfillTokens>,
    /// Found when they are first needed.
    media_names: OnceLock<Option<Box<ImageMarks>>>,
}

/// The parts of a [`TextModel`], read from a Hugging Face folder or a GGUF file.
struct Parts {
    tokenizer: Tokenizer,
    frozen: Option<FrozenPieces>,
    /// One more than the highest id of the vocabulary without added tokens.
    vocab_size: usize,
    max_token_bytes: usize,
    special: SpecialTokens,
    fim: FimIds,
    adds_bos: Option<bool>,
    templates: Option<TemplateSources>,
    missing_template_advice: &'static str,
}

/// The special tokens that a model's files name, as text. Templates see them as `bos_token` and so on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    pub bos: Option<String>,
    pub eos: Option<String>,
    pub pad: Option<String>,
    pub unk: Option<String>,
}

impl TextModel {
    /// Reads `tokenizer.json` and, if they exist, `tokenizer_config.json` and the chat template: `chat_template.jinja`,
    /// else `chat_template.json`, else the configuration's `chat_template`.
    ///
    /// A template that does not compile is not an error here: chats are refused, and everything else works.
    ///
    /// # Errors
    /// [`LoadError::Io`] and [`LoadError::Format`], naming the file.
    pub fn load(dir: &Path) -> Result<Self, LoadError> {
        let file = dir.join("tokenizer.json");
        let text = String::from_utf8(files::read(&file)?).map_err(Into::into);
        // `Tokenizer::from_bytes` is generic: the compiler would generate its deserializers here once more.
        let tokenizer = text.and_then(|text| text.parse::<Tokenizer>());
        let mut tokenizer = tokenizer.map_err(|error| LoadError::Format {
            file: file.clone(),
            reason: format!("cannot read the tokenizer: {error}"),
        })?;
        // Padding and truncation are training settings; a prompt must be encoded unchanged.
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(None)
            .map_err(|error| LoadError::Format {
                file,
                reason: format!("cannot turn off the tokenizer's truncation: {error}"),
            })?;
        let config = TokenizerConfig::load(dir)?;
        let templates = files::template_sources(dir, &config)?;
        let vocab_size = tokenizer.get_vocab_size(false);
        Ok(Self::assemble(Parts {
            max_token_bytes: longest_token_bytes(&tokenizer),
            tokenizer,
            frozen: None,
            vocab_size,
            special: config.special,
            fim: FimIds::default(),
            adds_bos: config.add_bos_token,
            templates,
            missing_template_advice: "add chat_template.jinja to the model's directory",
        }))
    }

    fn assemble(parts: Parts) -> Self {
        let Parts {
            tokenizer, special, ..
        } = parts;
        let added = tokenizer.get_added_tokens_decoder();
        let after_added = added.keys().max().map_or(0, |&id| id as usize + 1);
        let templates = parts.templates;
        let mut model = Self {
            vocab_size: parts.vocab_size.max(after_added),
            max_token_bytes: parts.max_token_bytes.max(1),
            adds_bos: parts.adds_bos,
            template: templates.map(|sources| ChatTemplate::compile(sources, &special)),
            missing_template_advice: parts.missing_template_advice,
            special,
            spelling: Spelling::of(&tokenizer),
            frozen: parts.frozen,
            blanks: vocabulary::blanks(&tokenizer),
            misread: misread(&tokenizer),
            infill: None,
            media_names: OnceLock::new(),
            tokenizer,
        };
        model.infill = InfillTokens::find(&model, parts.fim);
        // Among the templates in the Hermes format, only SmolLM3's is known to leave out earlier calls.
        let may_leave_out_calls = |format: &ToolFormat| {
            *format != ToolFormat::Hermes || model.template_mentions(tool_place::XML_TOOLS)
        };
        let format = model.tool_format().filter(may_leave_out_calls);
        if let Some(writer) = format.and_then(CallWriter::of)
            && let Some(template) = &mut model.template
        {
            template.put_calls_into_content(writer);
        }
        model
    }

    /// One more than the highest id.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// Finds an added token, special or not, by its text.
    pub fn added_token_id(&self, token: &str) -> Option<u32> {
        let added = self.tokenizer.get_added_vocabulary();
        added
            .token_to_id(token, self.tokenizer.get_model())
            .filter(|id| self.tokenizer.get_added_tokens_decoder().contains_key(id))
    }

    /// Whether a token is special: decoded text omits special tokens unless the caller keeps them.
    pub fn is_special(&self, id: u32) -> bool {
        let added = self.tokenizer.get_added_tokens_decoder();
        added.get(&id).is_some_and(|token| token.special)
    }

    pub fn token(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// Bytes of the longest vocabulary entry (byte-level vocabularies spell a byte with up to two bytes). Unless a
    /// normalizer shortens it, a text of `n` bytes has at least `n / max_token_bytes` tokens.
    pub fn max_token_bytes(&self) -> usize {
        self.max_token_bytes
    }

    pub fn bos_id(&self) -> Option<u32> {
        self.token_id(self.special.bos.as_deref()?)
    }

    /// The end-of-sequence token; generation_config.json may name more.
    pub fn eos_id(&self) -> Option<u32> {
        self.token_id(self.special.eos.as_deref()?)
    }

    pub fn pad_id(&self) -> Option<u32> {
        self.token_id(self.special.pad.as_deref()?)
    }

    /// Encodes a plain prompt and adds the model's special tokens, such as BOS.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] when the vocabulary has no token for a part of the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, RequestError> {
        let ids = self.encode_with(text, WithSpecial::Added)?;
        let bos = self.special.bos.as_deref().unwrap_or_default();
        Ok(self.with_bos(ids, text.starts_with(bos)))
    }

    /// Encodes a rendered chat, or another text that already contains its special tokens. Adds none.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub fn encode_chat(&self, rendered: &str) -> Result<Vec<u32>, RequestError> {
        self.encode_with(rendered, WithSpecial::AsWritten)
    }

    /// Renders messages to a prompt with the model's chat template.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] when there is no usable template, the messages are malformed, or the template refuses
    /// them or exceeds a limit.
    pub fn render_chat(&self, prompt: &ChatPrompt<'_>) -> Result<String, RequestError> {
        match &self.template {
            Some(template) => template.render(prompt),
            None => Err(RequestError::Invalid(format!(
                "the model has no chat template: send a plain prompt to /v1/completions or /generate, or {}",
                self.missing_template_advice
            ))),
        }
    }

    /// Returns whether the chat template renders a `system` message after a user message at its place in the
    /// conversation; false without a template.
    pub fn takes_late_system(&self, has_tools: bool) -> bool {
        let template = self.template.as_ref();
        template.is_some_and(|template| template.takes_late_system(has_tools))
    }

    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// The source of the chat template, for requests without tools.
    pub fn chat_template(&self) -> Option<&str> {
        self.template.as_ref().map(ChatTemplate::default_source)
    }

    /// Returns the text of one token as it appears inside a text: special tokens by name, a leading space kept, bytes
    /// of an unfinished character as U+FFFD.
    pub fn token_text(&self, id: u32) -> String {
        let alone = self.decode(&[id], false, true);
        let twice = self.decode(&[id, id], false, true);
        match twice.strip_prefix(&alone) {
            Some(second) if !second.is_empty() => second.to_owned(),
            _ => alone,
        }
    }

    /// Inserts or removes a leading BOS if the model's files say whether prompts start with it. BOS in the text stays.
    fn with_bos(&self, mut ids: Vec<u32>, is_in_text: bool) -> Vec<u32> {
        let (Some(adds_bos), Some(bos)) = (self.adds_bos, self.bos_id()) else {
            return ids;
        };
        match (adds_bos, ids.first() == Some(&bos)) {
            (true, false) => ids.insert(0, bos),
            (false, true) if !is_in_text => {
                ids.remove(0);
            }
            _ => {}
        }
        ids
    }

    fn encode_with(&self, text: &str, special: WithSpecial) -> Result<Vec<u32>, RequestError> {
        let add_special_tokens = special == WithSpecial::Added;
        let encoding = match &self.frozen {
            Some(frozen) => frozen.encode(&self.tokenizer, text, add_special_tokens),
            None => self.tokenizer.encode_fast(text, add_special_tokens),
        };
        match encoding {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(error) => Err(not_tokenized(&*error)),
        }
    }
}

fn not_tokenized(error: &dyn std::error::Error) -> RequestError {
    RequestError::Invalid(format!(
        "the prompt cannot be tokenized: {error}: send text that the vocabulary covers, or token ids"
    ))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WithSpecial {
    Added,
    AsWritten,
}

impl TokenText for TextModel {
    /// Decodes as Hugging Face's fast tokenizers do: `spaces_between_special_tokens` has no effect, and
    /// `clean_up_tokenization_spaces` is not applied (it would change text that was emitted already).
    fn decode(&self, tokens: &[u32], skip_special_tokens: bool, _: bool) -> String {
        if self.misread.is_empty() {
            return self.decode_with_tokenizer(tokens, skip_special_tokens);
        }
        let mut text = String::new();
        let mut rest = tokens;
        while let Some(place) = rest.iter().position(|id| self.misread.contains_key(id)) {
            text.push_str(&self.decode_with_tokenizer(&rest[..place], skip_special_tokens));
            let id = rest[place];
            if !(skip_special_tokens && self.is_special(id)) {
                text.push_str(&self.misread[&id]);
            }
            rest = &rest[place + 1..];
        }
        text + &self.decode_with_tokenizer(rest, skip_special_tokens)
    }
}

impl TextModel {
    fn decode_with_tokenizer(&self, tokens: &[u32], skip_special_tokens: bool) -> String {
        match self.tokenizer.decode(tokens, skip_special_tokens) {
            Ok(text) => text,
            Err(_) => tokens
                .iter()
                .filter_map(|&id| self.tokenizer.id_to_token(id))
                .collect(),
        }
    }
}

/// The text of added tokens that the byte-level decoder would misread. Example: DeepSeek's added token `ö` would be
/// decoded to the byte that `ö` stands for in GPT-2's table.
fn misread(tokenizer: &Tokenizer) -> HashMap<u32, String> {
    if Spelling::of(tokenizer) != Some(Spelling::ByteLevel) {
        return HashMap::new();
    }
    let added = tokenizer.get_added_tokens_decoder().into_iter();
    let added = added.map(|(id, token)| (id, token.content));
    let is_misread = |id, text: &str| {
        tokenizer
            .decode(&[id], false)
            .is_ok_and(|read| read != text)
    };
    added
        .filter(|(id, text)| !text.is_ascii() && is_misread(*id, text))
        .collect()
}

/// Looks up each id, because a copy of the vocabulary would take several times as long.
fn longest_token_bytes(tokenizer: &Tokenizer) -> usize {
    let ids = 0..tokenizer.get_vocab_size(false) as u32;
    let tokens = ids.filter_map(|id| tokenizer.id_to_token(id));
    let added = tokenizer.get_added_vocabulary().get_vocab().keys();
    let longest = tokens.map(|token| token.len()).max().unwrap_or(0);
    added.map(String::len).fold(longest, usize::max)
}

#[cfg(test)]
mod tests;
