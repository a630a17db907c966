//! Tests of the engine on the CUDA executor, over the emulated driver: kernels run on the CPU, and streams as late as
//! CUDA allows. The CPU executor's output is the reference, in f32 token by token.

#![allow(clippy::unwrap_used)]

mod ahead;
mod common;
mod constrained;
#[path = "../common/embeddings.rs"]
mod embeddings;
mod ends;
mod golden;
mod gpu;
#[allow(dead_code, reason = "shared with the tests of the scheduler")]
#[path = "../common/grammars.rs"]
mod grammars;
mod lives;
#[path = "../models/masks.rs"]
mod masks;
mod model;
#[allow(dead_code, reason = "shared with the tests of models")]
#[path = "../common/plans.rs"]
mod plans;
mod pooling;
#[path = "../common/repository.rs"]
mod repository;
#[path = "../common/requests.rs"]
mod requests;
mod scores;
mod setups;
#[path = "../models/steps.rs"]
mod steps;
mod store;
mod twins;
mod vectors;
#[allow(dead_code, reason = "shared with the tests of the whole engine")]
#[path = "../engine/world.rs"]
mod world;
