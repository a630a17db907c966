//! Tests of the `souffleur` binary with unmodified clients and gateways, and of the bundled model's quality. The tests
//! of agents use a server in this process instead, with a scripted model.

mod agents;
mod binary;
mod bundled;
mod claude_code;
mod codex;
mod documented;
#[cfg(feature = "grpc")]
mod dynamo;
#[path = "../common/python_environment.rs"]
mod environment;
#[allow(dead_code, reason = "shared with the tests of the command line")]
#[path = "../cli/hub/fake.rs"]
mod fake_hub;
mod gateways;
mod hub;
#[path = "../common/mean_tower.rs"]
mod mean_tower;
mod npm;
mod ollama_js;
mod peers;
mod pictures;
mod python;
#[path = "../common/repository.rs"]
mod repository;
mod schemathesis;
#[path = "../common/scripted.rs"]
mod scripted;
#[allow(dead_code, reason = "shared with the tests of the engine")]
#[path = "../common/seeing_models.rs"]
mod seeing_models;
mod seeing_script;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../server/world.rs"]
mod world;
