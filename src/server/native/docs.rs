//! The OpenAPI description of SGLang's native API.

use serde_json::json;
use utoipa::openapi::path::Operation;

use crate::cached::CachedTokens;
use crate::openapi::facts::Facts;
use crate::openapi::operation::{Group, describe};
use crate::openapi::shape::{
    Shape, any_of, count, flag, free_object, integer, list, named, number, object, text, token_id,
    tuple, whole,
};
use crate::openapi::shared;
use crate::options::Scheduling;

fn image() -> Shape {
    any_of([text(), free_object()]).about("base64, a URL, or an object with `url` or `image_url`")
}

/// One value for all prompts, or a list with a value for each prompt.
fn each(facts: &Facts, shape: Shape) -> Shape {
    any_of([
        shape.clone(),
        list(shape.or_null())
            .longer_than(0)
            .up_to(facts.max_requests),
    ])
}

pub(crate) fn operation(facts: &Facts) -> Operation {
    let most = facts.max_requests;
    let alternatives = facts.limits.max_logprobs;
    let name = || text().up_to(facts.limits.max_extra_key_bytes);
    let ids = || list(token_id()).up_to(alternatives);
    let embeds = || list(list(number()));
    let start = whole().at_least(-1).at_most(u32::MAX);
    let fields = object()
        .takes("text", any_of([text(), list(text()).longer_than(0).up_to(most)]).about("the prompt, or a list of prompts"))
        .takes("input_ids", any_of([list(token_id()), list(list(token_id())).longer_than(0).up_to(most)]).about("the same as token ids"))
        .takes("input_embeds", any_of([embeds(), list(embeds()).up_to(most)]).about("the same as vectors, each as long as the model's embeddings"))
        .takes("image_data", each(facts, any_of([image(), list(image().or_null())])).about("images of a text; the text has the model's placeholder for each"))
        .takes("sampling_params", each(facts, named("SamplingParams")).about("one for all prompts, or one for each"))
        .takes("return_logprob", each(facts, flag()).about("false by default"))
        .takes("logprob_start_len", each(facts, start).about("first position of the prompt whose log probability is wanted; -1, the default, wants none of them"))
        .takes("top_logprobs_num", each(facts, whole().at_least(0).at_most(alternatives as u64)).about("alternatives of each token; 0 by default"))
        .takes("token_ids_logprob", any_of([ids(), list(ids().or_null()).up_to(most)]).about("tokens whose log probabilities are wanted at every position"))
        .takes("return_text_in_logprobs", flag().or(false))
        .takes("stream", flag().or(false).about("answer with server-sent events, each with all of the output so far"))
        .takes("rid", each(facts, shared::rid()))
        .takes("extra_key", each(facts, name()).about("prompts share the prefix cache with those of the same key only"))
        .takes("cache_salt", each(facts, name()).about("a secret: prompts share the prefix cache with those of the same salt only"))
        .takes("prediction", each(facts, text()).about("a guess of the output's text: where the server speculates, parts that the model repeats are generated faster"))
        .takes("session_params", session())
        .and(Scheduling::table().shape(facts));
    let example = json!({"text": "Hello", "sampling_params": {"max_new_tokens": 8}});
    describe(Group::SgLang, "Continue prompts, in SGLang's form")
        .about("`text`, `input_ids` or `input_embeds` is required.")
        .takes(fields.shape(), example)
        .answers(any_of([named("Generated"), list(named("Generated"))]), "the output; a list of them for a list of prompts or several samples")
        .streams("Generated", "With `stream`: the output so far, then `[DONE]`. `index` identifies the output within a batch.")
        .runs_requests()
        .done()
}

fn session() -> Shape {
    object()
        .has(
            "id",
            text()
                .up_to(crate::call::MAX_RID_BYTES)
                .about("the id that `/open_session` returned"),
        )
        .takes(
            "rid",
            shared::rid().about("the request of the session that this one continues"),
        )
        .takes(
            "offset",
            integer::<i64>()
                .about("number of earlier tokens to keep; negative: number to drop from their end"),
        )
        .takes("replace", flag().or(false))
        .takes("drop_previous_output", flag().or(false))
        .shape()
}

pub(crate) fn components() -> Vec<(&'static str, Shape)> {
    let reason = any_of([
        object()
            .has("type", text())
            .has("matched", any_of([token_id(), text()]).or_null())
            .shape(),
        object().has("type", text()).has("length", count()).shape(),
        object().has("type", text()).has("message", text()).shape(),
    ]);
    let triple = || tuple([number().or_null(), token_id(), text().or_null()]);
    let others = || list(list(triple()).or_null());
    let meta = object()
        .has("id", text())
        .has("finish_reason", reason.or_null())
        .has("prompt_tokens", count())
        .has("completion_tokens", count())
        .has("cached_tokens", count())
        .may_have("cached_tokens_details", CachedTokens::shape())
        .has("num_retractions", count())
        .may_have(
            "spec_accept_rate",
            number().about("part of the drafts that the output has, where the server speculates"),
        )
        .may_have(
            "spec_accept_length",
            number().about("tokens of the output for each step that verified some"),
        )
        .may_have("spec_accept_token_num", count())
        .may_have("spec_draft_token_num", count())
        .may_have("spec_verify_ct", count())
        .may_have(
            "spec_accept_histogram",
            list(count()).about("steps by the number of drafts that they accepted, from 0 on"),
        )
        .has("weight_version", text())
        .may_have("e2e_latency", number())
        .may_have("input_token_logprobs", list(triple()))
        .may_have("output_token_logprobs", list(triple()))
        .may_have("input_top_logprobs", others())
        .may_have("output_top_logprobs", others())
        .may_have("input_token_ids_logprobs", others())
        .may_have("output_token_ids_logprobs", others());
    let generated = object()
        .has("text", text())
        .has("output_ids", list(token_id()))
        .has("meta_info", meta.shape())
        .may_have("index", count());
    vec![("Generated", generated.shape())]
}
