//! The clock of the process, on which actors and the server place their times.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

static START: OnceLock<Instant> = OnceLock::new();

/// The time from the first call of this function, at the start of the process, to `at`; zero for earlier times.
pub fn process_time(at: Instant) -> Duration {
    at.saturating_duration_since(*START.get_or_init(Instant::now))
}
