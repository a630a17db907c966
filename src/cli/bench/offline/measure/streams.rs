//! Runs streams through the engine's handle, and records when their tokens arrive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use souffleur::engine::EngineHandle;
use souffleur::request::{Event, GenerateRequest, Prompt};
use souffleur::state::sampling::SamplingParams;

use crate::cli::failure::Failure;

#[derive(Clone, Debug)]
pub struct Stream {
    began: Instant,
    /// The time of each event with tokens, and the number of tokens so far, in order; never empty.
    seen: Vec<(Instant, u32)>,
    pub output: Vec<u32>,
}

pub async fn run(
    engine: &EngineHandle,
    prompt: Vec<u32>,
    output_tokens: u32,
) -> Result<Stream, Failure> {
    answer(engine, request(prompt.into(), output_tokens)).await
}

/// A greedy request whose output has exactly `output_tokens` tokens.
pub fn request(prompt: Arc<[u32]>, output_tokens: u32) -> GenerateRequest {
    let sampling = SamplingParams {
        max_new_tokens: output_tokens,
        temperature: 0.0,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    GenerateRequest {
        sampling,
        ..GenerateRequest::new(Prompt::Tokens(prompt))
    }
}

/// Runs a request of [`request`].
pub async fn answer(engine: &EngineHandle, request: GenerateRequest) -> Result<Stream, Failure> {
    let output_tokens = request.sampling.max_new_tokens;
    let began = Instant::now();
    let mut generation = engine.generate(request).map_err(Failure::failed)?;
    let mut seen: Vec<(Instant, u32)> = Vec::with_capacity(output_tokens as usize);
    let mut output: Vec<u32> = Vec::with_capacity(output_tokens as usize);
    while let Some(event) = generation.next().await {
        let now = Instant::now();
        let delta = match &event {
            Event::Delta(delta) => delta,
            Event::Finished(end) | Event::Cancelled(end) => &end.delta,
            Event::Failed(error) => return Err(Failure::failed(error)),
        };
        let tokens = delta.usage.completion_tokens;
        output.extend(&delta.tokens);
        if tokens > seen.last().map_or(0, |(_, tokens)| *tokens) {
            seen.push((now, tokens));
        }
        if event.is_terminal() {
            return if tokens == output_tokens {
                Ok(Stream {
                    began,
                    seen,
                    output,
                })
            } else {
                Err(Failure::failed(format_args!(
                    "a stream ended after {tokens} of {output_tokens} tokens: increase --context-length or --max-total-tokens"
                )))
            };
        }
    }
    Err(Failure::failed(
        "the engine stopped before a stream was complete: see the log",
    ))
}

pub async fn run_all(
    engine: &EngineHandle,
    prompts: Vec<Vec<u32>>,
    output_tokens: u32,
) -> Result<Vec<Stream>, Failure> {
    let streams = prompts.into_iter();
    try_join_all(streams.map(|prompt| run(engine, prompt, output_tokens))).await
}

impl Stream {
    fn first(&self) -> (Instant, u32) {
        self.seen[0]
    }

    pub fn first_token(&self) -> Duration {
        self.first().0 - self.began
    }

    fn tokens_at(&self, at: Instant) -> u32 {
        let before = self.seen.partition_point(|(seen, _)| *seen <= at);
        before.checked_sub(1).map_or(0, |last| self.seen[last].1)
    }
}

/// The tokens that streams decoded together once each had its first token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decoded {
    pub tokens: u32,
    /// From the last stream's first token to the last token of any stream.
    pub seconds: f64,
}

/// `None` if no token followed the last stream's first token.
pub fn decoded(streams: &[Stream]) -> Option<Decoded> {
    let began = streams.iter().map(|stream| stream.first().0).max()?;
    let last = streams.iter().filter_map(|stream| stream.seen.last());
    let ended = last.map(|(at, _)| *at).max()?;
    between(streams, began, ended)
}

/// The tokens that streams decoded from the last stream's first token to the first end of a stream: with drafts,
/// streams of equal lengths end at different times. `None` if that time is empty.
pub fn decoded_together(streams: &[Stream]) -> Option<Decoded> {
    let began = streams.iter().map(|stream| stream.first().0).max()?;
    let last = streams.iter().filter_map(|stream| stream.seen.last());
    let ended = last.map(|(at, _)| *at).min()?;
    between(streams, began, ended)
}

fn between(streams: &[Stream], began: Instant, ended: Instant) -> Option<Decoded> {
    let tokens_at = |at| {
        streams
            .iter()
            .map(|stream| stream.tokens_at(at))
            .sum::<u32>()
    };
    let tokens = tokens_at(ended).checked_sub(tokens_at(began))?;
    let seconds = ended.saturating_duration_since(began).as_secs_f64();
    (tokens > 0 && seconds > 0.0).then_some(Decoded { tokens, seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(began: Instant, seen: &[(u64, u32)]) -> Stream {
        let seen = seen
            .iter()
            .map(|&(ms, tokens)| (began + Duration::from_millis(ms), tokens));
        Stream {
            began,
            seen: seen.collect(),
            output: Vec::new(),
        }
    }

    #[test]
    fn decoding_counts_from_the_last_streams_first_token() {
        let began = Instant::now();
        let early = stream(began, &[(100, 1), (200, 2), (300, 3), (400, 4)]);
        let late = stream(began, &[(250, 1), (350, 3), (450, 4)]);
        let expected = Decoded {
            tokens: 2 + 3,
            seconds: 0.2,
        };
        let both = [early.clone(), late];
        assert_eq!(decoded(&both), Some(expected));
        let together = Decoded {
            tokens: 2 + 2,
            seconds: 0.15,
        };
        assert_eq!(decoded_together(&both), Some(together));
        assert_eq!(early.first_token(), Duration::from_millis(100));
        assert_eq!(
            decoded(&[early]).map(|decoded| decoded.tokens),
            Some(3),
            "a single stream counts all tokens after its first"
        );
        assert_eq!(decoded(&[stream(began, &[(9, 4)])]), None);
        assert_eq!(decoded(&[]), None);
    }
}
