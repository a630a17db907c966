//! Schemas that the calls of several endpoints share.

use super::facts::{Facts, by_name};
use super::shape::{
    ObjectShape, Shape, any_of, anything, count, enum_of, flag, free_object, list, map_of, named,
    number, object, text, token_id, whole,
};
use crate::cached::CachedTokens;
use crate::call::MAX_RID_BYTES;
use crate::constraint::MAX_PATTERN_BYTES;
use crate::options::Options;
use souffleur_state::sampling::{MAX_SAMPLES, SamplingParams};
use souffleur_state::speculation::MAX_ROOM;

/// A text, or token ids, or a list of either.
pub(crate) fn prompts(facts: &Facts) -> Shape {
    let most = facts.max_requests;
    any_of([
        text(),
        list(text()).longer_than(0).up_to(most),
        list(token_id()).longer_than(0),
        list(list(token_id())).longer_than(0).up_to(most),
    ])
}

pub(crate) fn ignored() -> Shape {
    anything().about("accepted and ignored")
}

pub(crate) fn rid() -> Shape {
    text()
        .longer_than(0)
        .up_to(MAX_RID_BYTES)
        .about("the request's id, of at most 256 bytes; a random one if it is absent. Two requests of one id cannot run at once")
}

pub(crate) fn model() -> Shape {
    text().about("any name: the loaded model serves every request")
}

pub(crate) fn suffix() -> Shape {
    text().about(
        "text after the output: the model fills the gap, if its vocabulary has tokens for that",
    )
}

/// Sampling parameters that have the same name on all endpoints, with their defaults.
fn sampling(facts: &Facts, defaults: &SamplingParams) -> ObjectShape {
    let limits = &facts.limits;
    let stop = || text().up_to(limits.max_stop_bytes);
    let biases = map_of(number())
        .with_names(text().like("^[0-9]+$"))
        .fields_up_to(limits.max_logit_bias);
    let fields = likelihoods()
        .and(penalties())
        .takes(
            "logit_bias",
            biases.about("added to the logits of tokens, by their ids"),
        )
        .takes(
            "stop",
            any_of([stop(), list(stop()).up_to(limits.max_stop_strings)])
                .about("strings that end the output"),
        )
        .takes(
            "stop_token_ids",
            list(token_id())
                .up_to(limits.max_stop_token_ids)
                .about("tokens that end the output"),
        )
        .takes("n", samples())
        .takes(
            "ignore_eos",
            flag().about("continue after the end-of-text token"),
        )
        .takes(
            "skip_special_tokens",
            flag().about("leave special tokens out of the text"),
        )
        .takes("spaces_between_special_tokens", flag())
        .takes(
            "no_stop_trim",
            flag().about("keep the stop string or stop token in the output"),
        )
        .takes(
            "speculative_num_draft_tokens",
            whole().at_least(0).at_most(MAX_ROOM).about(
                "most tokens that a step verifies, where the server speculates; 0 for no drafts, by default the \
                 server's value, which is also the most",
            ),
        );
    fields.with_defaults(&by_name(defaults))
}

/// Parameters that choose among tokens by their probabilities.
fn likelihoods() -> ObjectShape {
    object()
        .takes(
            "temperature",
            number().at_least(0).about("0 takes the most likely token"),
        )
        .takes(
            "top_p",
            number()
                .at_least(0)
                .at_most(1)
                .about("least probability mass that is kept; 0 keeps the most likely token"),
        )
        .takes(
            "top_k",
            whole()
                .at_least(-1)
                .about("most likely tokens that are kept; 0 and -1 keep all"),
        )
        .takes(
            "min_p",
            number()
                .at_least(0)
                .at_most(1)
                .about("tokens less likely than this times the most likely one are dropped"),
        )
}

fn penalties() -> ObjectShape {
    let penalty = || number().at_least(-2).at_most(2);
    object()
        .takes(
            "frequency_penalty",
            penalty().about("subtracted for each earlier occurrence in the output"),
        )
        .takes(
            "presence_penalty",
            penalty().about("subtracted if the token occurs in the output"),
        )
        .takes(
            "repetition_penalty",
            number()
                .above(0)
                .at_most(2)
                .about("divides the logits of tokens seen in prompt or output"),
        )
}

fn samples() -> Shape {
    whole()
        .at_least(1)
        .at_most(MAX_SAMPLES)
        .about("samples of each prompt")
}

/// SGLang's `sampling_params`, which take no other fields.
pub(crate) fn native_sampling(facts: &Facts) -> Shape {
    let plain = SamplingParams::default();
    let lengths = object()
        .takes(
            "max_new_tokens",
            count().about("maximum number of tokens to generate; 0 computes the prompt alone"),
        )
        .takes(
            "min_new_tokens",
            count().about("tokens before which the output cannot end"),
        )
        .takes("sampling_seed", seed())
        .with_defaults(&by_name(&plain));
    let hints = object().takes(
        "stream_interval",
        whole()
            .at_least(1)
            .at_most(i64::MAX)
            .about("accepted and ignored"),
    );
    let fields = lengths.and(sampling(facts, &plain)).and(hints);
    fields.and(sglang_constraints()).nothing_else().shape()
}

