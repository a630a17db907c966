//! Measures the process's CPU time per operation, as the median over many batches.

use rustix::time::{ClockId, clock_gettime};

/// The time per operation in each batch.
#[derive(Clone, Debug)]
pub struct Times {
    sorted_us: Vec<f64>,
}

impl Times {
    /// Takes one value per batch.
    pub fn new(mut batches_us: Vec<f64>) -> Self {
        batches_us.sort_by(f64::total_cmp);
        Self {
            sorted_us: batches_us,
        }
    }

    pub fn median_us(&self) -> f64 {
        self.sorted_us[self.sorted_us.len() / 2]
    }

    pub fn least_us(&self) -> f64 {
        self.sorted_us[0]
    }
}

/// Runs `operations`, of which there are `n_operations`, and returns the CPU time of one in microseconds.
pub fn time_us(n_operations: usize, operations: impl FnOnce()) -> f64 {
    let started = cpu_seconds();
    operations();
    (cpu_seconds() - started) * 1e6 / n_operations as f64
}

fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}
