//! The requests of a trace: arrival times, prompts as lists of blocks, and output lengths.
//!
//! Prompt tokens exist only while their request is in flight, so that a trace of 145 million tokens stays small.

use std::sync::Arc;

use smallvec::SmallVec;

use super::SimulateError;

/// The number of tokens in a block of a trace.
pub const BLOCK_TOKENS: usize = 512;
pub const MAX_TOKENS: u32 = 1 << 24;
pub const MAX_REQUESTS: usize = 4_000_000;
/// Prompts use token ids below this number, outputs use the others.
pub const PROMPT_VOCAB: u32 = 1 << 31;
/// The difference between adjacent tokens. It is odd, so that all tokens of a block differ.
const STRIDE: u32 = 0x3243_f6a9;

/// The tokens of consecutive blocks from `first_block` on. The last block may be partial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub first_block: u32,
    /// Length, in tokens.
    pub tokens: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    segments: SmallVec<[Segment; 2]>,
    len: u32,
}

impl Prompt {
    /// Appends a segment, or extends the last segment if the new one continues it.
    pub fn push(&mut self, segment: Segment) {
        self.len += segment.tokens;
        if let Some(last) = self.segments.last_mut() {
            let is_whole = (last.tokens as usize).is_multiple_of(BLOCK_TOKENS);
            let next = u64::from(last.first_block) + u64::from(last.tokens) / BLOCK_TOKENS as u64;
            if is_whole && next == u64::from(segment.first_block) {
                last.tokens += segment.tokens;
                return;
            }
        }
        self.segments.push(segment);
    }

    /// Length, in tokens.
    #[allow(clippy::len_without_is_empty)] // a trace has no empty prompts
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Generates the tokens. Different blocks differ in every position: prompts share only their equal leading blocks.
    pub fn tokens(&self) -> Arc<[u32]> {
        let mut tokens = Vec::with_capacity(self.len());
        for segment in &self.segments {
            let mut left = segment.tokens as usize;
            let mut block = segment.first_block;
            while left > 0 {
                let taken = left.min(BLOCK_TOKENS) as u32;
                let places = 0..taken;
                let token =
                    |place: u32| block.wrapping_add(place.wrapping_mul(STRIDE)) % PROMPT_VOCAB;
                tokens.extend(places.map(token));
                left -= taken as usize;
                block += 1;
            }
        }
        tokens.into()
    }

    fn shifted(&self, blocks: u32) -> Self {
        let mut shifted = self.clone();
        for segment in &mut shifted.segments {
            segment.first_block += blocks;
        }
        shifted
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct TraceRequest {
    /// The arrival time, in seconds since the start of the trace.
    pub arrival_s: f64,
    pub prompt: Prompt,
    pub output_tokens: u32,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    pub requests: Vec<TraceRequest>,
    /// The number of different blocks: block numbers are below this.
    pub n_blocks: u32,
    /// The number of requests that were skipped because their prompt is empty.
    pub empty_prompts: usize,
}

impl Trace {
    pub fn prompt_tokens(&self) -> u64 {
        self.requests
            .iter()
            .map(|request| request.prompt.len() as u64)
            .sum()
    }

    pub fn output_tokens(&self) -> u64 {
        self.requests
            .iter()
            .map(|request| u64::from(request.output_tokens))
            .sum()
    }

    /// The time from the first to the last arrival, in seconds.
    pub fn span_s(&self) -> f64 {
        match (self.requests.first(), self.requests.last()) {
            (Some(first), Some(last)) => last.arrival_s - first.arrival_s,
            _ => 0.0,
        }
    }

    /// Sorts the requests by arrival, and shifts the first arrival to 0.
    pub(super) fn normalize(&mut self) {
        self.requests
            .sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s));
        let start_s = self.requests.first().map_or(0.0, |first| first.arrival_s);
        for request in &mut self.requests {
            request.arrival_s -= start_s;
        }
    }

    /// Divides all arrival times by `factor`.
    #[must_use]
    pub fn faster(mut self, factor: f64) -> Self {
        for request in &mut self.requests {
            request.arrival_s /= factor;
        }
        self
    }

