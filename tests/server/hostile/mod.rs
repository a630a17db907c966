//! Tests of hostile requests: none takes memory, time or a slot that another request needs.
//!
//! The tests measure memory as the peak of a child process, and stalls as the number of tokens that another stream has
//! not yet received, but never wall time.

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
