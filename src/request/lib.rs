//! A client's request and the answers to it: the engine's public data types.

pub mod admission;
pub mod sink;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use souffleur_base::error::RequestError;
use souffleur_base::ids::RequestId;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::grammar::Constraint;
use souffleur_state::output::push_piece;
pub use souffleur_state::output::{OutputPiece, Tool, ToolChoice, ToolUse};
pub use souffleur_state::pooling::Pooling;
pub use souffleur_state::prompt_images::{
    ImageDigest, ImageGrid, ImageInput, ImageSupport, PromptImage,
};
pub use souffleur_state::prompt_vectors::PromptVectors;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::sampling::{LogprobWish, TokenLogprobs};
pub use souffleur_state::scheduler::news::FinishReason;
pub use souffleur_state::scheduler::submission::{CancelFlag, RequestTimeouts};

/// Bytes of text that usually make a token.
const BYTES_PER_TOKEN: usize = 4;
/// Tokens that an image usually makes.
const TOKENS_PER_IMAGE: usize = 256;

#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// The client's id for the request, unique among the requests in flight.
    pub rid: RequestId,
    pub prompt: Prompt,
    pub sampling: SamplingParams,
    /// Which log probabilities to return; `None` for none.
    pub logprobs: Option<LogprobWish>,
    /// Constrains the output's text. If tools may be called, constrains only answers without calls.
    pub constraint: Option<Arc<Constraint>>,
    /// Requests the embedding of the prompt, and no output: `max_new_tokens` counts as 0.
    pub pooling: Option<Pooling>,
    /// How the output is parsed into text, reasoning and tool calls; `None` for plain text.
    pub parsing: Option<OutputParsing>,
    /// A guess of the output's text, such as a file before an edit. Where the engine speculates, parts that the model
    /// repeats are generated faster; it has no other effect.
    pub prediction: Option<Arc<str>>,
    /// The cache namespace: only requests of the same namespace share prefixes.
    pub namespace: Namespace,
    /// With `enable_priority_scheduling`, requests of larger priority are served first (of smaller priority with
    /// `schedule_low_priority_values_first`). Otherwise only the eviction policy `priority` uses this value.
    pub priority: Option<i64>,
    /// Time limits of waiting and running; the engine's own limits also apply.
    pub timeouts: RequestTimeouts,
    /// The client streams the answer. Deltas are sent either way; this value is only a label of metrics.
    pub is_streaming: bool,
}

impl GenerateRequest {
    /// A request with a random id, default sampling and nothing else.
    pub fn new(prompt: Prompt) -> Self {
        Self {
            rid: RequestId::random(),
            prompt,
            sampling: SamplingParams::default(),
            logprobs: None,
            constraint: None,
            pooling: None,
            parsing: None,
            prediction: None,
            namespace: Namespace::default(),
            priority: None,
            timeouts: RequestTimeouts::default(),
            is_streaming: true,
        }
    }
}

#[derive(Clone, Debug)]
pub enum Prompt {
    /// Text, encoded with the tokenizer's special tokens.
    Text(Arc<str>),
    /// Token ids, taken as they are.
    Tokens(Arc<[u32]>),
    Chat(Arc<ChatPrompt>),
    /// Asks for the text between two others.
    Infill(Arc<InfillPrompt>),
    /// Prompt embeddings: a vector in place of each token. Such a prompt neither uses nor enters the cache.
    Vectors(Arc<PromptVectors>),
    /// Token ids with images. Unlike a prompt of vectors, such a prompt uses the cache.
    Images(Arc<ImagePrompt>),
    /// Text with images, encoded with the tokenizer's special tokens.
    TextImages(Arc<TextImages>),
}

