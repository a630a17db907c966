//! The keys of speculation, in SGLang's form and in vLLM's, and the combinations that are refused.

#[cfg(test)]
mod tests;

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::keys::{Form, KeyType, check_range, out_of_range};
use super::{Device, EngineConfig};
use souffleur_base::error::ConfigError;
use souffleur_state::speculation::MAX_ROOM;

/// SGLang's NGRAM has 12; here products of matrices take eight rows at once.
const DEFAULT_ROOM: u32 = 8;
/// As in SGLang.
const DEFAULT_MAX_MATCH: usize = 12;
/// At most 4 MiB for a request's own text and its index, and as many for its other texts.
const DEFAULT_CAPACITY: usize = 1 << 18;

/// The least query tokens with a draft.
pub(super) const MIN_ROOM: u32 = 2;
/// Drafts follow at least two equal tokens.
pub(super) const MIN_MATCH: usize = 2;
/// Longer matches say no more.
pub(super) const MAX_MATCH: usize = 1024;
pub(super) const MIN_CAPACITY: usize = 64;
/// SGLang's default.
pub(super) const MAX_CAPACITY: usize = 10_000_000;

/// What `speculative_config` may contain; `model` is an old name of `method`.
const CONFIG_FIELDS: [&str; 5] = [
    "method",
    "num_speculative_tokens",
    "prompt_lookup_max",
    "prompt_lookup_min",
    "model",
];

/// Where drafts come from. The names of other engines' algorithms are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SpeculativeAlgorithm {
    /// Texts that the request has already: its prompt, output and prediction, and the words of its grammar.
    Ngram,
}

/// The settings of speculation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeculationWish {
    /// The most query tokens of a row in a step: the last token and its drafts.
    pub room: u32,
    /// The longest run of equal tokens that the search for drafts compares.
    pub max_match: usize,
    /// The most tokens of text that are searched for one request.
    pub capacity: usize,
}

impl FromStr for SpeculativeAlgorithm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name.eq_ignore_ascii_case("ngram") {
            return Ok(Self::Ngram);
        }
        Err(format!(
            "is {name:?}, must be NGRAM: drafts come from the request's own text, not from draft models or heads"
        ))
    }
}

impl TryFrom<String> for SpeculativeAlgorithm {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<SpeculativeAlgorithm> for String {
    fn from(algorithm: SpeculativeAlgorithm) -> Self {
        match algorithm {
            SpeculativeAlgorithm::Ngram => "NGRAM".to_owned(),
        }
    }
}

impl KeyType for SpeculativeAlgorithm {
    const FORM: Form = Form::Checked(|name| name.parse::<SpeculativeAlgorithm>().map(drop));
}

impl EngineConfig {
    /// The settings of speculation; `None` if it is off.
    ///
    /// # Errors
    /// `speculative_config` is not valid or given with other keys, or another key excludes speculation.
    pub fn speculation(&self) -> Result<Option<SpeculationWish>, ConfigError> {
        let (key, given, wish) = match (&self.speculative_config, self.speculative_algorithm) {
            (None, None) => {
                self.refuse_without_algorithm()?;
                return Ok(None);
            }
            (Some(json), _) => {
                self.refuse_both_forms()?;
                let key = "speculative_config";
                let wish = read_config(json).map_err(|reason| out_of_range(key, reason))?;
                (key, "is given", wish)
            }
            (None, Some(SpeculativeAlgorithm::Ngram)) => (
                "speculative_algorithm",
                "is NGRAM",
                SpeculationWish {
                    room: self.speculative_num_draft_tokens.unwrap_or(DEFAULT_ROOM),
                    max_match: self
                        .speculative_ngram_max_match_window_size
                        .unwrap_or(DEFAULT_MAX_MATCH),
                    capacity: self.speculative_ngram_capacity.unwrap_or(DEFAULT_CAPACITY),
                },
            ),
        };
        match self.against_speculation() {
            Some(reason) => Err(out_of_range(key, format!("{given}, but {reason}"))),
            None => Ok(Some(wish)),
        }
    }

    /// Refuses numbers that have no effect, because speculation is off.
    fn refuse_without_algorithm(&self) -> Result<(), ConfigError> {
        let numbers = [
            (
                "speculative_num_draft_tokens",
                self.speculative_num_draft_tokens.map(u64::from),
            ),
            (
                "speculative_ngram_max_match_window_size",
                self.speculative_ngram_max_match_window_size
                    .map(|n| n as u64),
            ),
            (
                "speculative_ngram_capacity",
                self.speculative_ngram_capacity.map(|n| n as u64),
            ),
        ];
        let given = numbers
            .into_iter()
            .find_map(|(key, number)| Some((key, number?)));
        match given {
            Some((key, number)) => Err(out_of_range(
                key,
                format!(
                    "is {number}, but speculative_algorithm is not set: set it to NGRAM or unset this key"
                ),
            )),
            None => Ok(()),
        }
    }