    /// Repeats the trace `times` times, at the same rate. Each repetition has new blocks, so that it shares no prefixes
    /// with earlier ones. Fails if there are too many requests or blocks.
    pub fn repeated(self, times: u32) -> Result<Self, SimulateError> {
        let n_requests = self.requests.len().saturating_mul(times as usize);
        let n_blocks = u64::from(self.n_blocks) * u64::from(times);
        if times == 0 {
            return Err(SimulateError::value("repeat", "is 0, must be at least 1"));
        }
        if n_requests > MAX_REQUESTS || n_blocks > u64::from(PROMPT_VOCAB) {
            let reason = format!(
                "is {times}, which makes {n_requests} requests (limit {MAX_REQUESTS}) and {n_blocks} prompt blocks \
                 (limit {PROMPT_VOCAB}): lower --repeat"
            );
            return Err(SimulateError::value("repeat", reason));
        }
        let mean_gap_s = self.span_s() / self.requests.len().saturating_sub(1).max(1) as f64;
        let period_s = self.span_s() + mean_gap_s;
        let copy = |repetition: u32| {
            self.requests.iter().map(move |request| TraceRequest {
                arrival_s: request.arrival_s + f64::from(repetition) * period_s,
                prompt: request.prompt.shifted(repetition * self.n_blocks),
                output_tokens: request.output_tokens,
            })
        };
        Ok(Self {
            requests: (0..times).flat_map(copy).collect(),
            n_blocks: n_blocks as u32,
            empty_prompts: self.empty_prompts * times as usize,
        })
    }
}

/// Numbers blocks in the order in which they are first seen.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    numbers: rustc_hash::FxHashMap<i128, u32>,
    count: u32,
}

impl Blocks {
    /// The number of the block with a hash id; `None` if there are too many blocks.
    pub(super) fn of(&mut self, hash_id: i128) -> Option<u32> {
        if let Some(block) = self.numbers.get(&hash_id) {
            return Some(*block);
        }
        let block = self.reserve(1)?;
        self.numbers.insert(hash_id, block);
        Some(block)
    }

    /// Reserves `blocks` new block numbers. Returns the first one, or `None` if there are too many blocks.
    pub(super) fn reserve(&mut self, blocks: u32) -> Option<u32> {
        let first = self.count;
        self.count = first
            .checked_add(blocks)
            .filter(|count| *count <= PROMPT_VOCAB)?;
        Some(first)
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }
}

pub(super) fn blocks_for(tokens: u32) -> u32 {
    tokens.div_ceil(BLOCK_TOKENS as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(runs: &[(u32, u32)]) -> Prompt {
        let mut prompt = Prompt::default();
        for &(first_block, tokens) in runs {
            prompt.push(Segment {
                first_block,
                tokens,
            });
        }
        prompt
    }

    #[test]
    fn prompts_share_exactly_their_equal_leading_blocks() {
        let common = |a: &Prompt, b: &Prompt| {
            let (a, b) = (a.tokens(), b.tokens());
            a.iter().zip(&*b).take_while(|(a, b)| a == b).count()
        };
        let base = prompt(&[(0, 512), (1, 512), (2, 100)]);
        assert_eq!(base.segments.len(), 1);
        assert_eq!(
            common(&base, &prompt(&[(0, 512), (1, 512), (2, 300)])),
            1124
        );
        assert_eq!(common(&base, &prompt(&[(0, 1024), (7, 512)])), 1024);
        assert_eq!(common(&base, &prompt(&[(0, 512), (2, 512)])), 512);
        assert_eq!(common(&base, &prompt(&[(1, 512), (1, 512)])), 0);
        let tokens = base.tokens();
        let (first, second) = (&tokens[..512], &tokens[512..1024]);
        assert!(first.iter().zip(second).all(|(a, b)| a != b));
        let distinct: std::collections::HashSet<_> = first.iter().collect();
        assert_eq!(distinct.len(), 512);
        assert!(tokens.iter().all(|token| *token < PROMPT_VOCAB));
    }

    #[test]
    fn repetitions_keep_the_rate_and_share_no_blocks() {
        let request = |arrival_s, first_block| TraceRequest {
            arrival_s,
            prompt: prompt(&[(first_block, 600)]),
            output_tokens: 3,
        };
        let trace = Trace {
            requests: vec![request(0.0, 0), request(2.0, 2), request(4.0, 0)],
            n_blocks: 4,
            empty_prompts: 1,
        };
        let twice = trace.clone().repeated(2).expect("it is small");
        assert_eq!(
            (twice.requests.len(), twice.n_blocks, twice.empty_prompts),
            (6, 8, 2)
        );
        assert_eq!(twice.requests[..3], trace.requests);
        assert_eq!(twice.requests[3].arrival_s, 6.0);
        assert_eq!(twice.requests[3].prompt, prompt(&[(4, 600)]));
        assert_eq!(trace.clone().faster(2.0).span_s(), 2.0);
        assert!(trace.clone().repeated(0).is_err());
        assert!(trace.repeated(u32::MAX).is_err());
    }
}