impl Prompt {
    /// Bytes of text that must be encoded, including the template's arguments, which may become part of the text.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(_) | Self::Vectors(_) | Self::Images(_) => 0,
            Self::Chat(chat) => {
                let tools = chat.tools.as_ref().map_or(0, |tools| tools.get().len());
                let messages = text_bytes_of(&chat.messages);
                messages + tools + text_bytes_of_fields(&chat.template_kwargs)
            }
            Self::Infill(infill) => infill.text_bytes(),
            Self::TextImages(prompt) => prompt.text.len(),
        }
    }

    /// The image files, which must be decoded.
    pub fn image_files(&self) -> &[ImageFile] {
        match self {
            Self::Chat(chat) => &chat.images,
            Self::TextImages(prompt) => &prompt.images,
            Self::Text(_) | Self::Tokens(_) | Self::Infill(_) => &[],
            Self::Vectors(_) | Self::Images(_) => &[],
        }
    }

    /// Estimates the number of tokens before the prompt is encoded.
    pub fn estimated_tokens(&self) -> usize {
        match self {
            Self::Tokens(tokens) => tokens.len(),
            Self::Vectors(vectors) => vectors.len(),
            Self::Images(prompt) => prompt.tokens.len(),
            Self::Text(_) | Self::Chat(_) | Self::Infill(_) | Self::TextImages(_) => {
                let of_images = self.image_files().len() * TOKENS_PER_IMAGE;
                self.text_bytes().div_ceil(BYTES_PER_TOKEN) + of_images
            }
        }
    }
}

/// Lists, objects and scalars count as at least a byte, so that a list of empty lists has a cost.
fn text_bytes_of(value: &serde_json::Value) -> usize {
    use serde_json::Value;
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => 1 + items.iter().map(text_bytes_of).sum::<usize>(),
        Value::Object(fields) => 1 + text_bytes_of_fields(fields),
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

fn text_bytes_of_fields(fields: &serde_json::Map<String, serde_json::Value>) -> usize {
    let field = |(name, value): (&String, _)| name.len() + text_bytes_of(value);
    fields.iter().map(field).sum()
}

#[derive(Clone, Debug)]
pub struct ChatPrompt {
    pub messages: serde_json::Value,
    /// Array of OpenAI tools, if any: the template sees them as they are written here.
    pub tools: Option<Box<serde_json::value::RawValue>>,
    /// Further variables of the template (`chat_template_kwargs`).
    pub template_kwargs: serde_json::Map<String, serde_json::Value>,
    /// Opens the assistant's turn.
    pub add_generation_prompt: bool,
    /// Leaves the last message, the assistant's, open, so that the model continues it.
    pub continue_final_message: bool,
    /// The tokens of the first messages, known from an earlier request. They are not used in a chat with images.
    pub known: Option<KnownTurns>,
    /// One for each part `{"type": "image"}` of the messages, in order.
    pub images: Vec<ImageFile>,
}

/// A text in which each name of the model's placeholder for an image, such as `<|image_pad|>`, stands for an image.
#[derive(Clone, Debug)]
pub struct TextImages {
    pub text: Arc<str>,
    pub images: Vec<ImageFile>,
}

impl From<TextImages> for Prompt {
    fn from(prompt: TextImages) -> Self {
        Self::TextImages(Arc::new(prompt))
    }
}

/// An image of a chat: a PNG, JPEG, WebP or GIF file.
#[derive(Clone, PartialEq, Eq)]
pub struct ImageFile {
    pub bytes: Arc<[u8]>,
    /// The place of the image in the client's request, for errors.
    pub field: Arc<str>,
}

impl fmt::Debug for ImageFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageFile({}, {} bytes)", self.field, self.bytes.len())
    }
}

impl ChatPrompt {
    /// A conversation of an array of OpenAI messages, which the assistant answers.
    ///
    /// ```
    /// use souffleur_request::{ChatPrompt, GenerateRequest};
    ///
    /// let messages = serde_json::json!([{ "role": "user", "content": "Who are you?" }]);
    /// let request = GenerateRequest::new(ChatPrompt::new(messages).into());
    /// # let _ = request;
    /// ```
    pub fn new(messages: serde_json::Value) -> Self {
        Self {
            messages,
            tools: None,
            template_kwargs: serde_json::Map::new(),
            add_generation_prompt: true,
            continue_final_message: false,
            known: None,
            images: Vec::new(),
        }
    }

    pub fn of_user(text: &str) -> Self {
        Self::new(serde_json::json!([{ "role": "user", "content": text }]))
    }
}

impl From<ChatPrompt> for Prompt {
    fn from(chat: ChatPrompt) -> Self {
        Self::Chat(Arc::new(chat))
    }
}

