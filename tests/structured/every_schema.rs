//! Tests that outputs for every kind of schema are valid, on random weights with a bias towards closing tokens.

use futures_util::StreamExt;
use futures_util::stream;

use crate::model::{Model, base_config};
use crate::schemas::schemas;
use crate::validity::{Tally, check_schema};

/// Sets the requests per schema: `SOUFFLEUR_SCHEMA_STREAMS=100 cargo test --test structured every_schema`.
const STREAMS: &str = "SOUFFLEUR_SCHEMA_STREAMS";
const USUAL_STREAMS: u64 = 8;
/// Number of schemas whose requests run at once.
const AT_ONCE: usize = 4;

fn streams() -> u64 {
    let count = std::env::var(STREAMS).ok();
    count.map_or(USUAL_STREAMS, |count| {
        count.parse().expect("a number of streams")
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
        .map(|schema| check_schema(&model, schema, 0..streams()));
    let tallies: Vec<Tally> = stream::iter(checked).buffered(AT_ONCE).collect().await;
    let mut all = Tally::default();
    for (tally, written) in tallies.iter().zip(&schemas) {
        if tally.truncated > 0 {
            eprintln!("{tally:?}: {written}");
        }
        all.add(tally);
    }
    eprintln!("{all:?}");
    all.assert_enough();
    model.stop().await;
}
