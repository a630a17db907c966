//! The field `suffix` of plain completions: the output is the text between a prompt and the suffix.

use std::sync::Arc;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::llama_cpp;
use crate::state::Loaded;
use souffleur_request::{InfillPrompt, Prompt};

const NAME: &str = "suffix";

/// Turns each prompt into the text before a gap if the call has a suffix. An empty suffix has no effect, as in OpenAI's
/// API.
pub(super) fn around(prompts: Vec<Prompt>, fields: &mut Fields) -> Result<Vec<Prompt>, ApiError> {
    let suffix = fields.string(NAME)?.filter(|suffix| !suffix.is_empty());
    let Some(suffix) = suffix else {
        return Ok(prompts);
    };
    let suffix: Arc<str> = suffix.into();
    let around = |prompt: Prompt| match prompt {
        Prompt::Text(prefix) => Ok(Prompt::from(InfillPrompt {
            prefix,
            suffix: suffix.clone(),
            ..InfillPrompt::default()
        })),
        _ => {
            let text = "suffix needs a prompt of text, but this prompt is a list of token ids: send the prompt as text";
            Err(ApiError::field(NAME, text))
        }
    };
    prompts.into_iter().map(around).collect()
}

/// Refuses prompts with a suffix if they are echoed, or if the model has no tokens for them.
pub(super) fn check(prompts: &[Prompt], echo: bool, loaded: &Loaded) -> Result<(), ApiError> {
    let Some(Prompt::Infill(_)) = prompts.first() else {
        return Ok(());
    };
    if echo {
        let text = "echo repeats a prompt before its output, but a suffix puts the output into the prompt: leave one \
                    of them out";
        return Err(ApiError::field("echo", text));
    }
    llama_cpp::check_model(loaded, NAME)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(prompts: Vec<Prompt>, suffix: Value) -> Result<Vec<Prompt>, String> {
        let read = around(prompts, &mut Fields::of(&json!({ "suffix": suffix })));
        read.map_err(|error| error.to_string())
    }

    #[test]
    fn a_suffix_makes_each_text_a_prefix() {
        let texts = || ["a", "b"].map(|text| Prompt::Text(text.into())).to_vec();
        let given = read(texts(), json!("c")).expect("texts have a suffix");
        let pair = |prompt: &Prompt| match prompt {
            Prompt::Infill(infill) => Some((infill.prefix.to_string(), infill.suffix.to_string())),
            _ => None,
        };
        let pairs: Vec<_> = given.iter().filter_map(pair).collect();
        let expected = ["a", "b"].map(|prefix| (prefix.to_owned(), "c".to_owned()));
        assert_eq!(pairs, expected);
        for nothing in [Value::Null, json!("")] {
            let plain = read(texts(), nothing).expect("there is no suffix");
            assert!(matches!(
                plain.as_slice(),
                [Prompt::Text(_), Prompt::Text(_)]
            ));
        }
    }

    #[test]
    fn other_values_and_prompts_are_refused() {
        let refused = read(Vec::new(), json!(5)).expect_err("it is no text");
        assert_eq!(refused, "suffix is 5, must be a string");
        let refused = read(vec![Prompt::Tokens([1].into())], json!("b"));
        let refused = refused.expect_err("tokens have no suffix");
        assert!(
            refused.ends_with("token ids: send the prompt as text"),
            "{refused}"
        );
    }
}
