//! Tests of hostile requests: none takes memory, time or a slot that another request needs.
//!
//! Memory is measured by the high-water mark of a child process, stalls by the tokens that another stream received
//! meanwhile. Nothing here measures wall time.

mod child;

mod admission;
mod bodies;
mod engine;
mod frames;
mod grammars;
mod logprobs;
mod parameters;
mod random_constraints;
mod responses;
mod routes;
mod strangers;
mod tokenizer;
