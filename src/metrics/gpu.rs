//! Metrics of a GPU's busy and idle time.

use metrics::{Gauge, gauge};

/// Recorded as a gauge, see [`with_counter_types`](super::with_counter_types).
const SECONDS: &str = "souffleur_gpu_seconds_total";

/// The busy and idle times of one GPU, by its clock.
pub struct GpuMetrics {
    decode: Gauge,
    prefill: Gauge,
    idle: Gauge,
}

impl GpuMetrics {
    pub fn register(ordinal: usize) -> Self {
        let of =
            |state: &'static str| gauge!(SECONDS, "gpu" => ordinal.to_string(), "state" => state);
        Self {
            decode: of("decode"),
            prefill: of("prefill"),
            idle: of("idle_before_decode"),
        }
    }

    pub fn busy(&self, is_decode: bool, seconds: f64) {
        if is_decode {
            self.decode.increment(seconds)
        } else {
            self.prefill.increment(seconds)
        }
    }

    /// Records that a decode began `seconds` after the end of the previous step.
    pub fn idle(&self, seconds: f64) {
        self.idle.increment(seconds);
    }
}
