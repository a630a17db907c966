//! LongRoPE, arXiv 2402.13753: a divisor for each frequency, with one set for short sequences and another for long
//! ones.

use std::sync::Arc;

use serde_json::Value;

use crate::json_file::JsonFile;
use souffleur_base::error::LoadError;

#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// Divisors of the frequencies, one for each pair, for sequences within the original context.
    pub short: Vec<f32>,
    pub long: Vec<f32>,
    /// Trained context before scaling, in tokens.
    pub original_max_position_embeddings: usize,
    /// Factor on cos and sin, with either set of divisors.
    pub attention_factor: f64,
}

impl LongRope {
    pub(super) fn read(
        rope: &JsonFile,
        original: usize,
        max_positions: usize,
    ) -> Result<Arc<Self>, LoadError> {
        if original < 2 {
            let reason = format!("is {original}, expected at least 2 with longrope");
            return Err(rope.error("original_max_position_embeddings", reason));
        }
        let given = rope.number("factor", 1e-6..=1e6)?;
        let factor = given.unwrap_or(max_positions as f64 / original as f64);
        Ok(Arc::new(Self {
            short: divisors(rope, "short_factor")?,
            long: divisors(rope, "long_factor")?,
            original_max_position_embeddings: original,
            attention_factor: match rope.number("attention_factor", 1e-6..=1e6)? {
                Some(given) => given,
                None if factor <= 1.0 => 1.0,
                None => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
            },
        }))
    }

    /// Checks that each rotated pair has one divisor in both sets.
    pub(super) fn check_pairs(&self, json: &JsonFile, rotary_dim: usize) -> Result<(), LoadError> {
        for (key, divisors) in [("short_factor", &self.short), ("long_factor", &self.long)] {
            let (got, expected) = (divisors.len(), rotary_dim / 2);
            if got != expected {
                let reason = format!(
                    "has {got} numbers, expected {expected}: one for each pair of the {rotary_dim} elements that rotate"
                );
                return Err(json.error(key, reason));
            }
        }
        Ok(())
    }
}

fn divisors(rope: &JsonFile, key: &str) -> Result<Vec<f32>, LoadError> {
    let missing = "is missing: longrope needs one number for each pair of rotated elements";
    let value = rope.value(key).ok_or_else(|| rope.error(key, missing))?;
    let one = |value: &Value| {
        value
            .as_f64()
            .filter(|number| (1e-6..=1e6).contains(number))
    };
    let numbers = value.as_array().and_then(|items| {
        let items = items.iter();
        items.map(|item| Some(one(item)? as f32)).collect()
    });
    numbers.ok_or_else(|| rope.expected(key, value, "a list of numbers from 1e-6 to 1e6"))
}
