//! The message for a prompt that is too long, in the words that clients of each API look for.
//!
//! Agents shorten a conversation after this error. Most agents recognise the error by the words of their API, not by a
//! code or a status. docs/api.md lists the agents and the words.

use souffleur_base::error::{PromptTokens, RequestError};

/// The API in whose words an error is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// OpenAI's completions, and every endpoint that belongs to no other API.
    OpenAi,
    Responses,
    Anthropic,
    /// SGLang's `/generate`, by HTTP, WebSocket and gRPC.
    Sglang,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overflow {
    prompt_tokens: PromptTokens,
    limit_tokens: usize,
}

impl Overflow {
    pub(super) fn of(error: &RequestError) -> Option<Self> {
        match error {
            RequestError::PromptTooLong {
                prompt_tokens,
                limit_tokens,
            } => Some(Self {
                prompt_tokens: *prompt_tokens,
                limit_tokens: *limit_tokens,
            }),
            _ => None,
        }
    }

    pub(super) fn message_in(self, dialect: Dialect) -> String {
        let Self {
            prompt_tokens,
            limit_tokens,
        } = self;
        match dialect {
            Dialect::OpenAi => format!(
                "This model's maximum context length is {limit_tokens} tokens. However, you requested {prompt_tokens} \
                 in the prompt. Please reduce the length of the messages."
            ),
            // Some clients see only an event's message, not its code, and recognise these first words.
            Dialect::Responses => format!(
                "Your input exceeds the context window of this model. {}",
                self.message_in(Dialect::OpenAi)
            ),
            Dialect::Anthropic => {
                format!("prompt is too long: {prompt_tokens} > {limit_tokens} maximum")
            }
            Dialect::Sglang => RequestError::PromptTooLong {
                prompt_tokens,
                limit_tokens,
            }
            .to_string(),
        }
    }
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
    fn other_errors_have_the_same_words_everywhere() {
        let error = ApiError::from(RequestError::ShuttingDown);
        assert_eq!(error.clone().in_dialect(Dialect::Anthropic), error);
    }
}
