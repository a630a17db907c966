//! Decides whether to load blocks from a tier: loading must take less than nine tenths of the time of computing.

/// Largest time of loading, as a share of the time of computing.
const FACTOR: f64 = 0.9;
/// Weight of a new measurement in an average.
const WEIGHT: f64 = 0.125;
/// Rate before the first measurement, in bytes a second.
const FIRST_RATE: f64 = 1e9;
/// Wait before the first measurement, in seconds.
const FIRST_WAIT: f64 = 1e-3;
/// One in this many refused loads is done anyway: without new measurements, a low rate would never be corrected.
const PROBE_EVERY: u32 = 64;
/// Weight of the last step in the average rate of prefills.
const PREFILL_WEIGHT: f64 = 0.25;
/// The rate of steps that prefill fewer tokens says little about long prompts.
const MIN_RATED_TOKENS: usize = 64;

/// Averages of the wait and the rate of a tier's reads. The caller measures them.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    wait_s: f64,
    bytes_per_s: f64,
    n_measured: u64,
    n_refused: u32,
}

impl Default for CostModel {
    fn default() -> Self {
        Self {
            wait_s: FIRST_WAIT,
            bytes_per_s: FIRST_RATE,
            n_measured: 0,
            n_refused: 0,
        }
    }
}

impl CostModel {
    /// A model with a tier's known wait, in seconds, and rate, in bytes per second.
    pub fn new(wait_s: f64, bytes_per_s: f64) -> Self {
        Self {
            wait_s: wait_s.max(0.0),
            bytes_per_s: bytes_per_s.max(1.0),
            ..Self::default()
        }
    }

    /// Records the time between a fetch's request and its start.
    pub fn note_wait(&mut self, seconds: f64) {
        self.wait_s += WEIGHT * (seconds.max(0.0) - self.wait_s);
    }

    pub fn note_read(&mut self, bytes: u64, seconds: f64) {
        if bytes == 0 {
            return;
        }
        let rate = bytes as f64 / seconds.max(1e-9);
        self.n_measured += 1;
        match self.n_measured {
            1 => self.bytes_per_s = rate,
            _ => self.bytes_per_s += WEIGHT * (rate - self.bytes_per_s),
        }
    }

    /// Average rate of reads, in bytes per second; `None` before the first read.
    pub fn bytes_per_s(&self) -> Option<f64> {
        (self.n_measured > 0).then_some(self.bytes_per_s)
    }

    pub fn load_s(&self, bytes: u64) -> f64 {
        self.wait_s + bytes as f64 / self.bytes_per_s.max(1.0)
    }

    /// True if loading `tokens` (`bytes`) takes less than `FACTOR` of the time of computing them at `tokens_per_s`, or
    /// if that rate is unknown. Also true for one in `PROBE_EVERY` other loads.
    pub fn pays(&mut self, tokens: usize, bytes: u64, tokens_per_s: Option<f64>) -> bool {
        let Some(rate) = tokens_per_s.filter(|rate| *rate > 0.0) else {
            return true;
        };
        if self.load_s(bytes) < FACTOR * tokens as f64 / rate {
            return true;
        }
        self.n_refused = (self.n_refused + 1) % PROBE_EVERY;
        self.n_refused == 0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrefillRate {
    tokens_per_s: Option<f64>,
}

impl PrefillRate {
    /// Records the time of a step that only prefilled `tokens`.
    pub fn note(&mut self, tokens: usize, seconds: f64) {
        if tokens >= MIN_RATED_TOKENS && seconds > 0.0 {
            let rate = tokens as f64 / seconds;
            let before = self.tokens_per_s.unwrap_or(rate);
            self.tokens_per_s = Some(before + (rate - before) * PREFILL_WEIGHT);
        }
    }

    /// In tokens per second; `None` before the first rated step.
    pub fn tokens_per_s(&self) -> Option<f64> {
        self.tokens_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_disk_beats_two_cores_and_loses_to_a_gpu() {
        // 128 blocks of 7 MiB: 8,192 tokens of Qwen3-0.6B in bf16. Two cores prefill 219 tokens/s, a GPU 43,000.
        let (tokens, bytes) = (8192, 128 * 7 * MIB);
        let mut disk = CostModel::new(1e-3, 1e9);
        assert!(disk.pays(tokens, bytes, Some(219.0)));
        assert!(!disk.pays(tokens, bytes, Some(43_000.0)));
        assert!(
            disk.pays(tokens, bytes, None),
            "the rate of computing is unknown"
        );
        assert!(disk.pays(tokens, bytes, Some(0.0)));
        let mut slow = CostModel::new(1e-3, 20e6);
        assert!(!slow.pays(tokens, bytes, Some(219.0)));
    }

    #[test]
    fn averages_follow_the_measurements() {
        let mut cost = CostModel::default();
        assert_eq!(cost.bytes_per_s(), None);
        cost.note_read(100 * MIB, 1.0);
        assert_eq!(cost.bytes_per_s(), Some((100 * MIB) as f64));
        for _ in 0..64 {
            cost.note_read(10 * MIB, 1.0);
            cost.note_wait(0.5);
        }
        let rate = cost.bytes_per_s().expect("reads were recorded");
        assert!((rate - (10 * MIB) as f64).abs() < MIB as f64, "{rate}");
        assert!((cost.load_s(0) - 0.5).abs() < 0.01);
        cost.note_read(0, 1.0);
        assert_eq!(cost.bytes_per_s(), Some(rate));
    }

    #[test]
    fn only_long_prefills_count_in_the_rate() {
        let mut rate = PrefillRate::default();
        rate.note(63, 1.0);
        rate.note(64, 0.0);
        assert_eq!(rate.tokens_per_s(), None);
        rate.note(1000, 1.0);
        rate.note(2000, 1.0);
        assert_eq!(rate.tokens_per_s(), Some(1250.0));
    }

    #[test]
    fn a_slow_tier_is_tried_again_now_and_then() {
        let mut cost = CostModel::new(0.0, 1e6);
        let tries = (0..200).filter(|_| cost.pays(64, 100 * MIB, Some(1e4)));
        assert_eq!(tries.count(), 200 / PROBE_EVERY as usize);
    }
}
