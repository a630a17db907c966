//! The OpenAPI description of Anthropic's Messages API.

use serde_json::json;
use utoipa::openapi::path::Operation;

use crate::openai::chat::docs::template_kwargs;
use crate::openai::chat::reasoning::EFFORTS;
use crate::openai::chat::tools::{MAX_NAME_BYTES, MAX_TOOLS};
use crate::openapi::facts::Facts;
use crate::openapi::operation::{Group, describe};
use crate::openapi::shape::{
    ObjectShape, Shape, any_of, anything, count, enum_of, flag, free_object, list, named, object,
    text,
};
use crate::openapi::shared;

pub(crate) fn operation(facts: &Facts) -> Operation {
    let limits = &facts.limits;
    let stop = text().up_to(limits.max_stop_bytes);
    let stop = any_of([stop.clone(), list(stop).up_to(limits.max_stop_strings)]);
    let fields = prompt()
        .has(
            "max_tokens",
            count().about("maximum number of tokens to generate; 0 computes the prompt alone"),
        )
        .takes("stop_sequences", stop.about("strings that end the output"))
        .and(shared::common(facts).without(&["n"]));
    let example = json!({
        "model": "any", "max_tokens": 16, "messages": [{"role": "user", "content": "Is row 6 full?"}]
    });
    describe(Group::Anthropic, "Continue a conversation")
        .takes(fields.shape(), example)
        .answers(named("Message"), "the message, or its events")
        .streams("MessageEvent", "With `stream`: Anthropic's events.")
        .runs_requests()
        .done()
}

pub(crate) fn count_operation(_: &Facts) -> Operation {
    let counted = object().has("input_tokens", count());
    let example = json!({"messages": [{"role": "user", "content": "Is row 6 full?"}]});
    describe(
        Group::Anthropic,
        "Count the tokens that a conversation's prompt would have",
    )
    .takes(prompt().shape(), example)
    .answers(counted.shape(), "the count")
    .needs_engine("overloaded, or without an engine")
    .done()
}

fn prompt() -> ObjectShape {
    let thinking = object()
        .has(
            "type",
            enum_of(["enabled", "adaptive", "between_tools", "disabled"]),
        )
        .takes(
            "budget_tokens",
            count().about("is checked, but does not limit the reasoning"),
        )
        .takes(
            "display",
            enum_of(["summarized", "updates", "omitted"])
                .about("`omitted` sends thoughts without their text"),
        );
    let config = object()
        .takes("effort", enum_of(EFFORTS))
        .takes("format", format());
    let choice = object()
        .has("type", enum_of(["auto", "any", "tool", "none"]))
        .takes(
            "name",
            text().about("name of the tool to call, if `type` is `tool`"),
        )
        .takes("disable_parallel_tool_use", flag().or(false));
    object()
        .has("messages", list(named("InputMessage")).longer_than(0))
        .takes("system", any_of([text(), list(text_block())]))
        .takes("tools", list(tool()).up_to(MAX_TOOLS))
        .takes("tool_choice", choice.shape())
        .takes("thinking", thinking.shape())
        .takes("output_config", config.shape())
        .takes(
            "output_format",
            format().about("older name of `output_config.format`"),
        )
        .takes("chat_template_kwargs", template_kwargs())
        .takes("metadata", shared::ignored())
        .takes("service_tier", shared::ignored())
        .takes("context_management", shared::ignored())
}

fn format() -> Shape {
    object()
        .has("type", enum_of(["json_schema"]))
        .has("schema", any_of([free_object(), text()]))
        .shape()
}

fn text_block() -> Shape {
    object()
        .has("type", enum_of(["text"]))
        .has("text", text())
        .takes("cache_control", shared::ignored())
        .shape()
}

fn image_block() -> Shape {
    let source = object()
        .has("type", enum_of(["base64", "url"]))
        .may_have("media_type", anything())
        .may_have("data", text())
        .may_have("url", text());
    object()
        .has("type", enum_of(["image"]))
        .has("source", source.shape())
        .takes("cache_control", shared::ignored())
        .shape()
}

fn tool() -> Shape {
    any_of([
        object()
            .takes("type", enum_of(["custom"]))
            .has(
                "name",
                text()
                    .longer_than(0)
                    .up_to(MAX_NAME_BYTES)
                    .like("^[A-Za-z0-9_.-]+$"),
            )
            .takes("description", text())
            .takes("strict", flag())
            .has("input_schema", free_object())
            .shape(),
        object()
            .has(
                "type",
                text().about("other types, run by Anthropic, are ignored"),
            )
            .shape(),
    ])
}

fn input_message() -> Shape {
    let result = object()
        .has("type", enum_of(["tool_result"]))
        .has("tool_use_id", text())
        .takes(
            "content",
            any_of([text(), list(any_of([text_block(), image_block()]))]),
        )
        .takes("is_error", flag().or(false));
    let call = object()
        .has("type", enum_of(["tool_use"]))
        .has("id", text())
        .has("name", text())
        .takes("input", free_object());
    let thought = object()
        .has("type", enum_of(["thinking"]))
        .has("thinking", text())
        .takes("signature", anything().about("not checked"));
    let hidden = object().has("type", enum_of(["redacted_thinking"]));
    let block = any_of([
        text_block(),
        image_block(),
        result.shape(),
        call.shape(),
        thought.shape(),
        hidden.shape(),
    ]);
    object()
        .has("role", enum_of(["user", "assistant", "system"]))
        .has("content", any_of([text(), list(block)]))
        .shape()
}

pub(crate) fn components() -> Vec<(&'static str, Shape)> {
    let event = object().has(
        "type",
        text().about("`message_start`, `content_block_delta`, …"),
    );
    vec![
        ("InputMessage", input_message()),
        ("Message", message()),
        ("MessageEvent", event.shape()),
        ("AnthropicError", error()),
    ]
}

fn message() -> Shape {
    let of = |kind: &str| object().has("type", enum_of([kind]));
    let block = any_of([
        of("text").has("text", text()).shape(),
        of("thinking")
            .has("thinking", text())
            .has("signature", text())
            .shape(),
        of("tool_use")
            .has("id", text())
            .has("name", text())
            .has("input", free_object())
            .shape(),
    ]);
    let usage = object()
        .has("input_tokens", count())
        .has("cache_creation_input_tokens", count())
        .has("cache_read_input_tokens", count())
        .has("output_tokens", count())
        .has(
            "output_tokens_details",
            object().has("thinking_tokens", count()).shape(),
        );
    object()
        .has("id", text())
        .has("type", enum_of(["message"]))
        .has("role", enum_of(["assistant"]))
        .has("model", text())
        .has("content", list(block))
        .has(
            "stop_reason",
            enum_of(["max_tokens", "tool_use", "stop_sequence", "end_turn"]).or_null(),
        )
        .has("stop_sequence", text().or_null())
        .has("usage", usage.shape())
        .shape()
}

fn error() -> Shape {
    let error = object().has("type", text()).has("message", text()).has(
        "code",
        text().about("the error's name on the other endpoints"),
    );
    object()
        .has("type", enum_of(["error"]))
        .has("error", error.shape())
        .has("request_id", text())
        .shape()
}
