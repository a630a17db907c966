//! The OpenAPI descriptions of llama.cpp's endpoints.

use serde_json::json;
use utoipa::openapi::path::Operation;

use super::call::{MAX_FILES, MAX_RESPONSE_FIELD_BYTES, MAX_RESPONSE_FIELDS};
use crate::openapi::facts::Facts;
use crate::openapi::operation::{Group, describe};
use crate::openapi::shape::{
    ObjectShape, Shape, any_of, anything, count, enum_of, flag, free_object, integer, list, map_of,
    named, number, object, text, token_id, whole,
};
use crate::openapi::shared;
use crate::options::Options;
use souffleur_state::sampling::MAX_SAMPLES;

pub(crate) fn infill(facts: &Facts) -> Operation {
    let file = object()
        .has("text", text())
        .takes("filename", text().or("tmp"));
    let fields = object()
        .has("input_prefix", text().about("the text before the gap"))
        .has("input_suffix", text().about("the text after the gap"))
        .takes(
            "prompt",
            text().about("the end of the prefix: the line before the cursor"),
        )
        .takes(
            "input_extra",
            list(file.shape())
                .up_to(MAX_FILES)
                .about("other files, the most relevant last"),
        )
        .and(lengths())
        .and(sampling(facts))
        .and(output())
        .takes("model", shared::model())
        .takes("rid", shared::rid())
        .and(Options::table().shape(facts));
    let example = json!({
        "input_prefix": "fn add(a: u32, b: u32) -> u32 {\n", "input_suffix": "\n}\n", "n_predict": 8,
    });
    describe(Group::LlamaCpp, "Fill in the middle")
        .about(
            "The text between a prefix and a suffix, for models whose vocabulary has tokens for that. A prompt that is \
             longer than the context is cut, first its files. Samplers, their order, `id_slot` and `cache_prompt` are \
             ignored.",
        )
        .takes(fields.shape(), example)
        .answers(
            any_of([named("Infill"), list(named("Infill"))]),
            "the text in `content`, with counts and times; a list of such objects with `n_cmpl`",
        )
        .streams(
            "Infill",
            "With `stream`: parts of the text as events, then one with `stop: true` and the other fields.",
        )
        .runs_requests()
        .done()
}

/// Fields that end the output.
fn lengths() -> ObjectShape {
    object()
        .takes(
            "n_predict",
            length()
                .or(-1)
                .about("maximum number of tokens to generate; 0 computes the prompt alone, -1 has no limit"),
        )
        .takes(
            "max_tokens",
            length().about("another name of `n_predict`"),
        )
        .takes(
            "t_max_predict_ms",
            length()
                .or(-1)
                .about("the first newline that comes later than this after the first token ends the output"),
        )
        .takes(
            "n_indent",
            integer::<u32>()
                .or(0)
                .about("a line that begins with fewer spaces and tabs ends the output"),
        )
}

fn length() -> Shape {
    whole().at_least(-1).at_most(i64::MAX)
}

/// Fields of llama.cpp that chat completions take, too.
pub(crate) fn chat_fields() -> ObjectShape {
    let path = text().up_to(MAX_RESPONSE_FIELD_BYTES);
    object()
        .takes(
            "n_predict",
            length().about(
                "llama.cpp's name of `max_tokens`; it wins over both others, and -1 has no limit",
            ),
        )
        .takes("samplers", samplers())
        .takes(
            "response_fields",
            list(path)
                .up_to(MAX_RESPONSE_FIELDS)
                .about("accepted and ignored, as llama.cpp does here"),
        )
}

fn samplers() -> Shape {
    anything().about("accepted and ignored")
}

fn sampling(facts: &Facts) -> ObjectShape {
    let limits = &facts.limits;
    let stop = || text().up_to(limits.max_stop_bytes);
    let penalty = || number().at_least(-2).at_most(2).or(0);
    object()
        .takes("temperature", number().at_least(0).or(0.8))
        .takes("top_k", whole().at_least(-1).or(40))
        .takes("top_p", number().at_least(0).at_most(1).or(0.95))
        .takes("min_p", number().at_least(0).at_most(1).or(0.05))
        .takes("repeat_penalty", number().above(0).at_most(2).or(1))
        .takes(
            "repetition_penalty",
            number()
                .above(0)
                .at_most(2)
                .about("another name of `repeat_penalty`"),
        )
        .takes("presence_penalty", penalty())
        .takes("frequency_penalty", penalty())
        .takes(
            "logit_bias",
            map_of(number())
                .with_names(text().like("^[0-9]+$"))
                .fields_up_to(limits.max_logit_bias),
        )
        .takes(
            "stop",
            any_of([stop(), list(stop()).up_to(limits.max_stop_strings)])
                .about("strings that end the output"),
        )
        .takes(
            "stop_token_ids",
            list(token_id()).up_to(limits.max_stop_token_ids),
        )
        .takes("ignore_eos", flag().or(false))
        .takes(
            "seed",
            whole()
                .at_least(i64::MIN)
                .at_most(u64::MAX)
                .about("-1 and 4294967295 stand for a random one"),
        )
        .takes("samplers", samplers())
}

/// Fields about the form of the answer.
fn output() -> ObjectShape {
    let path = text().up_to(MAX_RESPONSE_FIELD_BYTES);
    object()
        .takes(
            "n_cmpl",
            whole()
                .at_least(1)
                .at_most(MAX_SAMPLES)
                .or(1)
                .about("samples; with several, the answer is a list"),
        )
        .takes("stream", flag().or(false))
        .takes(
            "return_tokens",
            flag().or(false).about("the output's token ids in `tokens`"),
        )
        .takes(
            "response_fields",
            list(path)
                .up_to(MAX_RESPONSE_FIELDS)
                .about("paths such as `timings/prompt_ms`: the answer has only these fields, by their paths"),
        )
}

pub(crate) fn props(_: &Facts) -> Operation {
    let settings = object().has("n_ctx", count()).has("params", free_object());
    let modalities = object().has("vision", flag()).has("audio", flag());
    let properties = object()
        .has("default_generation_settings", settings.shape())
        .has("total_slots", count())
        .has("model_alias", text())
        .has("model_path", text())
        .has("chat_template", text())
        .has("bos_token", text())
        .has("eos_token", text())
        .has("modalities", modalities.shape())
        .has("build_info", text())
        .has("is_sleeping", flag());
    describe(Group::LlamaCpp, "Properties of the model and the server")
        .answers(properties.shape(), "the properties")
        .needs_engine("there is no engine")
        .done()
}

pub(crate) fn components() -> Vec<(&'static str, Shape)> {
    let answer = object()
        .may_have("index", count())
        .may_have("content", text())
        .may_have("tokens", list(token_id()).about("with `return_tokens`"))
        .may_have(
            "stop",
            flag().about("false in all events of a stream but the last"),
        )
        .may_have("id_slot", integer::<i32>().about("always -1"))
        .may_have("model", text())
        .may_have("tokens_predicted", count())
        .may_have("tokens_evaluated", count())
        .may_have("tokens_cached", count())
        .may_have("generation_settings", free_object())
        .may_have("has_new_line", flag())
        .may_have("truncated", flag())
        .may_have("stop_type", enum_of(["eos", "word", "limit", "none"]))
        .may_have("stopping_word", text())
        .may_have("timings", free_object());
    vec![("Infill", answer.shape())]
}
