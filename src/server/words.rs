//! The messages of errors that each API has its own words for.
//!
//! Agents shorten a conversation after the error for a prompt that is too long. Most agents recognise the error by the
//! words of their API, not by a code or a status. docs/api.md lists the agents and the words.

use souffleur_base::error::{PromptTokens, RequestError};

/// The API in whose words an error is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// OpenAI's completions, and every endpoint that belongs to no other API.
    OpenAi,
    Responses,
    Anthropic,
    Ollama,
    /// SGLang's `/generate`, by HTTP, WebSocket and gRPC.
    Sglang,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worded {
    PromptTooLong {
        prompt_tokens: PromptTokens,
        limit_tokens: usize,
    },
    /// Clients of Anthropic's and Ollama's APIs do not know the field that the other APIs have for it.
    NotContinued,
}

impl Worded {
    pub(super) fn of(error: &RequestError) -> Option<Self> {
        match error {
            RequestError::PromptTooLong {
                prompt_tokens,
                limit_tokens,
            } => Some(Self::PromptTooLong {
                prompt_tokens: *prompt_tokens,
                limit_tokens: *limit_tokens,
            }),
            RequestError::NotContinued => Some(Self::NotContinued),
            _ => None,
        }
    }

    pub(super) fn message_in(self, dialect: Dialect) -> String {
        match self {
            Self::PromptTooLong {
                prompt_tokens,
                limit_tokens,
            } => too_long(dialect, prompt_tokens, limit_tokens),
            Self::NotContinued => not_continued(dialect),
        }
    }
}

fn too_long(dialect: Dialect, prompt_tokens: PromptTokens, limit_tokens: usize) -> String {
    match dialect {
        Dialect::OpenAi => format!(
            "This model's maximum context length is {limit_tokens} tokens. However, you requested {prompt_tokens} \
             in the prompt. Please reduce the length of the messages."
        ),
        // Some clients see only an event's message, not its code, and recognise these first words.
        Dialect::Responses => format!(
            "Your input exceeds the context window of this model. {}",
            too_long(Dialect::OpenAi, prompt_tokens, limit_tokens)
        ),
        Dialect::Anthropic => {
            format!("prompt is too long: {prompt_tokens} > {limit_tokens} maximum")
        }
        Dialect::Ollama => format!(
            "the input length exceeds the context length. {}",
            too_long(Dialect::OpenAi, prompt_tokens, limit_tokens)
        ),
        Dialect::Sglang => RequestError::PromptTooLong {
            prompt_tokens,
            limit_tokens,
        }
        .to_string(),
    }
}

fn not_continued(dialect: Dialect) -> String {
    if matches!(dialect, Dialect::Anthropic | Dialect::Ollama) {
        return "messages ends with an assistant message, which cannot be continued, because this model's chat template \
                changes it: end messages with a user message"
            .to_owned();
    }
    RequestError::NotContinued.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ApiError;

    #[track_caller]
    fn check(dialect: Dialect, prompt_tokens: PromptTokens, expected: &str) {
        let error = ApiError::from(RequestError::PromptTooLong {
            prompt_tokens,
            limit_tokens: 4094,
        });
        assert_eq!(error.code(), "context_length_exceeded");
        assert_eq!(error.in_dialect(dialect).message(), expected);
    }

    #[test]
    fn each_api_has_its_words_for_a_prompt_that_is_too_long() {
        let exactly = PromptTokens::Exactly(5011);
        check(
            Dialect::OpenAi,
            exactly,
            "This model's maximum context length is 4094 tokens. However, you requested 5011 tokens in the prompt. \
             Please reduce the length of the messages.",
        );
        check(
            Dialect::Responses,
            exactly,
            "Your input exceeds the context window of this model. This model's maximum context length is 4094 tokens. \
             However, you requested 5011 tokens in the prompt. Please reduce the length of the messages.",
        );
        check(
            Dialect::Anthropic,
            exactly,
            "prompt is too long: 5011 tokens > 4094 maximum",
        );
        check(
            Dialect::Ollama,
            exactly,
            "the input length exceeds the context length. This model's maximum context length is 4094 tokens. However, \
             you requested 5011 tokens in the prompt. Please reduce the length of the messages.",
        );
        check(
            Dialect::Sglang,
            exactly,
            "the input (5011 tokens) is longer than the model's context length (4094 tokens): shorten the prompt, or \
             restart the server with a larger --context-length or --max-total-tokens",
        );
        check(
            Dialect::Anthropic,
            PromptTokens::AtLeast(900_000),
            "prompt is too long: at least 900000 tokens > 4094 maximum",
        );
    }

    #[test]
    fn a_message_that_cannot_be_continued_is_explained_without_a_field_that_the_api_lacks() {
        let error = ApiError::from(RequestError::NotContinued);
        assert_eq!(error.code(), "invalid_request");
        assert!(error.message().starts_with("continue_final_message"));
        for dialect in [Dialect::Anthropic, Dialect::Ollama] {
            let error = error.clone().in_dialect(dialect);
            assert!(!error.message().contains("continue_final_message"));
            assert!(error.message().starts_with("messages ends with"));
        }
    }

    #[test]
    fn other_errors_have_the_same_words_everywhere() {
        let error = ApiError::from(RequestError::ShuttingDown);
        assert_eq!(error.clone().in_dialect(Dialect::Anthropic), error);
    }
}