/// A prompt of token ids with images, whose vectors the caller has computed. In [`Finished::prompt`] and in KV events,
/// the positions of images have keys, which are not token ids.
///
/// ```
/// use std::sync::Arc;
/// use souffleur_request::{
///     GenerateRequest, ImageDigest, ImageGrid, ImagePrompt, PromptImage, PromptVectors,
/// };
///
/// let (begin, pad, end) = (6, 9, 7);
/// let vectors = PromptVectors::new(64, vec![0.5; 2 * 64])?;
/// let image = PromptImage {
///     positions: 1..5,
///     pad,
///     digest: ImageDigest([0; 32]), // SHA-256 of the pixels, and of all else that the vectors depend on
///     grid: ImageGrid { rows: 1, columns: 2 },
///     vectors: Some(Arc::new(vectors)),
///     input: None,
/// };
/// let prompt = ImagePrompt {
///     tokens: [5, begin, pad, pad, end, 8].into(),
///     images: vec![image],
/// };
/// let request = GenerateRequest::new(prompt.into());
/// # let _ = request;
/// # Ok::<(), souffleur_base::error::FieldError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImagePrompt {
    /// True token ids. An image has its marks (tokens such as begin and end of image), and a pad token for each vector.
    pub tokens: Arc<[u32]>,
    /// In the order of their positions.
    pub images: Vec<PromptImage>,
}

impl From<ImagePrompt> for Prompt {
    fn from(prompt: ImagePrompt) -> Self {
        Self::Images(Arc::new(prompt))
    }
}

/// The texts around a gap, which the model fills: a prompt for models that were trained to fill in the middle.
#[derive(Clone, Debug, Default)]
pub struct InfillPrompt {
    pub prefix: Arc<str>,
    pub suffix: Arc<str>,
    /// The line before the cursor, which follows `prefix`. llama.cpp's clients send it separately, and it is encoded so.
    pub line_start: Arc<str>,
    /// Other files of the repository; `None` for a prompt of prefix and suffix alone.
    pub files: Option<Vec<InfillFile>>,
    /// Cuts a prompt that is too long, instead of refusing it.
    pub may_be_cut: bool,
}

#[derive(Clone, Debug)]
pub struct InfillFile {
    pub name: String,
    pub text: String,
}

impl InfillPrompt {
    /// A file counts as at least a byte.
    fn text_bytes(&self) -> usize {
        let files = self.files.as_deref().unwrap_or_default().iter();
        let files: usize = files
            .map(|file| 1 + file.name.len() + file.text.len())
            .sum();
        self.prefix.len() + self.suffix.len() + self.line_start.len() + files
    }
}

impl From<InfillPrompt> for Prompt {
    fn from(infill: InfillPrompt) -> Self {
        Self::Infill(Arc::new(infill))
    }
}

/// The tokens of a conversation's first messages, as an engine has computed them: a prompt and its output. They are
/// reused unchanged, so that they are in the cache even if the template would render the answer differently. If the
/// template renders these messages alone differently than in the conversation, the whole conversation is rendered.
#[derive(Clone, Debug)]
pub struct KnownTurns {
    /// The number of messages. They were rendered with this conversation's tools and template variables.
    pub messages: usize,
    pub tokens: Arc<[u32]>,
    /// True if the last message is a generated answer. Otherwise the template has rendered all messages.
    pub has_answer: bool,
}

/// How an output is parsed into [`OutputPiece`]s, in the formats that the engine was started with.
#[derive(Clone, Debug, Default)]
pub struct OutputParsing {
    /// The tools that may be called; `None`: calls are left in the text.
    pub tools: Option<Arc<ToolUse>>,
    /// Reasoning is separated from the text.
    pub separates_reasoning: bool,
}

/// An event of a request: deltas, then exactly one terminal event.
#[derive(Clone, Debug)]
pub enum Event {
    /// New text and tokens. Deltas of a slow reader are merged.
    Delta(Delta),
    Finished(Box<Finished>),
    Cancelled(Box<Finished>),
    Failed(RequestError),
}

