//! Streams of an engine, and the times at which their tokens arrive.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::ensure;
use souffleur::engine::{EngineHandle, Generation};
use souffleur::request::{Event, GenerateRequest};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Longest time without a token of a stream.
const TIME_LIMIT: Duration = Duration::from_secs(60);

pub struct Streams(Vec<Stream>);

struct Stream {
    /// Of events with tokens.
    arrivals: Arc<Mutex<Vec<Instant>>>,
    task: JoinHandle<()>,
}

impl Streams {
    pub fn start(engine: &EngineHandle, requests: Vec<GenerateRequest>) -> anyhow::Result<Self> {
        let mut streams = Vec::with_capacity(requests.len());
        for request in requests {
            let generation = engine.generate(request)?;
            let arrivals = Arc::new(Mutex::new(Vec::new()));
            let task = tokio::spawn(follow(generation, arrivals.clone()));
            streams.push(Stream { arrivals, task });
        }
        Ok(Self(streams))
    }

    /// Waits for `n` tokens of each stream after `since`.
    pub async fn more(&self, n: usize, since: Instant) -> anyhow::Result<()> {
        let waited_since = Instant::now();
        while !self.0.iter().all(|stream| stream.n_after(since) >= n) {
            let has_ended = self.0.iter().any(|stream| stream.task.is_finished());
            ensure!(!has_ended, "a stream ended");
            ensure!(
                waited_since.elapsed() < TIME_LIMIT,
                "no token in {TIME_LIMIT:?}"
            );
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// The longest time between two tokens of a stream that has a part between `from` and `to`. Each stream must have
    /// tokens after `to`.
    pub fn longest_gap(&self, from: Instant, to: Instant) -> Duration {
        let gaps = self.0.iter().map(|stream| stream.longest_gap(from, to));
        gaps.max().unwrap_or_default()
    }

    /// Cancels the streams.
    pub async fn stop(self) {
        for stream in self.0 {
            // The generation is dropped with its task.
            stream.task.abort();
            let _ = stream.task.await;
        }
    }
}

impl Stream {
    fn n_after(&self, since: Instant) -> usize {
        let arrivals = self.arrivals.lock();
        let arrivals = arrivals.unwrap_or_else(PoisonError::into_inner);
        arrivals.iter().filter(|at| **at > since).count()
    }

    fn longest_gap(&self, from: Instant, to: Instant) -> Duration {
        let arrivals = self.arrivals.lock();
        let arrivals = arrivals.unwrap_or_else(PoisonError::into_inner);
        let pairs = arrivals.windows(2);
        let within = pairs.filter(|pair| pair[1] > from && pair[0] < to);
        let gaps = within.map(|pair| pair[1] - pair[0]);
        gaps.max().unwrap_or_default()
    }
}

/// Notes when the tokens of a stream arrive.
async fn follow(mut generation: Generation, arrivals: Arc<Mutex<Vec<Instant>>>) {
    while let Some(Event::Delta(delta)) = generation.next().await {
        if !delta.tokens.is_empty() {
            let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
            arrivals.push(Instant::now());
        }
    }
}
