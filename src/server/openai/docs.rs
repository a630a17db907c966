//! The OpenAPI description of plain completions, and the shape of `matched_stop`, which chats use too.

use serde_json::json;
use utoipa::openapi::path::Operation;

use super::MAX_TOP_LOGPROBS;
use super::completions::DEFAULT_MAX_TOKENS;
use crate::openapi::facts::Facts;
use crate::openapi::operation::{Group, describe};
use crate::openapi::shape::{
    Shape, any_of, count, enum_of, flag, integer, list, map_of, named, number, object, text,
    token_id, whole,
};
use crate::openapi::shared;

pub(crate) fn completions(facts: &Facts) -> Operation {
    let alternatives = whole().at_least(0).at_most(MAX_TOP_LOGPROBS);
    let fields = object()
        .has(
            "prompt",
            shared::prompts(facts).about("one prompt or several, as text or token ids"),
        )
        .takes("suffix", shared::suffix())
        .takes(
            "max_tokens",
            count()
                .or(DEFAULT_MAX_TOKENS)
                .about("maximum number of tokens to generate; 0 computes the prompt alone"),
        )
        .takes(
            "echo",
            flag()
                .or(false)
                .about("repeat the prompt before the output"),
        )
        .takes(
            "logprobs",
            any_of([alternatives, flag()])
                .about("alternatives of each token; false for no log probabilities"),
        )
        .takes("best_of", integer::<u32>().about("1, or as many as `n`"))
        .and(shared::common(facts));
    let example = json!({"prompt": "The weather today is", "max_tokens": 8});
    describe(Group::OpenAi, "Continue prompts")
        .takes(fields.shape(), example)
        .answers(named("Completion"), "the completion, or its chunks")
        .streams("Completion", "With `stream`: chunks as events, then `[DONE]`. An error in the middle of a stream is an event with `error`.")
        .runs_requests()
        .done()
}

pub(super) fn matched_stop() -> Shape {
    any_of([token_id(), text()]).or_null()
}

pub(crate) fn components(_: &Facts) -> Vec<(&'static str, Shape)> {
    let logprobs = object()
        .has("tokens", list(text()))
        .has("token_logprobs", list(number().or_null()))
        .has("top_logprobs", list(map_of(number()).or_null()).or_null())
        .has("text_offset", list(count()));
    let choice = object()
        .has("index", count())
        .has("text", text())
        .has("logprobs", logprobs.shape().or_null())
        .has("finish_reason", text().or_null())
        .has("matched_stop", matched_stop())
        .may_have("token_ids", list(token_id()));
    let completion = object()
        .has("id", text())
        .has("object", enum_of(["text_completion"]))
        .has("created", count())
        .has("model", text())
        .has("choices", list(choice.shape()))
        .has("usage", named("Usage").or_null())
        .may_have("sglext", shared::sglext());
    vec![("Completion", completion.shape())]
}