impl Event {
    /// True for the one event that ends a request.
    pub fn is_terminal(&self) -> bool {
        !matches!(self, Self::Delta(_))
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Text that will not change; may lag `tokens`. Empty if the request's output is parsed.
    pub text: String,
    pub pieces: Vec<OutputPiece>,
    pub tokens: Vec<u32>,
    /// One entry for each of `tokens` if log probabilities were requested.
    pub output_logprobs: Vec<TokenLogprobs>,
    /// One entry for each prompt token from the requested start on, in one or more deltas. The entry of the prompt's
    /// first token has no log probability, nor have those of images, which have the ids of pad tokens and marks.
    pub input_logprobs: Vec<TokenLogprobs>,
    pub usage: Usage,
}

impl Delta {
    /// Estimates the delta's size in bytes, to limit the backlog of a slow reader.
    pub fn bytes(&self) -> usize {
        let logprobs = self.output_logprobs.iter().chain(&self.input_logprobs);
        let each = |position: &TokenLogprobs| {
            let others = position.top.len() + position.chosen.len();
            size_of::<TokenLogprobs>() + others * size_of::<(u32, f32)>()
        };
        let pieces = self.pieces.iter().map(OutputPiece::bytes).sum::<usize>();
        let text = self.text.len() + pieces;
        text + self.tokens.len() * size_of::<u32>() + logprobs.map(each).sum::<usize>()
    }

    pub fn merge(&mut self, later: Self) {
        self.text.push_str(&later.text);
        later
            .pieces
            .into_iter()
            .for_each(|piece| push_piece(&mut self.pieces, piece));
        self.tokens.extend(later.tokens);
        self.output_logprobs.extend(later.output_logprobs);
        self.input_logprobs.extend(later.input_logprobs);
        self.usage = later.usage;
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    /// Completion tokens of the reasoning, if the request's reasoning is separated.
    pub reasoning_tokens: u32,
    /// Prompt tokens whose K/V came from the cache when the request was first admitted.
    pub cached_tokens: u32,
    /// Cached tokens that came from the KV store.
    pub loaded_tokens: u32,
    pub num_retractions: u32,
    /// The drafts that steps have verified; `None` if the request's steps have none.
    pub drafts: Option<DraftUsage>,
    /// The drafts from the request's `prediction`; `None` without one.
    pub prediction: Option<PredictionUsage>,
}

/// How many drafts were verified, and how many equalled the output's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftUsage {
    /// Steps after the first token, with and without drafts.
    pub verify_steps: u32,
    pub drafted: u32,
    pub accepted: u32,
}

/// Drafts from a `prediction`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PredictionUsage {
    pub accepted: u32,
    pub rejected: u32,
}

/// Times at which a request reached the stages of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// The prompt was encoded, and the request went to the queue.
    pub queued: Instant,
    pub admitted: Option<Instant>,
    pub first_token: Option<Instant>,
    pub ended: Instant,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    pub delta: Delta,
    /// Why the request ended; `Abort` if it was cancelled.
    pub reason: FinishReason,
    /// Seconds from intake to the end.
    pub e2e_latency_s: f64,
    /// Times of the request's stages; `None` if it was cancelled before its prompt was encoded.
    pub timings: Option<Timings>,
    /// The prompt's tokens, with keys at the positions of images; none if the request was cancelled before they were
    /// known.
    pub prompt: Arc<[u32]>,
    /// The embedding of the prompt, a unit vector of the model's hidden size, if it was requested and the request was
    /// not cancelled.
    pub embedding: Option<Arc<[f32]>>,
    /// Number of steps by the number of drafts that they accepted, from 0 on; empty if the request's steps have none.
    pub accept_histogram: Arc<[u32]>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn template_arguments_count_as_text_of_the_prompt() {
        let arguments = json!({"names": ["ab", "c"], "on": true});
        let prompt = Prompt::Chat(Arc::new(ChatPrompt {
            messages: json!([{"content": "hi"}]),
            tools: None,
            template_kwargs: arguments.as_object().cloned().unwrap_or_default(),
            add_generation_prompt: true,
            continue_final_message: false,
            known: None,
            images: Vec::new(),
        }));
        // A byte for each list, object and boolean, and the bytes of names and strings.
        let (messages, names, values) = (1 + 1 + 7 + 2, 5 + 2, 1 + 3 + 1);
        assert_eq!(prompt.text_bytes(), messages + names + values);
    }

    #[test]
    fn all_texts_of_an_infill_prompt_count() {
        let file = |name: &str, text: &str| InfillFile {
            name: name.to_owned(),
            text: text.to_owned(),
        };
        let prompt = Prompt::from(InfillPrompt {
            prefix: "ab".into(),
            suffix: "cde".into(),
            line_start: "f".into(),
            files: Some(vec![file("g", "hij"), file("", "")]),
            may_be_cut: true,
        });
        assert_eq!(prompt.text_bytes(), 2 + 3 + 1 + (1 + 1 + 3) + 1);
    }
}
