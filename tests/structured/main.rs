//! Tests of structured output through whole engines, with random weights and real tokenizers and executors.

mod every_schema;
mod large_vocabulary;
mod model;
mod recorded;
mod same_bits;
#[path = "../common/schemas.rs"]
mod schemas;
#[allow(dead_code, reason = "shared with the unit tests of grammars")]
#[path = "../common/tokenizers.rs"]
mod tokenizers;
mod validity;
#[allow(dead_code, reason = "shared with the tests of the whole engine")]
#[path = "../engine/world.rs"]
mod world;
