//! A run of all requests at once, each with its own connection, and of one more request at each death.

use std::thread::{self, ScopedJoinHandle};

use serde_json::Value;

use crate::load::Call;
use crate::streams;
use crate::watch::Watch;
use crate::world::World;

pub struct Wave {
    /// The contents of the answers, in the order of the calls.
    pub contents: Vec<Value>,
    /// The texts of the requests that were sent at a death.
    pub gaps: Vec<Value>,
}

/// Ends the requests at deaths, also if a check fails.
struct Quiet<'a>(&'a Watch);

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        self.0.tell(None);
    }
}

impl Wave {
    /// Sends all requests, calls `meanwhile`, and waits for the answers.
    pub fn run(world: &World, calls: &[Call], meanwhile: impl FnOnce()) -> Self {
        let (deaths, died) = crossbeam_channel::unbounded();
        world.watch.tell(Some(deaths));
        let (addr, watch) = (world.server.addr, &*world.watch);
        thread::scope(|scope| {
            let quiet = Quiet(watch);
            let gaps = scope.spawn(move || {
                died.iter()
                    .map(|()| streams::short(addr))
                    .collect::<Vec<_>>()
            });
            let clients = calls
                .iter()
                .map(|call| scope.spawn(move || streams::read(addr, watch, call)));
            let clients: Vec<ScopedJoinHandle<'_, Value>> = clients.collect();
            meanwhile();
            let contents = clients.into_iter().map(answer).collect();
            drop(quiet);
            Self {
                contents,
                gaps: answer(gaps),
            }
        })
    }
}

fn answer<T>(client: ScopedJoinHandle<'_, T>) -> T {
    client.join().expect("the request is answered")
}
