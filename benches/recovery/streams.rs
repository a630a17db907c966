//! Streams of an engine, and the times at which their tokens arrive.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use souffleur::engine::{EngineHandle, Generation};
use souffleur::error::RequestError;
use souffleur::request::{Event, GenerateRequest, Prompt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::TIME_LIMIT;

/// Longest output of a request: no stream ends by itself.
pub const MAX_OUTPUT: usize = 1024;
/// Tokens after a death in which the pause is searched: those of steps before the death may arrive after it.
const WATCHED_TOKENS: usize = 4;

pub struct Streams<'a> {
    engine: &'a EngineHandle,
    streams: Vec<Stream>,
    notes: UnboundedReceiver<Note>,
}

/// A request and its tokens.
struct Stream {
    prompt: Vec<u32>,
    told: Vec<u32>,
    arrivals: Vec<Instant>,
    task: Option<JoinHandle<()>>,
}

/// Tokens of a stream, or the reason why it ended.
struct Note {
    stream: usize,
    at: Instant,
    tokens: Result<Vec<u32>, String>,
}

impl<'a> Streams<'a> {
    pub fn new(engine: &'a EngineHandle, prompts: Vec<Vec<u32>>) -> Self {
        let streams = prompts.into_iter().map(|prompt| Stream {
            prompt,
            told: Vec::new(),
            arrivals: Vec::new(),
            task: None,
        });
        // A channel without a sender.
        let (_, notes) = unbounded_channel();
        Self {
            engine,
            streams: streams.collect(),
            notes,
        }
    }

    /// Sends all requests, with the tokens that were told as a part of their prompts.
    pub fn send(&mut self) -> anyhow::Result<()> {
        let requests = self.streams.iter_mut().map(Stream::request).collect();
        let generations = self.engine.generate_all(requests)?;
        let (sender, notes) = unbounded_channel();
        for (number, generation) in generations.into_iter().enumerate() {
            let task = tokio::spawn(follow(number, generation, sender.clone()));
            self.streams[number].task = Some(task);
        }
        self.notes = notes;
        Ok(())
    }

    /// Cancels all requests, and flushes the cache when they have ended.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        for stream in &mut self.streams {
            if let Some(task) = stream.task.take() {
                // The generation is dropped with its task, which cancels the request.
                task.abort();
                let _ = task.await;
            }
        }
        let flushed = async {
            loop {
                match self.engine.flush_cache().await {
                    Err(RequestError::Busy { .. }) => sleep(Duration::from_millis(1)).await,
                    flushed => return flushed,
                }
            }
        };
        let flushed = timeout(TIME_LIMIT, flushed).await;
        flushed.context("the requests do not end")??;
        Ok(())
    }

    /// Waits for `n` more tokens of each stream.
    pub async fn more(&mut self, n: usize) -> anyhow::Result<()> {
        let most = self.streams.iter().map(|stream| stream.told.len()).max();
        let goal = most.unwrap_or(0) + n;
        self.until(|stream| stream.told.len() >= goal).await
    }

    /// Waits for the first token of each stream, and returns the times.
    pub async fn first_tokens(&mut self) -> anyhow::Result<Vec<Instant>> {
        self.until(|stream| !stream.arrivals.is_empty()).await?;
        let firsts = self.streams.iter().map(|stream| stream.arrivals[0]);
        Ok(firsts.collect())
    }

    /// Waits for tokens after the death, and returns the longest interval between two tokens of each stream.
    pub async fn pauses_since(&mut self, death: Instant) -> anyhow::Result<Vec<Duration>> {
        let n_after = |stream: &Stream| stream.intervals_since(death).count();
        self.until(|stream| n_after(stream) >= WATCHED_TOKENS)
            .await?;
        let longest = self.streams.iter().map(|stream| {
            let intervals = stream.intervals_since(death).take(WATCHED_TOKENS);
            intervals.max().unwrap_or_default()
        });
        Ok(longest.collect())
    }

    async fn until(&mut self, is_done: impl Fn(&Stream) -> bool) -> anyhow::Result<()> {
        while !self.streams.iter().all(&is_done) {
            let note = timeout(TIME_LIMIT, self.notes.recv()).await;
            let note = note.context("no token arrives")?;
            let Note { stream, at, tokens } = note.context("all streams have ended")?;
            let tokens = match tokens {
                Ok(tokens) => tokens,
                Err(end) => bail!("a stream ended: {end}"),
            };
            let stream = &mut self.streams[stream];
            if !tokens.is_empty() {
                stream.arrivals.push(at);
                stream.told.extend(tokens);
            }
        }
        Ok(())
    }
}

impl Stream {
    fn request(&mut self) -> GenerateRequest {
        self.prompt.append(&mut self.told);
        self.arrivals.clear();
        let prompt = Prompt::Tokens(self.prompt.as_slice().into());
        let mut request = GenerateRequest::new(prompt);
        request.sampling.temperature = 0.0;
        request.sampling.ignore_eos = true;
        request.sampling.max_new_tokens = MAX_OUTPUT as u32;
        request
    }

    /// The intervals between two tokens of which the second one arrived after `since`.
    fn intervals_since(&self, since: Instant) -> impl Iterator<Item = Duration> {
        let pairs = self.arrivals.windows(2);
        let pairs = pairs.filter(move |pair| pair[1] > since);
        pairs.map(|pair| pair[1] - pair[0])
    }
}

/// Notes when the tokens of a stream arrive.
async fn follow(stream: usize, mut generation: Generation, notes: UnboundedSender<Note>) {
    while let Some(event) = generation.next().await {
        let at = Instant::now();
        let tokens = match event {
            Event::Delta(delta) => Ok(delta.tokens),
            end => Err(format!("{end:?}")),
        };
        let note = Note { stream, at, tokens };
        if notes.send(note).is_err() {
            return;
        }
    }
}
