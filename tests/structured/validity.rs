//! Validates outputs against their schemas.

use jsonschema::Validator;
use serde_json::Value;

use crate::model::{Model, Said, schema};

/// The share of outputs that must end, in percent.
const MIN_ENDED: usize = 95;

#[derive(Debug, Default)]
pub struct Tally {
    pub ended: usize,
    pub cut: usize,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.ended += other.ended;
        self.cut += other.cut;
    }

    pub fn assert_enough(&self) {
        let all = self.ended + self.cut;
        assert!(self.ended * 100 >= all * MIN_ENDED, "{self:?}");
    }
}

/// Requests values of a schema, one for each seed, all at once, and checks those that finish.
pub async fn check_schema(
    model: &Model,
    (number, written): (usize, &Value),
    seeds: std::ops::Range<u64>,
) -> Tally {
    let validator = jsonschema::options()
        .should_validate_formats(true)
        .build(written)
        .expect("the schema is valid");
    let ask = |seed| model.ask(model.request(number as u64, seed, Some(schema(written))));
    let mut tally = Tally::default();
    for said in futures_util::future::join_all(seeds.map(ask)).await {
        match said.end.as_str() {
            "stop" => tally.ended += 1,
            _ => tally.cut += 1,
        }
        check(model, written, &validator, &said);
    }
    tally
}

fn check(model: &Model, written: &Value, validator: &Validator, said: &Said) {
    use souffleur_state::detok::TokenText;
    let text = &said.text;
    let output = match said.tokens.split_last() {
        Some((last, before)) if model.eos.contains(last) => before,
        _ => &said.tokens[..],
    };
    let decoded = model.text.decode(output, true, true);
    assert_eq!(*text, decoded, "{written}: {said:?}");
    let is_control = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    assert!(!text.contains(is_control), "{written}: {text:?}");
    if said.end.as_str() != "stop" {
        return;
    }
    match serde_json::from_str::<Value>(text) {
        Ok(value) => assert!(validator.is_valid(&value), "{written}: {text}"),
        // The text is JSON with a number outside the range of f64.
        Err(error) => assert!(
            error.to_string().contains("out of range"),
            "{written}: {text:?}: {error}"
        ),
    }
}
