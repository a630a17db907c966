//! A model's sampling defaults and EOS tokens, from its optional `generation_config.json`.

use std::ops::RangeInclusive;
use std::path::Path;

use crate::config::ModelConfig;
use crate::json_file::JsonFile;
use souffleur_base::error::LoadError;

const FILE: &str = "generation_config.json";
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Limits of sampling parameters, in JSON and in GGUF files.
pub(crate) const TEMPERATURE: RangeInclusive<f64> = 0.0..=100.0;
pub(crate) const TOP_P: RangeInclusive<f64> = 0.0..=1.0;
pub(crate) const MIN_P: RangeInclusive<f64> = 0.0..=1.0;
pub(crate) const PENALTY: RangeInclusive<f64> = f64::MIN_POSITIVE..=2.0;

/// Sampling defaults and EOS tokens of a file; a field is `None` if its key is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    pub eos_token_ids: Option<Vec<u32>>,
    /// 0 for greedy decoding.
    pub temperature: Option<f32>,
    /// Nucleus sampling; 0 keeps only the most likely token.
    pub top_p: Option<f32>,
    /// -1 for no limit.
    pub top_k: Option<i32>,
    /// Cutoff relative to the most likely token.
    pub min_p: Option<f32>,
    /// Divides positive and multiplies negative logits of earlier tokens.
    pub repetition_penalty: Option<f32>,
}

impl GenerationConfig {
    /// Reads the file in a model's folder; all fields are `None` if it is missing.
    ///
    /// # Errors
    /// [`LoadError::Io`], [`LoadError::Format`] naming key, value and limit.
    pub fn read(dir: &Path) -> Result<Self, LoadError> {
        let file = dir.join(FILE);
        if !file.exists() {
            return Ok(Self::default());
        }
        Self::from_json(&JsonFile::read(&file, MAX_FILE_BYTES)?)
    }

    fn from_json(json: &JsonFile) -> Result<Self, LoadError> {
        let number = |key, limits| Ok(json.number(key, limits)?.map(|number| number as f32));
        let greedy = json.flag("do_sample")? == Some(false);
        let temperature = number("temperature", TEMPERATURE)?;
        let top_k = json.number("top_k", -1.0..=f64::from(i32::MAX))?;
        Ok(Self {
            eos_token_ids: json.token_ids("eos_token_id")?,
            temperature: if greedy { Some(0.0) } else { temperature },
            top_p: number("top_p", TOP_P)?,
            top_k: top_k.map(top_k_or_unlimited),
            min_p: number("min_p", MIN_P)?,
            repetition_penalty: number("repetition_penalty", PENALTY)?,
        })
    }
}

/// Maps 0 to -1: both mean no limit, and transformers writes 0.
pub(crate) fn top_k_or_unlimited(top_k: f64) -> i32 {
    if top_k < 1.0 { -1 } else { top_k as i32 }
}

/// EOS tokens, ascending, from `config.json` and `generation_config.json`, or from the tokenizer if neither names any.
/// The stop check and the `min_new_tokens` mask share this list.
/// Tokens outside of the vocabulary are dropped, with a warning.
pub fn eos_token_ids(
    config: &ModelConfig,
    generation: &GenerationConfig,
    of_tokenizer: Option<u32>,
) -> Vec<u32> {
    let of_generation = generation.eos_token_ids.iter().flatten();
    let named = config.eos_token_ids.iter().chain(of_generation).copied();
    let mut ids = within_vocabulary(named, config.vocab_size);
    if ids.is_empty() {
        ids = within_vocabulary(of_tokenizer.into_iter(), config.vocab_size);
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn within_vocabulary(ids: impl Iterator<Item = u32>, vocab_size: usize) -> Vec<u32> {
    let is_within = |id: &u32| (*id as usize) < vocab_size;
    let (within, beyond): (Vec<u32>, Vec<u32>) = ids.partition(is_within);
    if !beyond.is_empty() {
        tracing::warn!(
            ?beyond,
            vocab_size,
            "ignoring an eos_token_id outside the vocabulary"
        );
    }
    within
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<GenerationConfig, LoadError> {
        GenerationConfig::from_json(&JsonFile::parse(Path::new(FILE), text.as_bytes())?)
    }

    #[test]
    fn sampling_keys_are_read() {
        let config = parse(
            r#"{"eos_token_id": [5, 7], "do_sample": true, "temperature": 0.5, "top_p": 0.75, "top_k": 20,
                "min_p": 0.0, "repetition_penalty": 1.0, "transformers_version": "4.51.0"}"#,
        );
        let expected = GenerationConfig {
            eos_token_ids: Some(vec![5, 7]),
            temperature: Some(0.5),
            top_p: Some(0.75),
            top_k: Some(20),
            min_p: Some(0.0),
            repetition_penalty: Some(1.0),
        };
        assert_eq!(config.expect("valid"), expected);
        let greedy =
            parse(r#"{"eos_token_id": 2, "do_sample": false, "temperature": 0.6, "top_k": 0}"#);
        let expected = GenerationConfig {
            eos_token_ids: Some(vec![2]),
            temperature: Some(0.0),
            top_k: Some(-1),
            ..GenerationConfig::default()
        };
        assert_eq!(greedy.expect("valid"), expected);
    }

    #[test]
    fn a_missing_file_sets_nothing_and_a_wrong_value_is_named() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let absent = GenerationConfig::read(dir.path()).expect("a missing file is allowed");
        assert_eq!(absent, GenerationConfig::default());
        for (text, expected) in [
            (
                r#"{"top_p": 1.5}"#,
                "top_p is 1.5, expected a number from 0 to 1",
            ),
            (
                r#"{"repetition_penalty": 0}"#,
                "repetition_penalty is 0, expected a number above 0 and at most 2",
            ),
        ] {
            let error = parse(text).expect_err("out of range").to_string();
            assert!(error.ends_with(expected), "{error}");
        }
    }

    #[test]
    fn zero_top_p_and_top_k_are_accepted() {
        let config = parse(r#"{"top_p": 0, "top_k": 0}"#).expect("both zeros are valid");
        assert_eq!((config.top_p, config.top_k), (Some(0.0), Some(-1)));
    }
}
