//! From a client's request to a submission: validated, encoded, clipped, seeded.

use std::sync::Arc;

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};

use crate::actors::messages::{Generate, Submit};
use crate::error::RequestError;
use crate::executor::LogprobWish;
use crate::ids::{IntakeId, RequestId};
use crate::model::text::{self, TextModel};
use crate::request::{
    CancelFlag, ChatPrompt, Event, FinishReason, Finished, GenerateRequest, Prompt,
};
use crate::sink::EventSink;
use crate::state::sampling::SamplingParams;
use crate::state::sequence::Submission;

use super::live::Live;
use super::{Tokenizer, TokenizerSettings};

/// Longest text that is encoded on the Tokenizer's own thread: some milliseconds of work.
const MAX_INLINE_BYTES: usize = 8 << 10;
/// How many bytes a normalizer may make one of (NFC composes three characters of three bytes into one).
const MAX_NORMALIZER_SHRINK: usize = 4;

/// A request that has arrived and is not encoded yet.
pub(super) struct Arrival {
    rid: RequestId,
    sink: EventSink,
    cancel: CancelFlag,
    is_streaming: bool,
}

impl Tokenizer {
    /// Takes a request in: a short prompt is encoded here, a long one aside, since its text would hold up the others'.
    pub(super) fn take_in(&mut self, generate: Generate, ctx: &mut Context<Self>) {
        let (request, sink, cancel, _timer) = generate.open();
        self.metrics.received(request.is_streaming);
        let arrival = Arrival {
            rid: request.rid.clone(),
            sink,
            cancel,
            is_streaming: request.is_streaming,
        };
        if self.intakes.contains_key(&arrival.rid) || self.aside.contains(&arrival.rid) {
            let error = RequestError::DuplicateRequest(arrival.rid.as_str().to_owned());
            return self.refuse(arrival, error);
        }
        if request.prompt.text_bytes() <= MAX_INLINE_BYTES {
            let prepared = prepare(*request, &self.settings);
            return self.encoded(arrival, prepared);
        }
        let settings = self.settings.clone();
        self.aside.enter(&arrival.rid, &arrival.cancel);
        let encode = self.aside.run(move || prepare(*request, &settings));
        let encoded = encode.into_actor(self).map(|prepared, tokenizer, _| {
            tokenizer.aside.leave(&arrival.rid);
            tokenizer.encoded(arrival, prepared);
        });
        ctx.spawn(encoded);
    }

    /// Submits an encoded request, or ends it.
    fn encoded(&mut self, mut arrival: Arrival, prepared: Result<Prepared, RequestError>) {
        if arrival.cancel.is_raised() {
            self.metrics.cancelled_at_the_door(arrival.is_streaming);
            return arrival.sink.finish(Event::Cancelled(Box::new(Finished {
                delta: Default::default(),
                reason: FinishReason::Abort,
                e2e_latency_s: 0.0,
            })));
        }
        let charged = prepared.and_then(|prepared| {
            arrival.sink.charge_prompt(prepared.prompt.len())?;
            Ok(prepared)
        });
        match charged {
            Err(error) => self.refuse(arrival, error),
            Ok(prepared) => self.submit(arrival, prepared),
        }
    }

    fn refuse(&mut self, arrival: Arrival, error: RequestError) {
        self.metrics.failed(error.code());
        arrival.sink.finish(Event::Failed(error));
    }

    fn submit(&mut self, arrival: Arrival, prepared: Prepared) {
        let Prepared {
            prompt,
            sampling,
            request,
        } = prepared;
        self.next_intake = IntakeId::new(self.next_intake.get() + 1);
        let submission = Submission {
            rid: arrival.rid.clone(),
            intake: match arrival.sink.is_probe() {
                true => self.next_intake.of_probe(),
                false => self.next_intake,
            },
            prompt,
            namespace: request.namespace,
            sampling,
            logprobs: request.logprobs.map(Arc::new),
            priority: request.priority,
            cancel: arrival.cancel,
            submitted_s: 0.0,
            timeouts: request.timeouts.tightened(self.settings.timeouts),
        };
        let live = Live::new(
            &submission,
            arrival.sink,
            arrival.is_streaming,
            &self.settings,
        );
        self.intakes.insert(arrival.rid, submission.intake);
        self.live.insert(submission.intake, live);
        self.links.submit.post(Submit {
            request: Box::new(submission),
        });
    }
}

/// A request that can be submitted.
pub(super) struct Prepared {
    prompt: Arc<[u32]>,
    sampling: Arc<SamplingParams>,
    request: GenerateRequest,
}

