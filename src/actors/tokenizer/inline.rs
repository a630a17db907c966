//! The limit on text that the Tokenizer encodes inline, on the thread that also serves every stream.
//!
//! Passing a prompt to another thread costs about ten microseconds, as much as encoding a few words. So short calls are
//! encoded inline, within a budget that bounds the time for any number of calls.

use std::time::Instant;

/// Longest text of a call that is encoded on the Tokenizer's thread: about a millisecond.
const MAX_CALL_BYTES: usize = 1 << 10;
/// Bytes of text that may be encoded on that thread in one burst.
const MAX_BYTES: f64 = 2048.0;
/// Bytes of text that may be encoded on that thread per second: less than a tenth of its time.
const BYTES_PER_SECOND: f64 = (64 << 10) as f64;

pub(super) struct InlineBudget {
    left_bytes: f64,
    updated: Instant,
}

impl InlineBudget {
    pub(super) fn new() -> Self {
        Self {
            left_bytes: MAX_BYTES,
            updated: Instant::now(),
        }
    }

    /// Returns whether a call's text is encoded on the Tokenizer's thread, and counts it if so.
    pub(super) fn take(&mut self, call_bytes: usize) -> bool {
        if call_bytes > MAX_CALL_BYTES {
            return false;
        }
        let now = Instant::now();
        let earned = (now - self.updated).as_secs_f64() * BYTES_PER_SECOND;
        self.left_bytes = (self.left_bytes + earned).min(MAX_BYTES);
        self.updated = now;
        let is_enough = call_bytes as f64 <= self.left_bytes;
        if is_enough {
            self.left_bytes -= call_bytes as f64;
        }
        is_enough
    }
}
