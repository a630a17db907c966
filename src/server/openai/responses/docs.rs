//! The OpenAPI description of OpenAI's responses.

use serde_json::json;
use utoipa::openapi::path::Operation;

use super::stored::{MAX_PAGE_ITEMS, PAGE_ITEMS};
use crate::openai::MAX_TOP_LOGPROBS;
use crate::openai::chat::docs::{reasoning, template_kwargs};
use crate::openai::chat::tools::{MAX_NAME_BYTES, MAX_TOOLS};
use crate::openapi::facts::Facts;
use crate::openapi::operation::{Group, describe};
use crate::openapi::shape::{
    ObjectShape, Shape, any_of, anything, count, enum_of, flag, free_object, list, map_of, named,
    number, object, text, whole,
};
use crate::openapi::shared;

const ID: &str = "the id of a stored response";
const UNKNOWN: &str = "no such stored response";

pub(crate) fn operation(facts: &Facts) -> Operation {
    describe(Group::OpenAi, "Create a response")
        .takes(call(facts).shape(), example())
        .answers(named("Response"), "the response, or its events")
        .streams(
            "ResponseEvent",
            "With `stream`: OpenAI's events in their order, without `[DONE]`.",
        )
        .fails(
            404,
            "the input refers to an item that is not stored (`item_reference`)",
        )
        .runs_requests()
        .done()
}

pub(crate) fn count_operation(_: &Facts) -> Operation {
    let counted = object()
        .has("object", enum_of(["response.input_tokens"]))
        .has("input_tokens", count());
    describe(
        Group::OpenAi,
        "Count the tokens that a response's prompt would have",
    )
    .about("Fields that do not affect the prompt are accepted.")
    .takes(prompt().takes("model", shared::model()).shape(), example())
    .answers(counted.shape(), "the count")
    .fails(
        404,
        "the input refers to an item that is not stored (`item_reference`)",
    )
    .needs_engine("overloaded, or without an engine")
    .done()
}

pub(crate) fn read_operation(_: &Facts) -> Operation {
    describe(Group::OpenAi, "A stored response")
        .at("id", ID)
        .query(
            "stream",
            enum_of(["true", "false"]),
            "`true` replays its events",
        )
        .query(
            "starting_after",
            whole().at_least(0),
            "with `stream=true`: the number of the last received event",
        )
        .answers(named("Response"), "the response, or its events")
        .streams(
            "ResponseEvent",
            "With `stream=true`: its events, with the numbers that they had.",
        )
        .fails(400, "a query parameter is invalid")
        .fails(404, UNKNOWN)
        .fails(503, "overloaded")
        .done()
}

pub(crate) fn delete_operation(_: &Facts) -> Operation {
    let deleted = object()
        .has("id", text())
        .has("object", enum_of(["response"]))
        .has("deleted", flag());
    describe(Group::OpenAi, "Delete a response")
        .at("id", ID)
        .answers(deleted.shape(), "it is deleted")
        .fails(404, UNKNOWN)
        .done()
}

pub(crate) fn cancel_operation(_: &Facts) -> Operation {
    describe(
        Group::OpenAi,
        "Cancel a background response: always refused, as there are none",
    )
    .at("id", ID)
    .fails(400, "the response is not in the background")
    .fails(404, UNKNOWN)
    .fails(415, "the body is not declared as JSON")
    .done()
}

pub(crate) fn items_operation(_: &Facts) -> Operation {
    let limit = whole().at_least(1).at_most(MAX_PAGE_ITEMS as u64);
    let page = object()
        .has("object", enum_of(["list"]))
        .has("data", list(free_object()))
        .has("first_id", text().or_null())
        .has("last_id", text().or_null())
        .has("has_more", flag());
    describe(Group::OpenAi, "The items of a response's input")
        .at("id", ID)
        .query(
            "limit",
            limit.or(PAGE_ITEMS as u64),
            "maximum number of items on the page",
        )
        .query(
            "order",
            enum_of(["asc", "desc"]).or("desc"),
            "`desc`: the newest first",
        )
        .query(
            "after",
            text(),
            "the id of the item after which the page starts",
        )
        .answers(page.shape(), "a page")
        .fails(400, "a parameter is invalid")
        .fails(
            404,
            "there is no such stored response, or it has no such item",
        )
        .done()
}