fn prepare(
    mut request: GenerateRequest,
    settings: &TokenizerSettings,
) -> Result<Prepared, RequestError> {
    let limits = &settings.request_limits;
    request.sampling.validate(settings.vocab_size, limits)?;
    request.namespace.validate(limits)?;
    if !request.sampling.stop.is_empty() && settings.text.is_none() {
        return Err(invalid(
            "stop strings need a tokenizer, use stop_token_ids".to_owned(),
        ));
    }
    let placeholder = Prompt::Tokens(Arc::default());
    let prompt = encode(
        std::mem::replace(&mut request.prompt, placeholder),
        settings,
    )?;
    check_prompt(&prompt, settings.vocab_size)?;
    if let Some(wish) = &mut request.logprobs {
        check_wish(wish, prompt.len(), settings)?;
        check_entries(wish, prompt.len(), settings.max_logprob_entries)?;
    }
    let mut sampling = std::mem::take(&mut request.sampling).normalized();
    let wanted = sampling.max_new_tokens as usize;
    let clipped = settings.limits.clip_max_new_tokens(prompt.len(), wanted)?;
    sampling.max_new_tokens = clipped as u32;
    sampling.min_new_tokens = sampling.min_new_tokens.min(sampling.max_new_tokens);
    sampling.sampling_seed = Some(
        sampling
            .sampling_seed
            .unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0),
    );
    Ok(Prepared {
        prompt,
        sampling: Arc::new(sampling),
        request,
    })
}

fn encode(prompt: Prompt, settings: &TokenizerSettings) -> Result<Arc<[u32]>, RequestError> {
    refuse_hopeless(&prompt, settings)?;
    let text = settings.text.as_deref();
    let tokenizer = || {
        text.ok_or_else(|| {
            invalid("the engine runs without a tokenizer: send input_ids".to_owned())
        })
    };
    match prompt {
        Prompt::Tokens(tokens) => Ok(tokens),
        Prompt::Text(text) => Ok(tokenizer()?.encode(&text)?.into()),
        Prompt::Chat(chat) => Ok(render(tokenizer()?, &chat)?.into()),
    }
}

/// Refuses a text that is too long however well it encodes, before time and memory are spent on it.
fn refuse_hopeless(prompt: &Prompt, settings: &TokenizerSettings) -> Result<(), RequestError> {
    let Some(text) = settings.text.as_deref() else {
        return Ok(());
    };
    let limit_tokens = settings.limits.max_prompt_tokens();
    let prompt_tokens = prompt.text_bytes() / (text.max_token_bytes() * MAX_NORMALIZER_SHRINK);
    if prompt_tokens > limit_tokens {
        return Err(RequestError::PromptTooLong {
            prompt_tokens,
            limit_tokens,
        });
    }
    Ok(())
}

fn render(text: &TextModel, chat: &ChatPrompt) -> Result<Vec<u32>, RequestError> {
    let rendered = text.render_chat(&text::ChatPrompt {
        messages: &chat.messages,
        tools: chat.tools.as_ref(),
        add_generation_prompt: chat.add_generation_prompt,
        template_kwargs: Some(&chat.template_kwargs),
    })?;
    text.encode_chat(&rendered)
}

fn check_prompt(prompt: &[u32], vocab_size: usize) -> Result<(), RequestError> {
    if prompt.is_empty() {
        return Err(invalid(
            "the prompt has no tokens: send at least one".to_owned(),
        ));
    }
    match prompt.iter().find(|token| **token as usize >= vocab_size) {
        Some(token) => Err(invalid(format!(
            "input_ids holds {token}, the vocabulary has {vocab_size} tokens"
        ))),
        None => Ok(()),
    }
}

fn check_wish(
    wish: &mut LogprobWish,
    prompt_tokens: usize,
    settings: &TokenizerSettings,
) -> Result<(), RequestError> {
    let vocab_size = settings.vocab_size;
    let limit = settings.request_limits.max_logprobs;
    if let Some(start) = wish.start
        && start as usize >= prompt_tokens
    {
        return Err(invalid(format!(
            "logprob_start_len is {start}, the prompt has {prompt_tokens} tokens"
        )));
    }
    let counts = [
        ("top_logprobs_num", wish.top as usize),
        ("token_ids_logprob", wish.token_ids.len()),
    ];
    for (name, count) in counts {
        if count > limit {
            return Err(invalid(format!(
                "{name} asks for {count}, limit is {limit}: ask for fewer"
            )));
        }
    }
    if let Some(token) = wish
        .token_ids
        .iter()
        .find(|token| **token as usize >= vocab_size)
    {
        return Err(invalid(format!(
            "token_ids_logprob holds {token}, the vocabulary has {vocab_size} tokens"
        )));
    }
    wish.top = wish.top.min(vocab_size as u32);
    Ok(())
}

/// Refuses a prompt with more log probabilities than an answer may have. Output tokens are not counted: most requests
/// end long before `max_new_tokens`.
fn check_entries(
    wish: &LogprobWish,
    prompt_tokens: usize,
    limit: usize,
) -> Result<(), RequestError> {
    let Some(start) = wish.start else {
        return Ok(());
    };
    let positions = prompt_tokens - start as usize;
    let each = 1 + wish.top as usize + wish.token_ids.len();
    let entries = positions.saturating_mul(each);
    if entries <= limit {
        return Ok(());
    }
    Err(invalid(format!(
        "logprob_start_len asks for {entries} log probabilities ({positions} positions with {each} each), \
         limit is {limit}: start later or ask for fewer alternatives"
    )))
}

fn invalid(reason: String) -> RequestError {
    RequestError::Invalid(reason)
}
