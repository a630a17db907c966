//! The OpenAPI description of chat completions.

use serde_json::json;
use utoipa::openapi::path::Operation;

use super::messages::ROLES;
use super::reasoning::EFFORTS;
use super::tools::{MAX_NAME_BYTES, MAX_TOOLS};
use crate::llama_cpp;
use crate::openai::MAX_TOP_LOGPROBS;
use crate::openai::docs::matched_stop;
use crate::openapi::facts::Facts;
use crate::openapi::operation::{Group, describe};
use crate::openapi::shape::{
    ObjectShape, Shape, any_of, anything, count, enum_of, flag, free_object, integer, list, named,
    number, object, text, token_id, whole,
};
use crate::openapi::shared;

pub(crate) fn operation(facts: &Facts) -> Operation {
    let example = json!({
        "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 16
    });
    describe(Group::OpenAi, "Continue a chat")
        .takes(fields(facts).shape(), example)
        .answers(named("ChatCompletion"), "the completion, or its chunks")
        .streams("ChatCompletionChunk", "With `stream`: chunks as events, then `[DONE]`. An error in the middle of a stream is an event with `error`.")
        .runs_requests()
        .done()
}

/// The fields of a call.
pub(crate) fn fields(facts: &Facts) -> ObjectShape {
    prompt().and(shared::common(facts)).and(answer_fields())
}

pub(crate) fn prompt() -> ObjectShape {
    object()
        .has("messages", list(named("ChatMessage")).longer_than(0))
        .takes(
            "tools",
            list(named("Tool"))
                .up_to(MAX_TOOLS)
                .about("functions that the model may call, of at most 4 MiB of JSON together"),
        )
        .takes("tool_choice", tool_choice())
        .takes(
            "parallel_tool_calls",
            flag()
                .or(true)
                .about("false: at most one call in an answer"),
        )
        .takes(
            "functions",
            list(function())
                .up_to(MAX_TOOLS)
                .about("older name of `tools`"),
        )
        .takes(
            "function_call",
            any_of([text(), free_object()]).about("older name of `tool_choice`"),
        )
        .takes("chat_template_kwargs", template_kwargs())
        .takes(
            "add_generation_prompt",
            flag()
                .or(true)
                .about("the assistant's answer begins after the last message"),
        )
        .takes(
            "continue_final_message",
            flag()
                .or(false)
                .about("the last message, the assistant's, is continued"),
        )
        .and(reasoning())
}

pub(crate) fn optional_prompt() -> ObjectShape {
    let messages = list(named("ChatMessage")).longer_than(0);
    let without = prompt().without(&["messages"]);
    object().takes("messages", messages).and(without)
}

pub(crate) fn template_kwargs() -> Shape {
    free_object().about("variables of the chat template")
}

/// The fields that control reasoning and its place in the answer.
pub(crate) fn reasoning() -> ObjectShape {
    let nested = object()
        .takes("effort", enum_of(EFFORTS))
        .takes("enabled", flag())
        .takes("exclude", flag().about("do not send it"));
    object()
        .takes(
            "reasoning_effort",
            enum_of(EFFORTS).about("passed to the chat template"),
        )
        .takes(
            "reasoning",
            nested.shape().about("OpenRouter's names of the same"),
        )
        .takes(
            "separate_reasoning",
            flag()
                .or(true)
                .about("false leaves the reasoning in `content`"),
        )
        .takes(
            "stream_reasoning",
            flag()
                .or(true)
                .about("false sends the reasoning of a stream in one delta"),
        )
        .takes(
            "include_reasoning",
            flag().or(true).about("false does not send it"),
        )
}

fn answer_fields() -> ObjectShape {
    object()
        .takes("max_tokens", count().about("maximum number of tokens to generate; by default as many as fit into the context; 0 computes the prompt alone"))
        .takes("max_completion_tokens", count().about("the same; it wins over `max_tokens`"))
        .takes("logprobs", flag().or(false))
        .takes("top_logprobs", whole().at_least(0).at_most(MAX_TOP_LOGPROBS).about("alternatives of each token; with `logprobs`"))
        .takes("modalities", list(text()).up_to(1).about("`[\"text\"]`"))
        .takes("prediction", prediction())
        .and(llama_cpp::chat_fields())
}

fn prediction() -> Shape {
    let part = object().has("type", enum_of(["text"])).has("text", text());
    object()
        .has("type", enum_of(["content"]))
        .has("content", any_of([text(), list(part.shape())]))
        .shape()
        .about("a guess of the answer's text: where the server speculates, parts that the model repeats are generated faster")
}

