//! The pauses of all pairs as a table, and the goals.

use std::fmt::Write;
use std::time::Duration;

use anyhow::ensure;
use souffleur::actors::status::RestartCounts;

use super::victims::VICTIMS;

/// How much longer the pause after a death may be than after a retraction, in milliseconds: the median and the p99.
const MOST_LONGER_MS: [f64; 2] = [100.0, 500.0];
const MIN_WEIGHTS_BYTES: u64 = 1_000_000_000;

const HEAD: &str = "\
| pause in ms | pairs | death: median | p99 | retraction: median | p99 | difference of medians | of p99s |
|---|---:|---:|---:|---:|---:|---:|---:|
";

/// The pauses of each stream.
pub struct Pair {
    pub victim: &'static str,
    pub death: Vec<Duration>,
    pub retraction: Vec<Duration>,
}

pub struct Report {
    pub pairs: Vec<Pair>,
    /// `None` if it is unknown.
    pub weights_bytes: Option<u64>,
    /// The number of times that the weights were loaded.
    pub loads: usize,
    pub restarts: RestartCounts,
}

/// The pause of one event, of the pauses of its streams.
type OfStreams = fn(&[Duration]) -> f64;

/// Medians and p99s in milliseconds.
struct Figures {
    n: usize,
    death: [f64; 2],
    retraction: [f64; 2],
}

impl Pair {
    pub fn line(&self) -> String {
        let Self {
            victim,
            death,
            retraction,
        } = self;
        format!(
            "death of {victim} {:.0} ms, retraction {:.0} ms",
            slowest_ms(death),
            slowest_ms(retraction)
        )
    }
}

impl Report {
    pub fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        let mut row = |name: &str, figures: &Figures| {
            let Figures {
                n,
                death,
                retraction,
            } = figures;
            let [median, p99] = figures.differences();
            let _ = writeln!(
                text,
                "| {name} | {n} | {:.0} | {:.0} | {:.0} | {:.0} | {median:+.0} | {p99:+.0} |",
                death[0], death[1], retraction[0], retraction[1]
            );
        };
        row("slowest stream", &self.figures(slowest_ms, None));
        row("median stream", &self.figures(median_ms, None));
        for victim in &VICTIMS {
            let figures = self.figures(slowest_ms, Some(victim.actor));
            if figures.n > 0 {
                row(&format!("slowest stream, {}", victim.actor), &figures);
            }
        }
        let weights_gb = self.weights_bytes.unwrap_or(0) as f64 / 1e9;
        let (loads, restarts) = (self.loads, self.restarts.all());
        let _ = write!(
            text,
            "\n{weights_gb:.2} GB of weights, loaded {loads} time(s); {restarts} restarts"
        );
        text
    }

    /// # Errors
    /// If a goal is missed.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.weights_bytes >= Some(MIN_WEIGHTS_BYTES),
            "the model has less than 1 GB of weights"
        );
        ensure!(
            self.loads == 1,
            "the weights were loaded {} times",
            self.loads
        );
        let differences = self.figures(slowest_ms, None).differences();
        for (name, difference, most) in [
            ("median", differences[0], MOST_LONGER_MS[0]),
            ("p99", differences[1], MOST_LONGER_MS[1]),
        ] {
            ensure!(
                difference <= most,
                "the {name} of the pause is {difference:.0} ms longer after a death, the goal is {most} ms"
            );
        }
        Ok(())
    }

    /// The figures of all pairs, or of those with one victim.
    fn figures(&self, of_streams: OfStreams, victim: Option<&str>) -> Figures {
        let is_meant = |pair: &&Pair| victim.is_none_or(|victim| victim == pair.victim);
        let pairs: Vec<&Pair> = self.pairs.iter().filter(is_meant).collect();
        let deaths = pairs.iter().map(|pair| of_streams(&pair.death));
        let retractions = pairs.iter().map(|pair| of_streams(&pair.retraction));
        Figures {
            n: pairs.len(),
            death: median_and_p99(deaths.collect()),
            retraction: median_and_p99(retractions.collect()),
        }
    }
}

impl Figures {
    fn differences(&self) -> [f64; 2] {
        [0, 1].map(|at| self.death[at] - self.retraction[at])
    }
}

fn slowest_ms(pauses: &[Duration]) -> f64 {
    sorted_ms(pauses).last().copied().unwrap_or(0.0)
}

fn median_ms(pauses: &[Duration]) -> f64 {
    quantile(&sorted_ms(pauses), 0.5)
}

fn sorted_ms(pauses: &[Duration]) -> Vec<f64> {
    let pauses = pauses.iter().map(|pause| pause.as_secs_f64() * 1e3);
    let mut pauses: Vec<f64> = pauses.collect();
    pauses.sort_by(f64::total_cmp);
    pauses
}

fn median_and_p99(mut values: Vec<f64>) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    [0.5, 0.99].map(|share| quantile(&values, share))
}

/// The smallest value that is at least as large as this share of the values; 0 without values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}
