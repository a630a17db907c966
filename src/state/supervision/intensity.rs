//! The restart intensity, as in OTP's supervisors: so many restarts in so many seconds, then the next level.

use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Intensity {
    /// Allowed restarts in any period; one more is too many.
    pub limit: usize,
    pub period_s: f64,
}

/// The restarts of the last period.
#[derive(Clone, Debug, Default)]
pub struct Restarts {
    times_s: VecDeque<f64>,
}

impl Restarts {
    /// Counts a restart; false if it is one too many. A restart exactly one period ago still counts.
    pub fn note(&mut self, allowed: Intensity, now_s: f64) -> bool {
        self.times_s.push_back(now_s);
        let is_old = |time_s: &mut f64| now_s - *time_s > allowed.period_s;
        while self.times_s.pop_front_if(is_old).is_some() {}
        self.times_s.len() <= allowed.limit
    }

    /// Restarts that may follow at the time of the last one.
    pub fn left(&self, allowed: Intensity) -> usize {
        allowed.limit.saturating_sub(self.times_s.len())
    }
}