fn example() -> serde_json::Value {
    json!({"input": "Which seat is free?", "max_output_tokens": 16})
}

fn call(facts: &Facts) -> ObjectShape {
    prompt().and(shared::common(facts).without(&["n"]))
}

/// The fields that determine the prompt, and other fields that only this endpoint has.
fn prompt() -> ObjectShape {
    let text_settings = object()
        .takes("format", named("TextFormat"))
        .takes("verbosity", shared::ignored());
    let options = object().takes(
        "prewarm",
        flag().about("compute the prompt and generate nothing"),
    );
    object()
        .takes(
            "input",
            any_of([text(), list(named("InputItem"))]).about("a text, or a list of items"),
        )
        .takes(
            "instructions",
            text().about("a system message, for this response only"),
        )
        .takes(
            "max_output_tokens",
            count().about(
                "maximum number of tokens to generate; by default as many as fit into the context",
            ),
        )
        .takes(
            "previous_response_id",
            text().about("continue that response's conversation"),
        )
        .takes("store", flag().or(true).about("keep the response"))
        .takes("tools", list(tool()).up_to(MAX_TOOLS))
        .takes(
            "tool_choice",
            any_of([enum_of(["none", "auto", "required", ""]), free_object()]),
        )
        .takes("parallel_tool_calls", flag().or(true))
        .takes("text", text_settings.shape())
        .takes(
            "include",
            list(anything()).up_to(super::call::MAX_INCLUDES).about(
                "`reasoning.encrypted_content`, `message.output_text.logprobs`; others are ignored",
            ),
        )
        .takes(
            "top_logprobs",
            whole()
                .at_least(0)
                .at_most(MAX_TOP_LOGPROBS)
                .about("alternatives of each token of the text"),
        )
        .takes(
            "truncation",
            enum_of(["disabled", "auto"])
                .about("changes nothing: a conversation that is too long gets 400"),
        )
        .takes(
            "generate",
            flag()
                .or(true)
                .about("false computes the prompt and generates nothing"),
        )
        .takes("prompt_cache_options", options.shape())
        .takes("chat_template_kwargs", template_kwargs())
        .and(repeated())
        .and(reasoning())
}

/// Fields that change nothing and are repeated in the response.
fn repeated() -> ObjectShape {
    object()
        .takes(
            "metadata",
            anything().about("repeated in the response, of at most 16 KiB"),
        )
        .takes("user", anything().about("repeated in the response"))
        .takes(
            "safety_identifier",
            anything().about("repeated in the response"),
        )
        .takes(
            "prompt_cache_key",
            anything().about("repeated in the response"),
        )
        .takes(
            "max_tool_calls",
            anything().about("repeated in the response"),
        )
}

fn tool() -> Shape {
    let name = || text().longer_than(0).up_to(MAX_NAME_BYTES);
    any_of([
        object()
            .has("type", enum_of(["function"]))
            .has("name", name())
            .takes("description", text())
            .takes("parameters", free_object())
            .takes("strict", flag())
            .shape(),
        object()
            .has("type", enum_of(["custom"]))
            .has("name", name())
            .takes("description", text())
            .takes("format", anything())
            .shape(),
        object()
            .has("type", enum_of(["namespace"]))
            .has("name", name())
            .has("tools", list(free_object()))
            .shape(),
        object()
            .has("type", text().about("all other kinds are left out"))
            .shape(),
    ])
}

fn content() -> Shape {
    let part = object()
        .has(
            "type",
            enum_of([
                "input_text",
                "output_text",
                "reasoning_text",
                "summary_text",
                "text",
                "refusal",
                "input_image",
            ]),
        )
        .may_have("text", text())
        .may_have("refusal", text())
        .may_have(
            "image_url",
            text().about("a `data:` URL, or a URL of an allowed host"),
        );
    any_of([text(), list(part.shape())])
}

