//! Prepares requests for submission: encodes and checks prompts, compiles grammars, checks and clips parameters.

use std::sync::Arc;
use std::time::Instant;

use crate::call::{OutputForm, WeightedPrompt};
use crate::pictures::{self, for_template};
use souffleur_base::error::{FieldError, PromptTokens, RequestError};
use souffleur_grammar::{AnswerFrame, CompileNotes, GrammarWish, ReasoningGate};
use souffleur_metrics::{GrammarEnd, GrammarMetrics};
use souffleur_model::text::{self, TextModel};
use souffleur_request::{ChatPrompt, GenerateRequest, Prompt, PromptVectors};
use souffleur_state::grammar::Grammar;
use souffleur_state::output::{OutputStart, ReasoningFormat};
use souffleur_state::prompt_images::PromptImages;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::speculation::DraftText;

use super::TokenizerSettings;
use super::drafts;
use super::images::{self, PreparedChat};
use super::infill;
use super::logprob_checks::{check_entries, check_wish};

/// A normalizer shortens a text by less than this factor: NFC composes at most three characters of three bytes into
/// one.
const MAX_NORMALIZER_SHRINK: usize = 4;

/// Refuses a prompt that is certainly too long, before time and memory are spent on it. A text whose tokens can be
/// counted passes here, for a more exact error later.
pub(super) fn refuse_oversized(
    prompt: &Prompt,
    settings: &TokenizerSettings,
) -> Result<(), RequestError> {
    let exactly = |tokens| (tokens, PromptTokens::Exactly(tokens));
    let (least, prompt_tokens) = match (prompt, settings.text.as_deref()) {
        (Prompt::Tokens(tokens), _) => exactly(tokens.len()),
        (Prompt::Vectors(embeds), _) => exactly(embeds.len()),
        (Prompt::Images(prompt), _) => exactly(prompt.tokens.len()),
        (_, None) => return Ok(()),
        (Prompt::Infill(infill), _) if infill.may_be_cut => return Ok(()),
        (_, Some(_)) if prompt.text_bytes() <= text::MAX_COUNTED_BYTES => return Ok(()),
        (_, Some(text)) => {
            let bytes_per_token = text.max_token_bytes() * MAX_NORMALIZER_SHRINK;
            let least = prompt.text_bytes() / bytes_per_token;
            (least, PromptTokens::AtLeast(least))
        }
    };
    let limit_tokens = settings.limits.max_prompt_tokens();
    if least > limit_tokens {
        Err(RequestError::PromptTooLong {
            prompt_tokens,
            limit_tokens,
        })
    } else {
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub(super) struct PreparedPrompt {
    pub(super) tokens: Arc<[u32]>,
    /// The prompt embeddings (`input_embeds`), if the prompt has no token ids: `tokens` are then placeholders.
    pub(super) prompt_embeds: Option<Arc<PromptVectors>>,
    /// The prompt's images, if it has some: `tokens` then has keys at their positions.
    pub(super) images: Option<Arc<PromptImages>>,
    /// Positions at which other prompts are likely to diverge, so that recurrent states are saved there.
    pub(super) anchors: Arc<[u32]>,
    pub(super) grammar: Option<Arc<dyn Grammar>>,
    /// Texts for drafts, in addition to the prompt and the outputs.
    pub(super) draft_texts: Arc<[DraftText]>,
    /// The tokens that end the outputs in addition to EOS and the request's stop tokens.
    pub(super) ends: Arc<[u32]>,
    /// The part of the answer (reasoning, content) in which the outputs start.
    pub(super) start: OutputStart,
}

impl PreparedPrompt {
    /// Adds the anchor `len + 1`, which requests a state before the last token, so that another output of the prompt
    /// computes only that token. Prompts without anchors save this state anyway.
    pub(super) fn anchor_end(&mut self) {
        if !self.anchors.is_empty() {
            let beyond = self.tokens.len() as u32 + 1;
            self.anchors = self.anchors.iter().copied().chain([beyond]).collect();
        }
    }
}

pub(super) fn prepare(
    prompt: Prompt,
    form: &OutputForm,
    settings: &TokenizerSettings,
    metrics: &GrammarMetrics,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<PreparedPrompt, RequestError> {
    let text = settings.text.as_deref();
    let tokenizer = || {
        text.ok_or_else(|| {
            invalid("the engine runs without a tokenizer: send token ids".to_owned())
        })
    };
    let mut prompt_end = PromptEnd::Plain;
    let mut replies = 0;
    let is_chat = matches!(prompt, Prompt::Chat(_));
    let (mut given_embeds, mut given_images) = (None, None);
    let mut ends: Arc<[u32]> = Arc::default();
    let tokens = match prompt {
        Prompt::Tokens(tokens) => tokens,
        Prompt::Vectors(embeds) => {
            check_prompt_embeds(&embeds, settings)?;
            given_embeds.insert(embeds).placeholders()
        }
        Prompt::Images(prompt) => {
            let (keyed, table) = images::prepare(&prompt, settings)?;
            given_images = Some(table);
            keyed
        }
        Prompt::Text(text) => encode_text(tokenizer()?, &text, settings)?.into(),
        Prompt::TextImages(prompt) => {
            let both = images::prepare_text(tokenizer()?, &prompt, settings, is_cancelled)?;
            given_images = Some(both.1);
            both.0
        }
        Prompt::Chat(chat) => {
            let prepared = prepare_chat(tokenizer()?, &chat, settings, is_cancelled)?;
            prompt_end = PromptEnd::after(&prepared.text, &chat, settings);
            replies = replies_since_user(&chat);
            given_images = prepared.images;
            prepared.tokens
        }
        Prompt::Infill(infill) => {
            let tokenizer = tokenizer()?;
            ends = tokenizer.infill_ends().into();
            infill::encode(tokenizer, &infill, settings)?.into()
        }
    };
    if given_images.is_none() {
        check_prompt(&tokens, settings.vocab_size)?;
    }
    refuse_unreadable_calls(form, settings)?;
    let (grammar, literals) = compile(form, prompt_end, settings, metrics, is_cancelled)
        .map_err(|error| with_chat_field(error, is_chat))?;
    let turns = settings.turns.as_ref().filter(|_| is_chat);
    let of_turns = turns.map(|turns| turns.anchors(&tokens, replies));
    Ok(PreparedPrompt {
        anchors: anchors(given_images.as_deref(), of_turns, tokens.len()).into(),
        tokens,
        prompt_embeds: given_embeds,
        images: given_images,
        grammar,
        draft_texts: drafts::texts(form.prediction.as_deref(), literals, settings)?,
        ends,
        start: prompt_end.start(),
    })
}

/// The positions of the images' ends and of the turns, ascending.
fn anchors(images: Option<&PromptImages>, of_turns: Option<Vec<u32>>, n_tokens: usize) -> Vec<u32> {
    let of_turns = of_turns.unwrap_or_default();
    let Some(images) = images else {
        return of_turns;
    };
    let mut anchors = images::anchors(images, n_tokens);
    anchors.extend(of_turns);
    anchors.sort_unstable();
    anchors.dedup();
    anchors
}

/// Renders and encodes a chat.
fn prepare_chat(
    tokenizer: &TextModel,
    chat: &ChatPrompt,
    settings: &TokenizerSettings,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<PreparedChat, RequestError> {
    if !chat.images.is_empty() {
        return images::prepare_chat(tokenizer, chat, settings, is_cancelled);
    }
    let limit = settings.limits.max_prompt_tokens();
    let text = tokenizer.render_chat(&for_template(chat))?;
    let reader = settings.images.reader.as_deref();
    let tokens = match pictures::read_names(reader, tokenizer, (chat, &text), limit)? {
        Some(tokens) => tokens,
        None => {
            refuse_too_long(tokenizer.count_chat_above(&text, limit)?, settings)?;
            encode_chat(tokenizer, chat, &text)?
        }
    };
    Ok(PreparedChat {
        tokens: tokens.into(),
        text,
        images: None,
    })
}

fn encode_text(
    tokenizer: &TextModel,
    text: &str,
    settings: &TokenizerSettings,
) -> Result<Vec<u32>, RequestError> {
    let over_limit = tokenizer.count_prompt_above(text, settings.limits.max_prompt_tokens())?;
    refuse_too_long(over_limit, settings)?;
    tokenizer.encode(text)
}

/// Number of replies after the user's last message, including the one that the prompt opens.
fn replies_since_user(chat: &ChatPrompt) -> usize {
    let messages = chat.messages.as_array().map_or(&[] as &[_], Vec::as_slice);
    let roles = messages.iter().rev().map(|message| &message["role"]);
    let since = roles.take_while(|role| *role != "user");
    let replies = since.filter(|role| *role == "assistant").count();
    replies + usize::from(chat.add_generation_prompt)
}

fn check_prompt_embeds(
    prompt_embeds: &PromptVectors,
    settings: &TokenizerSettings,
) -> Result<(), RequestError> {
    match settings.hidden_size {
        Some(hidden_size) => Ok(prompt_embeds.check_width(hidden_size)?),
        None => {
            let text = "the engine's executor does not accept input_embeds: send token ids or text";
            Err(FieldError::new("input_embeds", text).into())
        }
    }
}

/// Names `response_format` in errors about a chat's schema, since chats send schemas in that field.
fn with_chat_field(error: RequestError, is_chat: bool) -> RequestError {
    const IN_FORMAT: [&str; 2] = ["json_schema", "json_object"];
    match error {
        RequestError::Field(error) if is_chat && IN_FORMAT.contains(&error.field()) => {
            error.within("response_format").into()
        }
        other => other,
    }
}

/// Refuses tools if the model's format of calls has no parser: the calls would reach the client as text.
fn refuse_unreadable_calls(
    form: &OutputForm,
    settings: &TokenizerSettings,
) -> Result<(), RequestError> {
    let parsing = form.parsing.as_ref();
    let has_tools = parsing.is_some_and(|parsing| parsing.tools.is_some());
    let may_stay_text = settings.formats.calls_stay_text() && !form.is_constrained();
    if !has_tools || may_stay_text || settings.formats.formats().tool.is_some() {
        return Ok(());
    }
    let reason = "tools cannot be called, because the format of this model's calls is unknown: start the engine with \
                  --tool-call-parser, or send tool_choice: \"none\"";
    Err(FieldError::new("tools", reason).into())
}

fn compile(
    form: &OutputForm,
    prompt_end: PromptEnd,
    settings: &TokenizerSettings,
    metrics: &GrammarMetrics,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<GrammarWithLiterals, RequestError> {
    if !form.is_constrained() {
        return Ok((None, None));
    }
    let Some(grammars) = &settings.grammars else {
        return Err(invalid(
            "this engine has no tokenizer (--skip-tokenizer-init) to constrain outputs: leave constraints and tools out"
                .to_owned(),
        ));
    };
    let formats = settings.formats.formats();
    let parsing = form.parsing.as_ref();
    let reasoning = formats.reasoning.filter(|_| prompt_end.may_reason());
    let wish = GrammarWish {
        constraint: form.constraint.clone(),
        tools: parsing.and_then(|parsing| parsing.tools.clone()),
        tool_format: formats.tool,
        reasoning: reasoning.map(|format| ReasoningGate {
            open: format.opening().into(),
            close: format.closing().into(),
            starts_inside: prompt_end == PromptEnd::InReasoning,
        }),
        frame: match prompt_end {
            PromptEnd::AmongMessages(start) => AnswerFrame::Messages(start),
            _ => AnswerFrame::Bare,
        },
    };
    let (began, mut notes) = (Instant::now(), CompileNotes::default());
    let compiled = grammars.compile_with_notes(&wish, is_cancelled, &mut notes);
    let end = match &compiled {
        Ok(None) => return Ok((None, None)),
        Ok(Some(_)) if notes.is_cached => GrammarEnd::Cached,
        Ok(Some(_)) => GrammarEnd::Compiled,
        Err(_) if notes.timed_out => GrammarEnd::TimedOut,
        Err(_) => GrammarEnd::Aborted,
    };
    metrics.ended(end, began.elapsed());
    let wants_literals = settings.room > 1 && form.may_draft && compiled.is_ok();
    let literals = wants_literals.then(|| grammars.literals(&wish));
    Ok((compiled?, literals))
}

/// A grammar, and the words that it dictates, for drafts.
type GrammarWithLiterals = (Option<Arc<dyn Grammar>>, Option<Arc<[u32]>>);

/// The position of a prompt's end relative to the model's reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PromptEnd {
    /// The prompt is not a chat, or the model does not reason.
    Plain,
    /// The output may begin with reasoning.
    BeforeReasoning,
    /// The prompt ends inside of reasoning.
    InReasoning,
    /// The prompt has closed the reasoning, so the output has none.
    AfterReasoning,
    /// In Harmony (gpt-oss) the output is a sequence of messages, too, and continues the prompt's.
    AmongMessages(OutputStart),
}

impl PromptEnd {
    /// Reasoning may come before the answer.
    fn may_reason(self) -> bool {
        matches!(self, Self::BeforeReasoning | Self::InReasoning)
    }

    fn start(self) -> OutputStart {
        match self {
            Self::AmongMessages(start) => start,
            Self::InReasoning => OutputStart::Reasoning,
            Self::Plain | Self::BeforeReasoning | Self::AfterReasoning => OutputStart::Content,
        }
    }

    fn after(rendered: &str, chat: &ChatPrompt, settings: &TokenizerSettings) -> Self {
        let formats = settings.formats.formats();
        if formats.is_harmony() {
            return Self::AmongMessages(formats.start_after(rendered));
        }
        let rendered = rendered.trim_end();
        match formats.reasoning {
            None => Self::Plain,
            Some(format) if rendered.ends_with(format.closing()) => Self::AfterReasoning,
            Some(format) if format.is_open_after(rendered) => Self::InReasoning,
            // A continued message has ended its reasoning.
            Some(ReasoningFormat::DeepSeekR1) => {
                if chat.add_generation_prompt {
                    Self::InReasoning
                } else {
                    Self::AfterReasoning
                }
            }
            Some(_) => Self::BeforeReasoning,
        }
    }
}

/// Refuses a text that was counted as too long, without encoding it: that takes about a hundred times its size in
/// memory.
pub(super) fn refuse_too_long(
    over_limit: Option<PromptTokens>,
    settings: &TokenizerSettings,
) -> Result<(), RequestError> {
    let limit_tokens = settings.limits.max_prompt_tokens();
    match over_limit {
        None => Ok(()),
        Some(prompt_tokens) => Err(RequestError::PromptTooLong {
            prompt_tokens,
            limit_tokens,
        }),
    }
}

/// Encodes a rendered chat. The tokens of its beginning may be known.
fn encode_chat(
    text: &TextModel,
    chat: &ChatPrompt,
    rendered: &str,
) -> Result<Vec<u32>, RequestError> {
    if let Some(known) = &chat.known {
        let known = text::KnownBeginning {
            messages: known.messages,
            tokens: &known.tokens,
            has_answer: known.has_answer,
        };
        if let Some(tokens) = text.encode_after(known, &for_template(chat), rendered)? {
            return Ok(tokens);
        }
    }
    text.encode_chat(rendered)
}

pub(super) fn check_prompt(prompt: &[u32], vocab_size: usize) -> Result<(), RequestError> {
    if prompt.is_empty() {
        return Err(invalid(
            "the prompt has no tokens: send at least one".to_owned(),
        ));
    }
    match prompt.iter().find(|token| **token as usize >= vocab_size) {
        Some(token) => Err(invalid(format!(
            "the prompt contains token id {token}, but the vocabulary has {vocab_size} tokens: use ids below \
             {vocab_size}"
        ))),
        None => Ok(()),
    }
}

/// The last parameters of a call that passed the checks. Most requests of a call share their lists.
#[derive(Default)]
pub(super) struct CheckedParams(Option<SamplingParams>);

impl CheckedParams {
    /// Checks a request's namespace and parameters, and shared lists only the first time.
    pub(super) fn check(
        &mut self,
        request: &GenerateRequest,
        settings: &TokenizerSettings,
    ) -> Result<(), RequestError> {
        let limits = &settings.request_limits;
        request.namespace.validate(limits)?;
        let sampling = &request.sampling;
        if self
            .0
            .as_ref()
            .is_some_and(|good| shares_lists(good, sampling))
        {
            return without_lists(sampling).validate(settings.vocab_size, limits);
        }
        sampling.validate(settings.vocab_size, limits)?;
        if !sampling.stop.is_empty() && settings.text.is_none() {
            let text = "stop strings need a tokenizer, which this engine lacks: use stop_token_ids";
            return Err(FieldError::new("stop", text).into());
        }
        self.0 = Some(sampling.clone());
        Ok(())
    }
}

fn shares_lists(one: &SamplingParams, other: &SamplingParams) -> bool {
    Arc::ptr_eq(&one.stop, &other.stop)
        && Arc::ptr_eq(&one.stop_token_ids, &other.stop_token_ids)
        && Arc::ptr_eq(&one.logit_bias, &other.logit_bias)
}

fn without_lists(sampling: &SamplingParams) -> SamplingParams {
    SamplingParams {
        stop: Arc::default(),
        stop_token_ids: Arc::default(),
        logit_bias: Arc::default(),
        ..sampling.clone()
    }
}

/// Clips the output length of a checked request to the context left after its prompt, and chooses a seed if it has
/// none. `call_entries` counts the prompt log probabilities of the call.
pub(super) fn check_and_clip(
    request: &mut GenerateRequest,
    prompt_tokens: usize,
    call_entries: &mut usize,
    settings: &TokenizerSettings,
) -> Result<SamplingParams, RequestError> {
    if let Some(wish) = &mut request.logprobs {
        check_wish(wish, prompt_tokens, settings)?;
        *call_entries += check_entries(wish, prompt_tokens, *call_entries, settings)?;
    }
    let mut sampling = std::mem::take(&mut request.sampling).normalized();
    if request.pooling.is_some() {
        check_embedding(request, settings)?;
        (sampling.max_new_tokens, sampling.min_new_tokens) = (0, 0);
    }
    let wanted = sampling.max_new_tokens as usize;
    let clipped = settings.limits.clip_max_new_tokens(prompt_tokens, wanted)?;
    sampling.max_new_tokens = clipped as u32;
    sampling.min_new_tokens = sampling.min_new_tokens.min(sampling.max_new_tokens);
    sampling.sampling_seed = Some(
        sampling
            .sampling_seed
            .unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0),
    );
    Ok(sampling)
}

/// Refuses an embedding request that also requests output, or that the executor cannot serve.
fn check_embedding(
    request: &GenerateRequest,
    settings: &TokenizerSettings,
) -> Result<(), RequestError> {
    let has_output =
        request.logprobs.is_some() || request.constraint.is_some() || request.parsing.is_some();
    match settings.hidden_size {
        None => Err(no_embeddings()),
        Some(_) if has_output => Err(invalid(
            "an embedding request has no output: leave log probabilities, constraints and tools out".to_owned(),
        )),
        Some(_) => Ok(()),
    }
}

/// The error if the executor cannot compute embeddings, or returned none.
pub(super) fn no_embeddings() -> RequestError {
    invalid(
        "this engine cannot compute embeddings: its custom executor does not return hidden states"
            .to_owned(),
    )
}

/// True if a prompt has a text to encode: token ids and embeddings have none, except a prediction.
pub(super) fn is_text(weighed: &WeightedPrompt) -> bool {
    let is_text = matches!(
        weighed.prompt,
        Prompt::Text(_) | Prompt::Chat(_) | Prompt::Infill(_) | Prompt::TextImages(_)
    );
    is_text || weighed.form.prediction.is_some()
}

pub(super) fn invalid(reason: String) -> RequestError {
    RequestError::Invalid(reason)
}
