//! The OpenAPI description of Ollama's API.

use serde_json::{Value, json};
use utoipa::openapi::path::Operation;

use crate::openai::chat::reasoning::EFFORTS;
use crate::openai::chat::tools::MAX_TOOLS;
use crate::openapi::facts::Facts;
use crate::openapi::operation::{Describe, Group, describe};
use crate::openapi::shape::{
    ObjectShape, Shape, any_of, count, enum_of, flag, free_object, integer, list, named, number,
    object, text, whole,
};
use crate::openapi::shared;
use crate::options::Options;

/// Maximum number of alternatives per token.
const MAX_TOP_LOGPROBS: u32 = 20;
const NO_MODEL: &str = "another model is served";

/// A body for the served model.
fn example(facts: &Facts, mut body: Value) -> Value {
    body["model"] = facts.model.as_deref().unwrap_or("souffleur").into();
    body
}

fn model() -> ObjectShape {
    let about = "the served model's name, with or without the tag `latest`";
    object().has("model", text().longer_than(0).about(about))
}

fn images() -> Shape {
    list(text()).about("base64, or `data:` URLs; their place is before the text")
}

fn keep_alive() -> Shape {
    any_of([number(), text()]).about("is checked, but the model is never unloaded")
}

fn runs_model(describe: Describe) -> Describe {
    describe.fails(404, NO_MODEL).runs_requests()
}

/// The fields that chats and plain prompts share.
fn generation(facts: &Facts) -> ObjectShape {
    object()
        .takes("stream", flag().or(true).about("answer with lines of JSON"))
        .takes(
            "format",
            any_of([enum_of(["json", ""]), free_object()])
                .about("`json`, or a JSON schema that the answer follows"),
        )
        .takes("options", named("OllamaOptions"))
        .takes(
            "think",
            any_of([flag(), enum_of(EFFORTS)])
                .about("whether, or how much, the model reasons; by default the template decides"),
        )
        .takes("logprobs", flag().or(false))
        .takes(
            "top_logprobs",
            whole()
                .at_least(0)
                .at_most(MAX_TOP_LOGPROBS)
                .about("alternatives of each token; with `logprobs`"),
        )
        .takes("keep_alive", keep_alive())
        .takes("truncate", shared::ignored())
        .takes("shift", shared::ignored())
        .takes("rid", shared::rid())
        .and(Options::table().shape(facts))
}

pub(crate) fn chat_operation(facts: &Facts) -> Operation {
    let fields = model()
        .takes(
            "messages",
            list(named("OllamaMessage")).about("without messages, nothing is generated"),
        )
        .takes("tools", list(tool()).up_to(MAX_TOOLS))
        .and(generation(facts));
    let body = json!({
        "messages": [{"role": "user", "content": "Who sits in row 3?"}],
        "stream": false, "options": {"num_predict": 8}
    });
    let operation = describe(Group::Ollama, "Continue a chat, in Ollama's form")
        .takes(fields.shape(), example(facts, body))
        .answers(named("OllamaChat"), "the answer, or its parts")
        .streams_lines(
            "OllamaChat",
            "Unless `stream` is false: parts, the last with `done`.",
        );
    runs_model(operation).done()
}

pub(crate) fn generate_operation(facts: &Facts) -> Operation {
    let fields = model()
        .takes(
            "prompt",
            text().about("without a prompt, nothing is generated"),
        )
        .takes("images", images())
        .takes("suffix", shared::suffix())
        .takes("system", text())
        .takes(
            "raw",
            flag()
                .or(false)
                .about("the prompt is not put into the chat template"),
        )
        .and(generation(facts));
    let body = json!({
        "prompt": "Who sits in row 3?", "stream": false, "options": {"num_predict": 8}
    });
    let operation = describe(Group::Ollama, "Continue a prompt, in Ollama's form")
        .takes(fields.shape(), example(facts, body))
        .answers(named("OllamaGenerated"), "the answer, or its parts")
        .streams_lines(
            "OllamaGenerated",
            "Unless `stream` is false: parts, the last with `done`.",
        );
    runs_model(operation).done()
}

pub(crate) fn embed_operation(facts: &Facts) -> Operation {
    let fields = model()
        .takes("input", shared::prompts(facts).about("texts or token ids"))
        .takes(
            "dimensions",
            integer::<u32>().about("first values to keep; 0 keeps all"),
        )
        .takes("keep_alive", keep_alive())
        .takes("options", shared::ignored())
        .takes("truncate", shared::ignored())
        .takes("rid", shared::rid())
        .and(Options::table().shape(facts));
    let answer = object()
        .has("model", text())
        .has("embeddings", list(list(number())))
        .has("total_duration", count())
        .has("load_duration", count())
        .has("prompt_eval_count", count());
    let body = json!({"input": "Act one."});
    let operation = describe(Group::Ollama, "Embed texts, in Ollama's form")
        .takes(fields.shape(), example(facts, body))
        .answers(answer.shape(), "the embeddings, in the order of the texts");
    runs_model(operation).done()
}

