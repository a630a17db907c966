//! Small requests that ask for much: none takes memory, time or a place that another request needs.
//!
//! Memory is bounded by the high-water mark of a child process, stalls by the tokens that another stream received
//! meanwhile. Nothing here measures a wall time.

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
