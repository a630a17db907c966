//! Checks that outputs are valid against their schemas, and counts the outputs that end.

use jsonschema::Validator;
use serde_json::Value;

use crate::model::{Model, Output, schema};

/// The share of outputs that must end, in percent.
const MIN_ENDED: usize = 95;

#[derive(Debug, Default)]
pub struct Tally {
    pub ended: usize,
    pub truncated: usize,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.ended += other.ended;
        self.truncated += other.truncated;
    }

    pub fn assert_enough(&self) {
        let all = self.ended + self.truncated;
        assert!(self.ended * 100 >= all * MIN_ENDED, "{self:?}");
    }
}

/// Sends one request per seed for a value of a schema, all at once, and checks the outputs.
pub async fn check_schema(
    model: &Model,
    (number, schema_json): (usize, &Value),
    seeds: std::ops::Range<u64>,
) -> Tally {
    let validator = jsonschema::options()
        .should_validate_formats(true)
        .build(schema_json)
        .expect("the schema is valid");
    let ask = |seed| model.ask(model.request(number as u64, seed, Some(schema(schema_json))));
    let mut tally = Tally::default();
    for output in futures_util::future::join_all(seeds.map(ask)).await {
        match output.end.as_str() {
            "stop" => tally.ended += 1,
            _ => tally.truncated += 1,
        }
        check(model, schema_json, &validator, &output);
    }
    tally
}

fn check(model: &Model, schema_json: &Value, validator: &Validator, output: &Output) {
    use souffleur_state::detok::TokenText;
    let text = &output.text;
    let tokens = match output.tokens.split_last() {
        Some((last, before)) if model.eos.contains(last) => before,
        _ => &output.tokens[..],
    };
    let decoded = model.text.decode(tokens, true, true);
    assert_eq!(*text, decoded, "{schema_json}: {output:?}");
    let is_control = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    assert!(!text.contains(is_control), "{schema_json}: {text:?}");
    if output.end.as_str() != "stop" {
        return;
    }
    match serde_json::from_str::<Value>(text) {
        Ok(value) => assert!(validator.is_valid(&value), "{schema_json}: {text}"),
        // The text may be JSON with a number outside the range of f64.
        Err(error) => assert!(
            error.to_string().contains("out of range"),
            "{schema_json}: {text:?}: {error}"
        ),
    }
}