fn input_item() -> Shape {
    let of = |kind: &str| object().has("type", enum_of([kind]));
    any_of([
        object()
            .takes("type", enum_of(["message"]))
            .has(
                "role",
                enum_of(["user", "assistant", "system", "developer"]),
            )
            .has("content", content())
            .shape(),
        of("function_call")
            .has("call_id", text())
            .has("name", text())
            .takes("namespace", text())
            .takes("arguments", text())
            .shape(),
        of("custom_tool_call")
            .has("call_id", text())
            .has("name", text())
            .takes("namespace", text())
            .has("input", text())
            .shape(),
        of("function_call_output")
            .has("call_id", text())
            .has("output", content())
            .shape(),
        of("custom_tool_call_output")
            .has("call_id", text())
            .has("output", content())
            .shape(),
        of("reasoning")
            .takes("content", content())
            .takes("encrypted_content", text())
            .takes("summary", content())
            .shape(),
        of("item_reference").has("id", text()).shape(),
        object()
            .has(
                "type",
                text().about("items of tools that run at OpenAI, and compactions, are left out"),
            )
            .shape(),
    ])
}

fn text_format() -> Shape {
    any_of([
        object()
            .has("type", enum_of(["text", "json_object"]))
            .shape(),
        object()
            .has("type", enum_of(["json_schema"]))
            .takes("name", anything())
            .takes("strict", flag())
            .has("schema", any_of([free_object(), text()]))
            .shape(),
    ])
}

pub(crate) fn components() -> Vec<(&'static str, Shape)> {
    let event = object()
        .has(
            "type",
            text().about("`response.created`, `response.output_text.delta`, …"),
        )
        .has("sequence_number", count());
    vec![
        ("InputItem", input_item()),
        ("TextFormat", text_format()),
        ("Response", response()),
        ("ResponseEvent", event.shape()),
    ]
}

fn output_item() -> Shape {
    let of = |kind: &str| {
        object().has("type", enum_of([kind])).has("id", text()).has(
            "status",
            enum_of(["in_progress", "completed", "incomplete"]),
        )
    };
    let output_text = object()
        .has("type", enum_of(["output_text"]))
        .has("text", text())
        .has("annotations", list(anything()))
        .has("logprobs", list(named("TokenLogprob")));
    let reasoning_text = object()
        .has("type", enum_of(["reasoning_text"]))
        .has("text", text());
    let call = |kind| {
        of(kind)
            .has("call_id", text())
            .has("name", text())
            .may_have("namespace", text())
    };
    any_of([
        of("reasoning")
            .has("summary", list(anything()))
            .has("content", list(reasoning_text.shape()))
            .has("encrypted_content", text().or_null())
            .shape(),
        of("message")
            .has("role", enum_of(["assistant"]))
            .has("content", list(output_text.shape()))
            .shape(),
        call("function_call").has("arguments", text()).shape(),
        call("custom_tool_call").has("input", text()).shape(),
    ])
}

fn response() -> Shape {
    let usage = object()
        .has("input_tokens", count())
        .has("input_tokens_details", map_of(count()))
        .has("output_tokens", count())
        .has("output_tokens_details", map_of(count()))
        .has("total_tokens", count());
    object()
        .has("id", text())
        .has("object", enum_of(["response"]))
        .has("created_at", count())
        .has("completed_at", count().or_null())
        .has(
            "status",
            enum_of(["in_progress", "completed", "incomplete", "failed"]),
        )
        .has("error", free_object().or_null())
        .has(
            "incomplete_details",
            object().has("reason", text()).shape().or_null(),
        )
        .has("output", list(output_item()))
        .has("usage", usage.shape().or_null())
        .has("model", text())
        .has("instructions", text().or_null())
        .has("previous_response_id", text().or_null())
        .has("max_output_tokens", count().or_null())
        .has("temperature", number())
        .has("top_p", number())
        .has("top_logprobs", count())
        .has("store", flag())
        .has("parallel_tool_calls", flag())
        .has("text", free_object())
        .has("tool_choice", anything())
        .has("tools", list(anything()))
        .has("reasoning", free_object())
        .has("metadata", anything())
        .shape()
}
