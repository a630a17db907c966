//! Metrics of the threads that the watchdog watches.

use metrics::{Gauge, gauge};

pub struct BeatMetrics {
    ages: Vec<Gauge>,
}

impl BeatMetrics {
    pub fn register<T: AsRef<str>>(model_name: &str, threads: &[T]) -> Self {
        let bind = |thread: &str| {
            let (model_name, thread) = (model_name.to_owned(), thread.to_owned());
            gauge!("souffleur_beat_age_seconds", "model_name" => model_name, "thread" => thread)
        };
        Self {
            ages: threads.iter().map(|thread| bind(thread.as_ref())).collect(),
        }
    }

    /// Takes the age of each thread, in the order of the names.
    pub fn record(&self, ages_s: impl Iterator<Item = f64>) {
        for (gauge, age_s) in self.ages.iter().zip(ages_s) {
            gauge.set(age_s);
        }
    }
}
