//! Prefetch hints for the weights that a thread multiplies next.

use super::simd::Lanes;

pub const LINE_WORDS: usize = 16;
/// Cache lines of a prefetch burst: bursts of dozens were slower with 2 to 16 rows. A core keeps a limited number of
/// misses in flight, and a burst probably delays the weights that are multiplied.
const LINES_AT_ONCE: usize = 6;

/// Prefetch distance of a tile of one panel in its stream of weights, in steps.
const STREAM_STEPS: usize = 128;
/// The distance where a line takes few instructions: there the hardware prefetcher keeps up, and hints for the page
/// after the next, which it would not read yet, took a sixth of the speed of one row of bf16, and a fifth with bytes.
const FORESEEN_STEPS: usize = 32;
/// Most rows of bytes at which a line of weights takes few enough instructions.
const FORESEEN_ROWS: usize = 3;

/// Whether the hardware prefetcher keeps up with a stream of bytes multiplied with `rows` rows, four bytes an instruction.
#[inline(always)]
pub const fn are_quads_foreseen<S: Lanes>(rows: usize) -> bool {
    S::BYTE_QUADS && S::REGISTERS == 1 && rows <= FORESEEN_ROWS
}

/// Weights to prefetch while others are multiplied: otherwise a tile of few rows waits for memory, then computes.
#[derive(Clone, Copy)]
pub enum Ahead {
    Nothing,
    /// The memory after the single panel: that of the next tile.
    Stream,
    /// This number of words from a pointer on, over a whole tile.
    Words(*const u32, usize),
}

impl Ahead {
    /// Spreads the prefetches evenly over a tile of `steps` steps.
    #[inline(always)]
    pub fn over(self, steps: usize) -> Pace {
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
        Pace {
            next,
            lines_left: lines,
            every,
            at_once,
            is_stream: matches!(self, Self::Stream),
            stream_steps: STREAM_STEPS,
        }
    }
}

pub struct Pace {
    next: *const u32,
    lines_left: usize,
    pub every: usize,
    at_once: usize,
    is_stream: bool,
    stream_steps: usize,
}

impl Pace {
    /// Shortens the prefetch distance of a stream if the hardware prefetcher keeps up.
    #[inline(always)]
    pub fn foreseen(self, is_foreseen: bool) -> Self {
        let stream_steps = if is_foreseen {
            FORESEEN_STEPS
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

    /// Prefetches lines that are needed later, a share of a block of `lines` lines that is read in eight parts or two.
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
