//! Prefetch hints for the weights that a thread multiplies next.

use super::simd::Lanes;

pub const LINE_WORDS: usize = 16;
/// Cache lines of a prefetch burst: bursts of dozens were slower with 2 to 16 rows. A core keeps a limited number of
/// misses in flight, so a long burst probably delays the weights that are needed now.
const LINES_AT_ONCE: usize = 6;

/// Prefetch distance of a tile of one panel in its stream of weights, in steps.
const STREAM_STEPS: usize = 128;
/// Prefetch distance if a cache line takes few instructions: then the hardware prefetcher keeps up, and prefetching
/// `STREAM_STEPS` ahead (two pages) slowed products with one row by a sixth in bf16 and by a fifth in int8.
const SHORT_STREAM_STEPS: usize = 32;
/// Maximum number of int8 rows at which a cache line of weights takes few enough instructions.
const MAX_INT8_ROWS: usize = 3;

/// Whether the hardware prefetcher keeps up with products of int8 weights with `rows` rows by `vpdpbusd`.
#[inline(always)]
pub const fn is_int8_prefetched<S: Lanes>(rows: usize) -> bool {
    S::BYTE_QUADS && S::REGISTERS_PER_VECTOR == 1 && rows <= MAX_INT8_ROWS
}

/// Weights to prefetch while a tile is multiplied. Without prefetching, a tile of few rows would wait for memory.
#[derive(Clone, Copy)]
pub enum Ahead {
    Nothing,
    /// The memory after a tile of one panel: the next tile's weights.
    Stream,
    /// This number of words from a pointer on, spread over a tile.
    Words(*const u32, usize),
}

impl Ahead {
    /// Spreads the prefetches evenly over a tile of `steps` steps.
    #[inline(always)]
    pub fn over(self, steps: usize) -> Prefetcher {
        let (next, words) = match self {
            Self::Words(start, words) => (start, words),
            Self::Nothing | Self::Stream => (std::ptr::null(), 0),
        };
        let lines = words.div_ceil(LINE_WORDS);
        let (every, at_once) = match lines {
            0 => (steps.max(1), 0),
            _ => {
                let every = (steps * LINES_AT_ONCE + lines / 2) / lines;
                let every = every.clamp(1, steps.max(1));
                (every, (lines * every).div_ceil(steps.max(1)))
            }
        };
        Prefetcher {
            next,
            lines_left: lines,
            every,
            at_once,
            is_stream: matches!(self, Self::Stream),
            stream_steps: STREAM_STEPS,
        }
    }
}

pub struct Prefetcher {
    next: *const u32,
    lines_left: usize,
    pub every: usize,
    at_once: usize,
    is_stream: bool,
    stream_steps: usize,
}

impl Prefetcher {
    /// Shortens the prefetch distance of a stream if the hardware prefetcher keeps up.
    #[inline(always)]
    pub fn shorten(self, is_prefetched: bool) -> Self {
        let stream_steps = if is_prefetched {
            SHORT_STREAM_STEPS
        } else {
            self.stream_steps
        };
        Self {
            stream_steps,
            ..self
        }
    }

    #[inline(always)]
    pub fn fetch<S: Lanes>(&mut self) {
        let lines = self.at_once.min(self.lines_left);
        self.lines_left -= lines;
        for _ in 0..lines {
            // SAFETY: only a hint; the tile's caller detected the instruction set.
            unsafe { S::prefetch(self.next) };
            self.next = self.next.wrapping_add(LINE_WORDS);
        }
    }

    /// Prefetches one share of a later block of `lines` cache lines: an eighth if `lines` exceeds 32, else a half.
    #[inline(always)]
    pub fn follow_lines<S: Lanes>(&self, block: *const u32, part: usize, lines: usize) {
        if self.is_stream {
            let each = lines.div_ceil(if lines > 32 { 8 } else { 2 });
            let first = block.wrapping_add((self.stream_steps + part * each) * LINE_WORDS);
            for line in 0..each {
                // SAFETY: only a hint; the tile's caller detected the instruction set.
                unsafe { S::prefetch(first.wrapping_add(line * LINE_WORDS)) };
            }
        }
    }

    #[inline(always)]
    pub fn follow<S: Lanes>(&self, panel: *const u32, step: usize, step_words: usize) {
        if self.is_stream {
            let later = panel.wrapping_add((step + self.stream_steps) * step_words);
            // SAFETY: only a hint; the tile's caller detected the instruction set.
            unsafe { S::prefetch(later) };
        }
    }
}