fn tool_choice() -> Shape {
    let by_name = object().has("name", text()).shape();
    any_of([
        enum_of(["none", "auto", "required", ""]),
        object()
            .has("type", enum_of(["function"]))
            .may_have("function", by_name)
            .may_have("name", text())
            .shape(),
        object()
            .has("type", enum_of(["allowed_tools"]))
            .may_have("allowed_tools", free_object())
            .shape(),
        object().has("name", text()).shape(),
    ])
    .about("which tools may or must be called")
}

pub(crate) fn function() -> Shape {
    object()
        .has(
            "name",
            text()
                .longer_than(0)
                .up_to(MAX_NAME_BYTES)
                .like("^[A-Za-z0-9_.-]+$"),
        )
        .takes("description", text())
        .takes("parameters", free_object().about("a JSON schema"))
        .takes(
            "strict",
            flag().about("enforce the schema on the arguments"),
        )
        .shape()
}

fn message() -> Shape {
    let url = object().has("url", text()).takes("detail", anything());
    let url = any_of([text(), url.shape()]);
    let part = object()
        .has("type", enum_of(["text", "refusal", "image_url"]))
        .may_have("text", text())
        .may_have("refusal", text())
        .may_have(
            "image_url",
            url.about("a `data:` URL, or a URL of an allowed host"),
        );
    let function = object()
        .has("name", text())
        .takes("arguments", any_of([text(), free_object()]));
    let call = object()
        .takes("id", text())
        .takes("type", enum_of(["function"]))
        .has("function", function.clone().shape());
    object()
        .has("role", enum_of(ROLES))
        .takes(
            "content",
            any_of([text(), list(part.shape())])
                .about("a text, or text parts and images; the user's messages must have it"),
        )
        .takes("name", anything())
        .takes("refusal", text())
        .takes(
            "reasoning_content",
            text().about("reasoning of an earlier answer"),
        )
        .takes("reasoning", text().about("the same"))
        .takes("tool_calls", list(call.shape()))
        .takes("tool_call_id", anything())
        .takes("function_call", function.shape())
        .shape()
}

pub(crate) fn components() -> Vec<(&'static str, Shape)> {
    let tool = object()
        .has("type", enum_of(["function"]))
        .has("function", function());
    vec![
        ("ChatMessage", message()),
        ("Tool", tool.shape()),
        ("ChatCompletion", completion()),
        ("ChatCompletionChunk", chunk()),
        ("TokenLogprob", token_logprob()),
    ]
}

fn head(object_name: &str) -> ObjectShape {
    object()
        .has("id", text())
        .has("object", enum_of([object_name]))
        .has("created", count())
        .has("model", text())
}

fn details() -> ObjectShape {
    let logprobs = object().has("content", list(named("TokenLogprob")));
    object()
        .has("logprobs", logprobs.shape().or_null())
        .has("finish_reason", text().or_null())
        .has("matched_stop", matched_stop())
        .may_have("token_ids", list(token_id()))
}

fn reasoning_text() -> ObjectShape {
    object()
        .may_have("reasoning_content", text())
        .may_have("reasoning", text())
}

fn completion() -> Shape {
    let function = object().has("name", text()).has("arguments", text());
    let call = object()
        .has("id", text())
        .has("type", enum_of(["function"]))
        .has("function", function.shape());
    let message = object()
        .has("role", enum_of(["assistant"]))
        .has("content", text().or_null())
        .has("refusal", text().or_null())
        .and(reasoning_text())
        .may_have("tool_calls", list(call.shape()));
    let choice = object()
        .has("index", count())
        .has("message", message.shape())
        .and(details());
    head("chat.completion")
        .has("choices", list(choice.shape()))
        .has("usage", named("Usage"))
        .may_have("sglext", shared::sglext())
        .shape()
}

fn chunk() -> Shape {
    let function = object().may_have("name", text()).has("arguments", text());
    let call = object()
        .has("index", count())
        .may_have("id", text())
        .may_have("type", enum_of(["function"]))
        .has("function", function.shape());
    let delta = object()
        .may_have("role", enum_of(["assistant"]))
        .may_have("content", text())
        .and(reasoning_text())
        .may_have("tool_calls", list(call.shape()));
    let choice = object()
        .has("index", count())
        .has("delta", delta.shape())
        .and(details());
    head("chat.completion.chunk")
        .has("choices", list(choice.shape()))
        .has("usage", named("Usage").or_null())
        .may_have("sglext", shared::sglext())
        .shape()
}

fn token_logprob() -> Shape {
    let spelled = || {
        object()
            .has("token", text())
            .has("logprob", number())
            .has("bytes", list(integer::<u32>()))
    };
    spelled()
        .has("top_logprobs", list(spelled().shape()))
        .shape()
}