    fn refuse_both_forms(&self) -> Result<(), ConfigError> {
        let of_sglang = [
            (
                "speculative_algorithm",
                self.speculative_algorithm.is_some(),
            ),
            (
                "speculative_num_draft_tokens",
                self.speculative_num_draft_tokens.is_some(),
            ),
            (
                "speculative_ngram_max_match_window_size",
                self.speculative_ngram_max_match_window_size.is_some(),
            ),
            (
                "speculative_ngram_capacity",
                self.speculative_ngram_capacity.is_some(),
            ),
        ];
        match of_sglang.iter().find(|(_, is_given)| *is_given) {
            Some((other, _)) => Err(out_of_range(
                "speculative_config",
                format!("is given, and {other} too: they set the same, unset one of the two"),
            )),
            None => Ok(()),
        }
    }

    /// The key with which speculation cannot be combined, if one is set.
    fn against_speculation(&self) -> Option<String> {
        if matches!(self.device, Device::Cuda(_)) {
            let device = String::from(self.device.clone());
            return Some(format!(
                "device is {device}: drafts are verified on the CPU only: set device to cpu or unset it"
            ));
        }
        if self.enable_double_sparsity {
            let text = "enable_double_sparsity is on: unset one of the two";
            return Some(text.to_owned());
        }
        None
    }
}

/// Reads vLLM's JSON object of settings.
fn read_config(json: &str) -> Result<SpeculationWish, String> {
    let fields: Map<String, Value> = serde_json::from_str(json).map_err(|error| {
        format!("is not a JSON object as {{\"method\": \"ngram\", \"num_speculative_tokens\": 7}}: {error}")
    })?;
    check_method(&fields)?;
    let is_unknown = |name: &&String| !CONFIG_FIELDS.contains(&name.as_str());
    if let Some(unknown) = fields.keys().find(is_unknown) {
        let names = CONFIG_FIELDS[..4].join(", ");
        return Err(format!("has {unknown:?}, must have only {names}"));
    }
    let number = |name: &'static str, least: u64, most: u64| match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let number = value.as_u64().ok_or_else(|| {
                format!("has the {name} {value}, must be a whole number from {least} to {most}")
            })?;
            let checked = check_range::<u64>(name, number, least..=most);
            checked.map_err(|error| format!("has a {name} that {}", error.reason))?;
            Ok::<_, String>(Some(number))
        }
    };
    let most_drafts = u64::from(MAX_ROOM - 1);
    let drafts = number("num_speculative_tokens", 1, most_drafts)?;
    let most = MAX_MATCH as u64;
    let max_match = number("prompt_lookup_max", 1, most)?;
    // Else ignored: a match that is too short for a good draft is found out by the results of drafts.
    let min_match = number("prompt_lookup_min", 1, max_match.unwrap_or(most))?;
    let default = DEFAULT_MAX_MATCH.max(min_match.unwrap_or(0) as usize);
    let longest = max_match.map_or(default, |longest| longest as usize);
    Ok(SpeculationWish {
        room: drafts.map_or(DEFAULT_ROOM, |drafts| drafts as u32 + 1),
        max_match: longest.max(MIN_MATCH),
        capacity: DEFAULT_CAPACITY,
    })
}

/// Old versions of vLLM took the method as the `model`, in brackets.
fn check_method(fields: &Map<String, Value>) -> Result<(), String> {
    const METHODS: [&str; 3] = ["ngram", "[ngram]", "suffix"];
    let methods = [fields.get("method"), fields.get("model")];
    let given = methods.into_iter().flatten();
    let mut given = given.filter(|method| !method.is_null());
    let unknown = given.clone().find(|method| {
        let name = method.as_str();
        name.is_none_or(|name| !METHODS.contains(&name))
    });
    match (given.next(), unknown) {
        (_, Some(method)) => Err(format!(
            "names the method {method}, must be \"ngram\" or \"suffix\", which are the same: drafts come from the \
             request's own text, not from draft models or heads"
        )),
        (None, None) => Err(
            "names no method: add \"method\": \"ngram\", which takes drafts from the request's own text".to_owned(),
        ),
        (Some(_), None) => Ok(()),
    }
}
