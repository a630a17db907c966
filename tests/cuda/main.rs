//! Tests of the engine on the CUDA executor, over the emulated driver: kernels run on the CPU, and asynchronous copies
//! are delayed as long as CUDA's order of streams and events allows, so that missing synchronisation shows. Outputs are
//! compared with the CPU executor's: in f32 the tokens are equal, in bfloat16 log probabilities are close (`scores`).

#![allow(clippy::unwrap_used)]

mod ahead;
mod common;
mod constrained;
mod device_loss;
#[path = "../common/embeddings.rs"]
mod embeddings;
mod eos;
mod golden;
mod gpu;
#[allow(dead_code, reason = "shared with the tests of the scheduler")]
#[path = "../common/grammars.rs"]
mod grammars;
mod images;
mod interruptions;
mod lone_rank;
#[path = "../models/masks.rs"]
mod masks;
mod model;
#[allow(dead_code, reason = "shared with the tests of models")]
#[path = "../common/plans.rs"]
mod plans;
mod pooling;
mod prompt_embeddings;
mod rank_faults;
mod ranks;
mod replicas;
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
mod vision_model;
#[allow(dead_code, reason = "shared with the tests of the whole engine")]
#[path = "../engine/world.rs"]
mod world;
