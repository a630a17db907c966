//! From a client's request to a submission: validated, encoded, clipped, seeded.

use std::sync::Arc;

use crate::actors::messages::Generate;
use crate::error::RequestError;
use crate::executor::LogprobWish;
use crate::ids::{IntakeId, RequestId};
use crate::model::text::{self, TextModel};
use crate::request::{ChatPrompt, Event, FinishReason, Finished, GenerateRequest, Prompt};
use crate::state::sampling::SamplingParams;
use crate::state::sequence::Submission;

use super::live::Live;
use super::{Tokenizer, TokenizerSettings};

/// Most alternatives a position, for top log probabilities and for chosen tokens alike.
const MAX_LOGPROBS: usize = 1024;

impl Tokenizer {
    /// Makes a live request and its submission, or ends the request at once.
    pub(super) fn take_in(&mut self, generate: Generate) -> Option<(RequestId, Live, Submission)> {
        let (request, mut sink, cancel, _timer) = generate.open();
        self.metrics.received(request.is_streaming);
        if cancel.is_raised() {
            self.metrics.aborted();
            sink.finish(Event::Cancelled(Box::new(Finished {
                delta: Default::default(),
                reason: FinishReason::Abort,
                e2e_latency_s: 0.0,
            })));
            return None;
        }
        let rid = request.rid.clone();
        let is_streaming = request.is_streaming;
        let prepared = if self.live.contains_key(&rid) {
            Err(RequestError::DuplicateRequest(rid.as_str().to_owned()))
        } else {
            prepare(*request, &self.settings).and_then(|prepared| {
                sink.charge_prompt(prepared.prompt.len())?;
                Ok(prepared)
            })
        };
        match prepared {
            Err(error) => {
                self.metrics.failed(error.code());
                sink.finish(Event::Failed(error));
                None
            }
            Ok(prepared) => {
                let Prepared {
                    prompt,
                    sampling,
                    request,
                } = prepared;
                let logprobs = request.logprobs.map(Arc::new);
                self.next_intake = IntakeId::new(self.next_intake.get() + 1);
                let submission = Submission {
                    rid: rid.clone(),
                    intake: self.next_intake,
                    prompt,
                    namespace: request.namespace,
                    sampling,
                    logprobs,
                    priority: request.priority,
                    cancel,
                    submitted_s: 0.0,
                };
                let live = Live::new(&submission, sink, is_streaming, &self.settings);
                Some((rid, live, submission))
            }
        }
    }
}

struct Prepared {
    prompt: Arc<[u32]>,
    sampling: Arc<SamplingParams>,
    request: GenerateRequest,
}

fn prepare(
    mut request: GenerateRequest,
    settings: &TokenizerSettings,
) -> Result<Prepared, RequestError> {
    request.sampling.validate(settings.vocab_size)?;
    if !request.sampling.stop.is_empty() && settings.text.is_none() {
        return Err(invalid(
            "stop strings need a tokenizer, use stop_token_ids".to_owned(),
        ));
    }
    let placeholder = Prompt::Tokens(Vec::new());
    let prompt = encode(
        std::mem::replace(&mut request.prompt, placeholder),
        settings,
    )?;
    check_prompt(&prompt, settings.vocab_size)?;
    if let Some(wish) = &mut request.logprobs {
        check_wish(wish, prompt.len(), settings.vocab_size)?;
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
        prompt: prompt.into(),
        sampling: Arc::new(sampling),
        request,
    })
}

fn encode(prompt: Prompt, settings: &TokenizerSettings) -> Result<Vec<u32>, RequestError> {
    let text = settings.text.as_deref();
    let tokenizer = || {
        text.ok_or_else(|| {
            invalid("the engine runs without a tokenizer: send input_ids".to_owned())
        })
    };
    match prompt {
        Prompt::Tokens(tokens) => Ok(tokens),
        Prompt::Text(text) => tokenizer()?.encode(&text),
        Prompt::Chat(chat) => render(tokenizer()?, &chat),
    }
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
    vocab_size: usize,
) -> Result<(), RequestError> {
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
        if count > MAX_LOGPROBS {
            return Err(invalid(format!(
                "{name} asks for {count}, limit is {MAX_LOGPROBS}"
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

fn invalid(reason: String) -> RequestError {
    RequestError::Invalid(reason)
}
