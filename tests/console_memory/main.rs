//! Tests of the memory that the console costs: with 8 viewers, and in a warm step of the actors.

mod allocator;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../server/console_live/drawing.rs"]
mod drawing;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../server/http.rs"]
mod http;
#[path = "../common/repository.rs"]
mod repository;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../common/scripted.rs"]
mod scripted;
mod server;
mod states;
mod steps;
mod viewers;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tests that measure the whole process run one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
