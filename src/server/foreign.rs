//! Refuses request fields of other engines and services that would change the answer and are not supported.
//!
//! A listed field is refused unless its value has no effect; other unread fields are ignored. docs/api.md lists the
//! refused and the ignored fields, and a test checks that each field that OpenAI, Anthropic, vLLM, SGLang and llama.cpp
//! document is read, refused or ignored.

use super::error::ApiError;
use super::fields::Fields;
use souffleur_base::field::Shallow;
use souffleur_state::sampling;

/// A field's name, and its values without effect. Null, the empty string and, unless `True` is listed, false have no
/// effect either.
type RefusedField = (&'static str, &'static [Off]);

/// A value without effect.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Off {
    Number(f64),
    /// True has no effect, and false has one.
    True,
    Text(&'static str),
    EmptyList,
    EmptyObject,
}

const NOTHING: &[Off] = &[];
const TRUE: &[Off] = &[Off::True];
const ZERO: &[Off] = &[Off::Number(0.0)];
const ONE: &[Off] = &[Off::Number(1.0)];
/// llama.cpp's number for the Euclidean norm, which this server uses to normalise embeddings.
const EUCLIDEAN: &[Off] = &[Off::Number(2.0)];
const MINUS_ONE: &[Off] = &[Off::Number(-1.0)];
const EMPTY_LIST: &[Off] = &[Off::EmptyList];
const EMPTY_OBJECT: &[Off] = &[Off::EmptyObject];

#[rustfmt::skip]
const REFUSED: &[RefusedField] = &[
    // OpenAI.
    ("audio", &[]), ("background", &[]), ("conversation", &[]), ("echo", &[]), ("image", &[]), ("logprobs", ZERO),
    ("moderation", &[]), ("suffix", &[]), ("top_logprobs", ZERO), ("web_search_options", &[]),
    // Anthropic.
    ("container", &[]), ("mcp_servers", &[]), ("thread", &[]),
    // vLLM.
    ("add_special_tokens", &[]), ("chat_template", &[]),
    ("documents", &[]), ("ec_transfer_params", EMPTY_OBJECT), ("embed_dtype", &[Off::Text("float32")]),
    ("enable_response_messages", &[]), ("endianness", &[Off::Text("native")]), ("kv_transfer_params", EMPTY_OBJECT),
    ("length_penalty", ONE), ("logprob_token_ids", &[]), ("normalize", TRUE), ("padding", &[Off::Text("do_not_pad")]),
    ("previous_input_messages", &[]), ("previous_response", &[]), ("prompt_embeds", &[]), ("prompt_logprobs", &[]),
    ("repetition_detection", &[]),
    ("return_prompt_text", &[]), ("return_tokens_as_token_ids", &[]), ("thinking_token_budget", MINUS_ONE),
    ("truncate_prompt_tokens", &[]), ("use_activation", TRUE), ("use_beam_search", &[]),
    ("vllm_xargs", EMPTY_OBJECT), ("watermarking", &[]),
    // SGLang.
    ("audio_data", &[]), ("bootstrap_host", &[]), ("bootstrap_port", &[]), ("bootstrap_room", &[]),
    ("custom_logit_processor", &[]), ("embed_override_token_id", &[]), ("embed_overrides", &[]), ("image_data", &[]),
    ("input_embeds", &[]), ("input_ids", &[]), ("item_embed_overrides", &[]), ("lora_id", &[]), ("lora_path", &[]),
    ("max_thinking_tokens", &[]), ("multi_item_delimiter_indices", &[]), ("positional_embed_overrides", &[]),
    ("query_embed_overrides", &[]), ("require_reasoning", &[]), ("return_bytes", &[]), ("return_entropy", &[]),
    ("return_flat_raw_output_top_logprobs", &[]), ("return_flat_raw_top_logprobs", &[]), ("return_hidden_states", &[]),
    ("return_indexer_topk", &[]), ("return_input_ids_in_sglext", &[]), ("return_meta_info", &[]),
    ("return_output_ids_in_sglext", &[]), ("return_pooled_hidden_states", &[]), ("return_prompt_token_ids", &[]),
    ("return_routed_experts", &[]), ("return_sampling_mask", &[]), ("return_spec_tokens_details", &[]),
    ("return_token_logprobs", &[]), ("sampling_logprobs_mode", &[]), ("score_extraction_token", &[]),
    ("session_params", EMPTY_OBJECT), ("task", &[]), ("token_indices_to_pool", &[]), ("video_data", &[]),
    // Rerankers: Cohere, Jina, vLLM, Text Embeddings Inference.
    ("max_chunks_per_doc", &[]), ("max_doc_length", &[]), ("max_tokens_per_doc", ZERO), ("max_tokens_per_query", ZERO),
    ("rank_fields", EMPTY_LIST), ("raw_scores", &[]), ("return_embeddings", &[]),
    // llama.cpp.
    ("adaptive_target", MINUS_ONE), ("add_special", TRUE), ("chat_parser", &[]), ("dry_multiplier", ZERO),
    ("dynatemp_range", ZERO), ("embd_normalize", EUCLIDEAN), ("generation_prompt", &[]), ("grammar", &[]),
    ("grammar_lazy", &[]), ("grammar_triggers", EMPTY_LIST), ("lora", EMPTY_LIST), ("mirostat", ZERO), ("n_cmpl", ONE),
    ("n_indent", ZERO), ("n_predict", MINUS_ONE), ("n_probs", ZERO), ("parse_special", TRUE),
    ("parse_tool_calls", TRUE), ("post_sampling_probs", &[]), ("preserved_tokens", EMPTY_LIST),
    ("reasoning_budget_tokens", MINUS_ONE),
    ("reasoning_format", &[Off::Text("auto")]), ("repeat_penalty", ONE), ("response_fields", EMPTY_LIST),
    ("return_progress", &[]), ("return_tokens", &[]), ("samplers", &[]),
    ("t_max_predict_ms", &[Off::Number(0.0), Off::Number(-1.0)]), ("thinking_budget_tokens", MINUS_ONE),
    ("thinking_forced_open", &[]), ("timings_per_token", &[]), ("top_n_sigma", MINUS_ONE), ("typical_p", ONE),
    ("verbose", &[]), ("with_pieces", &[]), ("xtc_probability", ZERO),
];

