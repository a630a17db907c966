//! Tests that outputs for every kind of schema are valid, on random weights with a bias towards closing tokens.

use futures_util::StreamExt;
use futures_util::stream;

use crate::model::{Model, base_config};
use crate::schemas::schemas;
use crate::validity::{Tally, check_schema};

/// Sets the requests per schema: `SOUFFLEUR_SCHEMA_STREAMS=100 cargo test --test structured every_schema`.
const REQUESTS_VARIABLE: &str = "SOUFFLEUR_SCHEMA_STREAMS";
const DEFAULT_REQUESTS: u64 = 8;
/// Number of schemas whose requests run at once.
const AT_ONCE: usize = 4;

fn requests_per_schema() -> u64 {
    let count = std::env::var(REQUESTS_VARIABLE).ok();
    count.map_or(DEFAULT_REQUESTS, |count| {
        count.parse().expect("a number of requests")
    })
}

#[tokio::test]
async fn outputs_end_and_are_valid() {
    let model = Model::start(base_config());
    let schemas = schemas();
    assert!(schemas.len() >= 60);
    let checked = schemas
        .iter()
        .enumerate()
        .map(|schema| check_schema(&model, schema, 0..requests_per_schema()));
    let tallies: Vec<Tally> = stream::iter(checked).buffered(AT_ONCE).collect().await;
    let mut all = Tally::default();
    for (tally, schema) in tallies.iter().zip(&schemas) {
        if tally.truncated > 0 {
            eprintln!("{tally:?}: {schema}");
        }
        all.add(tally);
    }
    eprintln!("{all:?}");
    all.assert_enough();
    model.stop().await;
}