fn seed() -> Shape {
    whole()
        .at_least(i64::MIN)
        .at_most(u64::MAX)
        .about("seed of the draws, of 64 bits; a random one if it is absent")
}

/// The fields that all generating endpoints of OpenAI's API share.
pub(crate) fn common(facts: &Facts) -> ObjectShape {
    let options = object()
        .takes(
            "include_usage",
            flag().about("one more chunk at the end, with the counts"),
        )
        .takes(
            "continuous_usage_stats",
            flag().about("counts in every chunk"),
        );
    object()
        .takes("model", model())
        .and(sampling(facts, &facts.model_sampling))
        .takes("seed", seed())
        .takes(
            "min_tokens",
            count()
                .or(0)
                .about("tokens before which the output cannot end"),
        )
        .takes(
            "include_stop_str_in_output",
            flag().or(false).about("vLLM's name of `no_stop_trim`"),
        )
        .takes(
            "stream",
            flag().or(false).about("answer with server-sent events"),
        )
        .takes("stream_options", options.shape())
        .takes(
            "return_token_ids",
            flag().or(false).about("`token_ids` in every choice"),
        )
        .takes(
            "return_cached_tokens_details",
            flag()
                .or(false)
                .about("`sglext.cached_tokens_details`: the cached tokens, by the memory that they were in"),
        )
        .takes("rid", rid())
        .and(Options::table().shape(facts))
        .and(constraints())
}

/// Fields that constrain the answer. A call may have at most one of them.
fn constraints() -> ObjectShape {
    object()
        .takes("response_format", named("ResponseFormat"))
        .and(sglang_constraints())
        .takes("structured_outputs", named("StructuredOutputs"))
        .takes(
            "guided_json",
            schema_or_text().about("vLLM's older name of `structured_outputs.json`"),
        )
        .takes("guided_json_object", flag())
        .takes("guided_regex", text())
        .takes("guided_grammar", text())
        .takes("guided_choice", list(text()))
        .takes("guided_whitespace_pattern", text().up_to(MAX_PATTERN_BYTES))
}

fn sglang_constraints() -> ObjectShape {
    object()
        .takes(
            "json_schema",
            schema_or_text().about("the output is JSON by this schema"),
        )
        .takes("regex", text().about("the output matches this expression"))
        .takes("ebnf", text().about("the output follows this grammar"))
        .takes(
            "structural_tag",
            schema_or_text().about("parts of the output between tags have a structure"),
        )
}

/// An object, or its JSON in a text.
fn schema_or_text() -> Shape {
    any_of([free_object(), text()])
}

pub(super) fn response_format() -> Shape {
    let schema = object()
        .may_have("name", anything())
        .takes(
            "strict",
            flag().about("allow only properties that the schema names"),
        )
        .has("schema", schema_or_text());
    any_of([
        object().has("type", enum_of(["text"])).shape(),
        object()
            .has("type", enum_of(["json_object"]))
            .takes("schema", schema_or_text())
            .shape(),
        object()
            .has("type", enum_of(["json_schema"]))
            .has("json_schema", schema.shape())
            .shape(),
        object().has("type", enum_of(["structural_tag"])).shape(),
    ])
}

pub(super) fn structured_outputs() -> Shape {
    object()
        .takes("json", schema_or_text())
        .takes("json_object", flag())
        .takes("regex", text())
        .takes("choice", list(text()))
        .takes("grammar", text())
        .takes("structural_tag", schema_or_text())
        .takes("whitespace_pattern", text().up_to(MAX_PATTERN_BYTES))
        .takes("disable_any_whitespace", flag())
        .takes("disable_additional_properties", flag())
        .takes("disable_fallback", ignored())
        .nothing_else()
        .shape()
}

pub(super) fn error() -> Shape {
    let error = object()
        .has(
            "message",
            text().about("the fault, with the value, the limit and the remedy"),
        )
        .has(
            "type",
            enum_of([
                "invalid_request_error",
                "service_unavailable_error",
                "server_error",
            ]),
        )
        .has("param", text().or_null().about("the invalid field"))
        .has("code", text().about("stable name of the error"));
    object().has("error", error.shape()).shape()
}

pub(super) fn usage() -> Shape {
    object()
        .has("prompt_tokens", count())
        .has("completion_tokens", count())
        .has("total_tokens", count())
        .has(
            "prompt_tokens_details",
            object().has("cached_tokens", count()).shape(),
        )
        .has(
            "completion_tokens_details",
            object()
                .has("reasoning_tokens", count())
                .may_have(
                    "accepted_prediction_tokens",
                    count().about("drafts from `prediction` that the output has"),
                )
                .may_have(
                    "rejected_prediction_tokens",
                    count().about(
                        "drafts from `prediction` that were verified and rejected; not part of \
                         completion_tokens",
                    ),
                )
                .shape(),
        )
        .shape()
}

/// The fields of an answer that SGLang adds to OpenAI's.
pub(crate) fn sglext() -> Shape {
    let fields = object().has("cached_tokens_details", CachedTokens::shape());
    fields.shape().about("with `return_cached_tokens_details`")
}
