//! The JSON types that OpenAI's completions and chat completions share.

use serde::Serialize;

use crate::cached::CachedTokens;
use souffleur_request::{PredictionUsage, Usage};

#[derive(Serialize)]
pub(super) struct Response<'a, C> {
    pub(super) id: &'a str,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: &'a str,
    pub(super) choices: Vec<C>,
    pub(super) usage: Option<UsageReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sglext: Option<Extension>,
}

impl<C> Response<'_, C> {
    pub(super) fn extended(self, sglext: Option<Extension>) -> Self {
        Self { sglext, ..self }
    }
}

/// The fields that SGLang adds to OpenAI's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Extension {
    cached_tokens_details: CachedTokens,
}

impl Extension {
    /// The cached tokens of a call, which SGLang reports for the first of its choices.
    pub(super) fn of_cached_tokens(usages: &[Usage]) -> Self {
        let usage = usages.first().copied().unwrap_or_default();
        Self {
            cached_tokens_details: CachedTokens::of(&usage),
        }
    }
}

pub(super) struct Head {
    pub(super) id: String,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: String,
}

impl Head {
    pub(super) fn with<C>(&self, choices: Vec<C>, usage: Option<UsageReport>) -> Response<'_, C> {
        let Self {
            id,
            object,
            created,
            model,
        } = self;
        Response {
            id,
            object,
            created: *created,
            model,
            choices,
            usage,
            sglext: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct UsageReport {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptTokens,
    completion_tokens_details: CompletionTokens,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct PromptTokens {
    cached_tokens: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct CompletionTokens {
    reasoning_tokens: u64,
    /// Only with a `prediction`.
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_prediction_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rejected_prediction_tokens: Option<u64>,
}

impl CompletionTokens {
    fn add(&mut self, usage: &Usage) {
        self.reasoning_tokens += u64::from(usage.reasoning_tokens);
        let Some(PredictionUsage { accepted, rejected }) = usage.prediction else {
            return;
        };
        for (sum, tokens) in [
            (&mut self.accepted_prediction_tokens, accepted),
            (&mut self.rejected_prediction_tokens, rejected),
        ] {
            *sum.get_or_insert(0) += u64::from(tokens);
        }
    }
}

impl UsageReport {
    /// Adds up the usage of `n` samples of each prompt, ordered by prompt: a prompt counts once.
    pub(crate) fn of(usages: impl IntoIterator<Item = Usage>, n: usize) -> Self {
        let mut report = Self::default();
        for (index, usage) in usages.into_iter().enumerate() {
            if index % n == 0 {
                report.prompt_tokens += u64::from(usage.prompt_tokens);
                report.prompt_tokens_details.cached_tokens += u64::from(usage.cached_tokens);
            }
            report.completion_tokens += u64::from(usage.completion_tokens);
            report.completion_tokens_details.add(&usage);
        }
        report.total_tokens = report.prompt_tokens + report.completion_tokens;
        report
    }
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum Matched {
    Token(u32),
    Text(String),
}