/// Unsupported sampling parameters for which an empty list or object has no effect.
const OF_SAMPLING: &[RefusedField] = &[("bad_words", EMPTY_LIST), ("custom_params", EMPTY_OBJECT)];

fn off_values(name: &str) -> Option<&'static [Off]> {
    let mut known = REFUSED.iter().chain(OF_SAMPLING);
    match known.find(|(refused, _)| *refused == name) {
        Some((_, off)) => Some(*off),
        None => sampling::NOT_YET.contains(&name).then_some(NOTHING),
    }
}

fn has_effect(value: &Shallow, off: &[Off]) -> bool {
    let is_off = match value {
        Shallow::Null => true,
        Shallow::Bool(value) => *value == off.contains(&Off::True),
        Shallow::Number(number) => {
            let number = number.as_f64();
            number.is_some_and(|number| off.contains(&Off::Number(number)))
        }
        Shallow::Text(text) => {
            let is_default = |off: &Off| matches!(off, Off::Text(default) if default == text);
            text.is_empty() || off.iter().any(is_default)
        }
        Shallow::List { len: 0, .. } => off.contains(&Off::EmptyList),
        // A field may have one value for each prompt: a list of only null, false or empty lists has no effect.
        Shallow::List { is_nothing, .. } => *is_nothing,
        Shallow::Map { len: 0, .. } => off.contains(&Off::EmptyObject),
        Shallow::Map { .. } => false,
    };
    !is_off
}

/// Refuses the first unread field that would change the answer. `also` names further fields to refuse.
pub(super) fn refuse(fields: &mut Fields, also: &[&str]) -> Result<(), ApiError> {
    let mut names = fields.names();
    names.retain(|name| off_values(name).is_some() || also.contains(&name.as_str()));
    names.sort_unstable();
    names.iter().try_for_each(|name| refuse_one(fields, name))
}

/// Refuses the first of `names` that would change the answer, and ignores all other fields.
pub(super) fn refuse_these(fields: &mut Fields, names: &[&str]) -> Result<(), ApiError> {
    names.iter().try_for_each(|name| refuse_one(fields, name))
}

fn refuse_one(fields: &mut Fields, name: &str) -> Result<(), ApiError> {
    let off = off_values(name).unwrap_or(NOTHING);
    match fields.take(name)? {
        Some(value) if has_effect(&value, off) => Err(ApiError::unsupported(name)),
        _ => Ok(()),
    }
}

/// Refuses `add_special_tokens: false`, which would leave out the special tokens around a plain prompt.
pub(super) fn refuse_bare_prompts(fields: &mut Fields) -> Result<(), ApiError> {
    const NAME: &str = "add_special_tokens";
    match fields.optional_flag(NAME)? {
        Some(false) => Err(ApiError::unsupported(NAME)),
        None | Some(true) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;

    fn refused(body: Value) -> Option<String> {
        refuse(&mut Fields::of(&body), &["messages"])
            .err()
            .map(|error| error.to_string())
    }

    #[test]
    fn values_without_effect_are_not_refused() {
        let body = json!({
            "audio": null, "lora_path": "", "return_hidden_states": false, "image_data": [null, null], "bad_words": [],
            "length_penalty": 1, "typical_p": 1.0, "parse_tool_calls": true, "reasoning_format": "auto", "n_probs": 0,
            "embd_normalize": 2, "add_special": true, "verbose": false,
            "messages": null, "unknown": [1],
        });
        assert_eq!(refused(body), None);
    }

    #[test]
    fn empty_lists_and_objects_are_refused_unless_they_are_defaults() {
        for (body, name) in [
            (json!({"allowed_token_ids": []}), "allowed_token_ids"),
            (json!({"mcp_servers": []}), "mcp_servers"),
            (json!({"web_search_options": {}}), "web_search_options"),
            (json!({"audio": {}}), "audio"),
            (json!({"bad_words": ["a"]}), "bad_words"),
            (json!({"bad_words": {}}), "bad_words"),
            (json!({"stop_regex": []}), "stop_regex"),
            (json!({"prompt_logprobs": 0}), "prompt_logprobs"),
            (json!({"length_penalty": 1.5}), "length_penalty"),
            (json!({"return_bytes": true}), "return_bytes"),
            (json!({"parse_tool_calls": false}), "parse_tool_calls"),
            (json!({"embd_normalize": -1}), "embd_normalize"),
            (json!({"messages": [1]}), "messages"),
        ] {
            let expected = format!("{name} is not supported yet: leave it out or send null");
            assert_eq!(refused(body), Some(expected));
        }
    }

    #[test]
    fn the_document_lists_the_same_fields() {
        let document = include_str!("../../docs/api.md");
        let row = document
            .lines()
            .find(|line| line.starts_with("| refused |"));
        let row = row.expect("docs/api.md has a row of refused fields");
        let documented: BTreeSet<&str> = row.split('`').skip(1).step_by(2).collect();
        let names = REFUSED.iter().chain(OF_SAMPLING).map(|(name, _)| *name);
        let refused: BTreeSet<&str> = names.chain(sampling::NOT_YET).collect();
        assert_eq!(documented, refused);
    }
}
