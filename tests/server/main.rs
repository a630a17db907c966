//! Black-box tests of the server, over real sockets on free ports.

mod agents;
mod as_sent;
mod claude_code;
mod console;
mod console_live;
mod debug;
mod disconnects;
mod drafting;
mod dying_engine;
mod editors;
mod embedding;
#[path = "../common/embeddings.rs"]
mod embeddings;
mod errors;
mod fields;
mod formats;
mod hostile;
mod http;
mod images;
mod images_answered;
mod images_counted;
mod images_fetched;
mod images_in_texts;
mod images_placed;
mod infill;
mod infill_llama_cpp;
mod input_embeds;
mod kept_responses;
mod key;
mod loads;
mod long_prompts;
#[path = "../common/mean_tower.rs"]
mod mean_tower;
mod messages;
mod misses;
mod native;
mod ollama;
mod openai;
mod openapi;
mod overload;
mod pause;
mod pictures;
mod policy;
mod ranks;
#[path = "../common/repository.rs"]
mod repository;
mod request_ids;
mod rerank;
mod responses;
mod responses_websocket;
mod routes;
#[path = "../common/schemas.rs"]
mod schemas;
#[allow(dead_code, reason = "shared with the tests of clients")]
#[path = "../common/scripted.rs"]
mod scripted;
#[allow(dead_code, reason = "shared with the tests of the engine")]
#[path = "../common/seeing_models.rs"]
mod seeing_models;
mod sessions;
mod sharing;
mod speculation;
mod structured;
mod surface;
mod tokenize;
mod tool_calls;
mod warm_up;
mod websocket;
mod world;
