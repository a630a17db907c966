//! Computes the probabilities of label tokens after prompts, for `/v1/score` and `/v1/rerank`.

use std::sync::Arc;

use actix_web::web::Data;

use super::budget::Charges;
use super::call::CallLimits;
use super::error::ApiError;
use super::fields::Fields;
use super::lanes::{Lane, finish_all};
use super::options::Scheduling;
use super::state::AppState;
use super::transcript::Transcript;
use souffleur_request::{GenerateRequest, Prompt, Usage};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::sampling::{LogprobWish, SamplingParams};

/// Tokens that a call scores after each of its prompts.
pub(super) struct Labels {
    pub(super) tokens: Arc<[u32]>,
    /// Scores are normalised over the labels, and not over all tokens.
    pub(super) softmax: bool,
}

/// The prompts of a call, and the options that their requests share.
pub(super) struct Requests {
    pub(super) prompts: Vec<Prompt>,
    pub(super) namespace: Namespace,
    pub(super) scheduling: Scheduling,
}

pub(super) struct Scores {
    pub(super) scores: Vec<Vec<f64>>,
    pub(super) usages: Vec<Usage>,
}

pub(super) fn limits(state: &AppState) -> Result<CallLimits<'_>, ApiError> {
    Ok(CallLimits {
        max_requests: state.config().max_batch_requests,
        websocket: None,
        request: state.serving()?.engine.request_limits(),
        embeds: None,
    })
}

/// Charges a call for its prompts before they are built: each prompt will hold a copy of the shared text.
pub(super) fn charge_copies(
    fields: &mut Fields,
    copied_bytes: usize,
    n_prompts: usize,
    other_bytes: usize,
) -> Result<(), ApiError> {
    let copies = copied_bytes.saturating_mul(n_prompts);
    fields.charge_request_bytes(copies.saturating_add(other_bytes))
}

pub(super) async fn run(
    state: &Data<AppState>,
    requests: Requests,
    labels: &Labels,
    charges: Charges,
) -> Result<Scores, ApiError> {
    let wish = LogprobWish {
        token_ids: labels.tokens.clone(),
        ..LogprobWish::default()
    };
    let Requests {
        prompts,
        namespace,
        scheduling,
    } = requests;
    let request = |prompt| GenerateRequest {
        sampling: SamplingParams {
            max_new_tokens: 1,
            temperature: 0.0,
            ..SamplingParams::default()
        },
        logprobs: Some(wish.clone()),
        namespace: namespace.clone(),
        priority: scheduling.priority,
        timeouts: scheduling.timeouts,
        is_streaming: false,
        ..GenerateRequest::new(prompt)
    };
    let requests = prompts.into_iter().map(request).collect();
    let lanes = Lane::open_all(state, requests)?;
    let transcripts = finish_all(Lane::with_charges(lanes, charges)).await?;
    let scores: Result<_, ApiError> = transcripts
        .iter()
        .map(|transcript| scores(transcript, labels.softmax))
        .collect();
    Ok(Scores {
        scores: scores?,
        usages: transcripts.iter().map(usage).collect(),
    })
}

/// The sampled token does not count as output: only the log probabilities of the labels are used.
fn usage(transcript: &Transcript) -> Usage {
    Usage {
        completion_tokens: 0,
        ..transcript.usage
    }
}

fn scores(transcript: &Transcript, softmax: bool) -> Result<Vec<f64>, ApiError> {
    let first = transcript.output_logprobs.first();
    let first = first.ok_or_else(ApiError::aborted)?;
    let logprobs = first.chosen.iter().map(|(_, logprob)| f64::from(*logprob));
    let probs: Vec<f64> = if !softmax {
        logprobs.map(f64::exp).collect()
    } else {
        // Relative to the largest log probability, so that not all exponentials underflow.
        let largest = logprobs.clone().fold(f64::NEG_INFINITY, f64::max);
        let probs: Vec<f64> = logprobs.map(|logprob| (logprob - largest).exp()).collect();
        let sum: f64 = probs.iter().sum();
        probs.iter().map(|p| p / sum).collect()
    };
    // The softmax of log probabilities that are all -infinity is NaN, which JSON cannot represent.
    Ok(probs
        .into_iter()
        .map(|p| if p.is_finite() { p } else { 0.0 })
        .collect())
}
