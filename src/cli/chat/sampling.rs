//! The sampling flags of `souffleur chat`; flags that are not given use the defaults of the model or the server.

use clap::Args;
use serde_json::{Map, Value, json};
use souffleur::model::generation::GenerationConfig;
use souffleur::state::sampling::SamplingParams;

/// How answers are sampled.
#[derive(Args, Clone, Debug)]
pub struct AnswerFlags {
    /// Maximum number of tokens of an answer
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 2048,
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Sampling"
    )]
    max_new_tokens: u32,
    /// Sampling randomness; 0 always picks the most likely token
    #[arg(long, help_heading = "Sampling")]
    temperature: Option<f32>,
    /// Choose only among the most likely tokens whose probabilities add up to this
    #[arg(long, value_name = "0..1", help_heading = "Sampling")]
    top_p: Option<f32>,
    /// Choose only among this many most likely tokens; -1 chooses among all
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        help_heading = "Sampling"
    )]
    top_k: Option<i32>,
    /// Drop tokens whose probability is below this fraction of the most likely token's
    #[arg(long, value_name = "0..1", help_heading = "Sampling")]
    min_p: Option<f32>,
    /// Subtracted from a token's logit for each time it already occurs in the answer
    #[arg(
        long,
        value_name = "-2..2",
        allow_negative_numbers = true,
        help_heading = "Sampling"
    )]
    frequency_penalty: Option<f32>,
    /// Subtracted once from a token's logit if it already occurs in the answer
    #[arg(
        long,
        value_name = "-2..2",
        allow_negative_numbers = true,
        help_heading = "Sampling"
    )]
    presence_penalty: Option<f32>,
    /// Above 1 makes tokens of the conversation less likely; 1 changes nothing
    #[arg(long, value_name = "0..2", help_heading = "Sampling")]
    repetition_penalty: Option<f32>,
    /// Seed of the random choices: the same seed gives the same answers
    #[arg(long, value_name = "SEED", help_heading = "Sampling")]
    sampling_seed: Option<u64>,
}

impl AnswerFlags {
    pub fn params(&self, model: &GenerationConfig) -> SamplingParams {
        let default = SamplingParams::default();
        let number =
            |given: Option<f32>, own: Option<f32>, default: f32| given.or(own).unwrap_or(default);
        SamplingParams {
            max_new_tokens: self.max_new_tokens,
            temperature: number(self.temperature, model.temperature, default.temperature),
            top_p: number(self.top_p, model.top_p, default.top_p),
            top_k: self.top_k.or(model.top_k).unwrap_or(default.top_k),
            min_p: number(self.min_p, model.min_p, default.min_p),
            frequency_penalty: number(self.frequency_penalty, None, default.frequency_penalty),
            presence_penalty: number(self.presence_penalty, None, default.presence_penalty),
            repetition_penalty: number(
                self.repetition_penalty,
                model.repetition_penalty,
                default.repetition_penalty,
            ),
            sampling_seed: self.sampling_seed,
            ..default
        }
    }

    pub fn fields(&self) -> Map<String, Value> {
        let given = [
            ("temperature", self.temperature.map(Value::from)),
            ("top_p", self.top_p.map(Value::from)),
            ("top_k", self.top_k.map(Value::from)),
            ("min_p", self.min_p.map(Value::from)),
            ("frequency_penalty", self.frequency_penalty.map(Value::from)),
            ("presence_penalty", self.presence_penalty.map(Value::from)),
            (
                "repetition_penalty",
                self.repetition_penalty.map(Value::from),
            ),
            ("seed", self.sampling_seed.map(Value::from)),
        ];
        let given = given
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let limit = ("max_tokens".to_owned(), json!(self.max_new_tokens));
        given.chain([limit]).collect()
    }
}