pub(crate) fn embeddings_operation(facts: &Facts) -> Operation {
    let fields = model()
        .takes("prompt", text())
        .takes("keep_alive", keep_alive())
        .takes("options", shared::ignored())
        .takes("rid", shared::rid())
        .and(Options::table().shape(facts));
    let answer = object().has("embedding", list(number()));
    let body = json!({"prompt": "Act one."});
    let operation = describe(Group::Ollama, "Embed a text, in Ollama's older form")
        .takes(fields.shape(), example(facts, body))
        .answers(answer.shape(), "the embedding");
    runs_model(operation).done()
}

pub(crate) fn version_operation(_: &Facts) -> Operation {
    let version = object().has("version", text());
    describe(Group::Ollama, "The version of Ollama's API")
        .answers(version.shape(), "the version")
        .done()
}

pub(crate) fn tags_operation(_: &Facts) -> Operation {
    let model = listed()
        .has("modified_at", text())
        .has("capabilities", list(text()));
    describe(
        Group::Ollama,
        "The served model, as Ollama's list of models",
    )
    .answers(models(model), "the list")
    .needs_engine("there is no engine")
    .done()
}

pub(crate) fn ps_operation(_: &Facts) -> Operation {
    let model = listed()
        .has("size_vram", count())
        .has("expires_at", text())
        .has("context_length", count());
    describe(
        Group::Ollama,
        "The served model, as Ollama's list of models in memory",
    )
    .answers(models(model), "the list")
    .needs_engine("there is no engine")
    .done()
}

pub(crate) fn show_operation(facts: &Facts) -> Operation {
    let fields = object()
        .takes("model", text())
        .takes("name", text().about("older name of `model`"))
        .takes("verbose", shared::ignored());
    let answer = object()
        .has("license", text())
        .has("modelfile", text())
        .has("parameters", text().about("the model's defaults"))
        .has("template", text())
        .has("details", details())
        .has("model_info", free_object())
        .has("capabilities", list(text()))
        .has("modified_at", text());
    describe(Group::Ollama, "The served model's properties")
        .takes(fields.shape(), example(facts, json!({})))
        .answers(answer.shape(), "the properties")
        .fails(404, NO_MODEL)
        .needs_engine("there is no engine")
        .done()
}

fn models(model: ObjectShape) -> Shape {
    object().has("models", list(model.shape())).shape()
}

fn listed() -> ObjectShape {
    object()
        .has("name", text())
        .has("model", text())
        .has("size", count())
        .has("digest", text())
        .has("details", details())
}

fn details() -> Shape {
    object()
        .has("parent_model", text())
        .has("format", text())
        .has("family", text())
        .has("families", list(text()))
        .has("parameter_size", text())
        .has("quantization_level", text())
        .shape()
}

fn tool() -> Shape {
    object()
        .takes("type", enum_of(["function"]))
        .has("function", crate::openai::chat::docs::function())
        .shape()
}

pub(crate) fn components() -> Vec<(&'static str, Shape)> {
    let error = object().has("error", text());
    vec![
        ("OllamaMessage", message()),
        ("OllamaOptions", options()),
        ("OllamaChat", answer("message", answered_message())),
        ("OllamaGenerated", answer("response", text())),
        ("OllamaError", error.shape()),
    ]
}

fn message() -> Shape {
    let function = object()
        .has("name", text())
        .takes("arguments", any_of([free_object(), text()]));
    let call = object()
        .takes("id", text())
        .has("function", function.shape());
    object()
        .has("role", text().about("system, user, assistant or tool"))
        .takes("content", text())
        .takes("thinking", text().about("reasoning of an earlier answer"))
        .takes("tool_calls", list(call.shape()))
        .takes("tool_name", text())
        .takes("tool_call_id", text())
        .takes("images", images())
        .shape()
}

fn options() -> Shape {
    let penalty = || number().at_least(-2).at_most(2);
    object()
        .takes(
            "num_predict",
            whole()
                .at_least(-2)
                .about("maximum number of tokens to generate; -1, the default, and -2: no limit"),
        )
        .takes("temperature", number().at_least(0))
        .takes("top_k", whole().at_least(-1))
        .takes("top_p", number().at_least(0).at_most(1))
        .takes("min_p", number().at_least(0).at_most(1))
        .takes("seed", whole().about("-1: a random one"))
        .takes("stop", any_of([text(), list(text())]))
        .takes("repeat_penalty", number().above(0).at_most(2))
        .takes("presence_penalty", penalty())
        .takes("frequency_penalty", penalty())
        .shape()
        .about("other options are ignored")
}

fn answered_message() -> Shape {
    let function = object()
        .has("index", count())
        .has("name", text())
        .has("arguments", free_object());
    let call = object().has("id", text()).has("function", function.shape());
    object()
        .has("role", enum_of(["assistant"]))
        .has("content", text())
        .may_have("thinking", text())
        .may_have("tool_calls", list(call.shape()))
        .shape()
}

fn answer(content: &str, shape: Shape) -> Shape {
    object()
        .has("model", text())
        .has("created_at", text())
        .has(content, shape)
        .may_have("thinking", text())
        .has("done", flag())
        .may_have("done_reason", enum_of(["stop", "length", "load", "unload"]))
        .may_have("logprobs", list(named("TokenLogprob")))
        .may_have("total_duration", count().about("in nanoseconds"))
        .may_have("load_duration", count())
        .may_have("prompt_eval_count", count())
        .may_have("prompt_eval_duration", count())
        .may_have("eval_count", count())
        .may_have("eval_duration", count())
        .shape()
}
