//! The results of a bench of a server (throughput, latencies, failures), as a JSON record and as tables.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::args::{Dataset, OnlineArgs};
use super::client::{Answer, Server};
use crate::cli::failure::Failure;
use crate::cli::output::{record, say, table};
use crate::cli::statistics::Summary;

/// The number of failure reasons shown, the most frequent first.
const SHOWN_REASONS: usize = 8;

#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Time from the first arrival to this one.
    pub at: Duration,
    pub answer: Result<Answer, String>,
}

#[derive(Serialize)]
pub struct OnlineRecord {
    schema: &'static str,
    version: &'static str,
    date: String,
    base_url: String,
    model: String,
    dataset_name: Dataset,
    random_input_len: Option<u32>,
    random_output_len: u32,
    shared_prefix_len: Option<u32>,
    text_prompts: bool,
    ignore_eos: bool,
    is_structured: bool,
    vocab_size: Option<u32>,
    num_prompts: u32,
    max_concurrency: Option<u32>,
    /// Requests per second; `None` if all requests were sent at once.
    request_rate: Option<f64>,
    seed: u64,
    #[serde(flatten)]
    measured: Statistics,
}

/// Statistics of the outcomes. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Statistics {
    duration_s: f64,
    completed: usize,
    failed: usize,
    failures: BTreeMap<String, usize>,
    total_input_tokens: u64,
    total_output_tokens: u64,
    request_throughput: f64,
    input_throughput: f64,
    output_throughput: f64,
    ttft_s: Option<Summary>,
    itl_s: Option<Summary>,
    /// The mean time per token after the first, of each request.
    tpot_s: Option<Summary>,
    e2e_s: Option<Summary>,
    requests: Vec<Timed>,
}

/// The times and token counts of one request.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Timed {
    at_s: f64,
    input_tokens: u32,
    output_tokens: u32,
    ttft_s: Option<f64>,
    e2e_s: Option<f64>,
    itl_s: Vec<f64>,
    error: Option<String>,
}

impl OnlineRecord {
    /// Computes the record from the outcomes of a load that took the time `took`.
    pub fn new(
        args: &OnlineArgs,
        server: &Server,
        (seed, vocab_size): (u64, u32),
        outcomes: Vec<(u32, Outcome)>,
        took: Duration,
    ) -> Self {
        let is_shared = args.dataset_name == Dataset::SharedPrefix;
        Self {
            schema: "souffleur-bench-online/1",
            version: env!("CARGO_PKG_VERSION"),
            date: record::date(),
            base_url: server.url().to_owned(),
            model: server.model.clone(),
            dataset_name: args.dataset_name,
            random_input_len: args.random_input_len,
            random_output_len: args.random_output_len,
            shared_prefix_len: is_shared.then_some(args.shared_prefix_len),
            text_prompts: args.text_prompts,
            ignore_eos: args.ignore_eos,
            is_structured: args.json_schema.is_some(),
            vocab_size: (!args.text_prompts).then_some(vocab_size),
            num_prompts: args.num_prompts,
            max_concurrency: args.max_concurrency,
            request_rate: Some(args.request_rate).filter(|rate| rate.is_finite()),
            seed,
            measured: Statistics::new(&outcomes, took),
        }
    }

    /// Prints the tables, writes the record, or both, depending on `json`. Fails if all requests failed.
    pub fn publish(&self, json: Option<&Path>) -> Result<(), Failure> {
        record::publish(self, json, || self.print())?;
        let Statistics {
            completed,
            failed,
            failures,
            ..
        } = &self.measured;
        match (completed, failures.keys().next()) {
            (0, Some(reason)) => Err(Failure::failed(format_args!(
                "all {failed} requests failed: {reason}"
            ))),
            _ => Ok(()),
        }
    }

    fn print(&self) {
        say(format_args!(
            "{} at {}, {}\n",
            self.model, self.base_url, self.date
        ));
        table::print(&["load", ""], &self.measured.totals());
        say("");
        let header = ["latency, ms", "mean", "p50", "p90", "p99"];
        table::print(&header, &self.measured.latencies());
        let mut failures: Vec<_> = self.measured.failures.iter().collect();
        failures.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
        for (reason, times) in failures.iter().take(SHOWN_REASONS) {
            say(format_args!("\nfailed {times} times: {reason}"));
        }
        if let Some(more) = failures.len().checked_sub(SHOWN_REASONS + 1) {
            say(format_args!(
                "\nrequests also failed for {} more reasons: --json lists all",
                more + 1
            ));
        }
    }
}

impl Statistics {
    fn new(outcomes: &[(u32, Outcome)], took: Duration) -> Self {
        let requests: Vec<Timed> = outcomes
            .iter()
            .map(|(input_tokens, outcome)| Timed::new(*input_tokens, outcome))
            .collect();
        let mut failures = BTreeMap::new();
        for reason in requests.iter().filter_map(|request| request.error.clone()) {
            *failures.entry(reason).or_insert(0) += 1;
        }
        let answered = || requests.iter().filter(|request| request.error.is_none());
        let completed = answered().count();
        let duration_s = took.as_secs_f64().max(1e-9);
        let total = |of: fn(&Timed) -> u32| answered().map(|request| u64::from(of(request))).sum();
        let summary = |of: fn(&Timed) -> Option<f64>| {
            Summary::of(&answered().filter_map(of).collect::<Vec<_>>())
        };
        let gaps: Vec<f64> = answered()
            .flat_map(|request| request.itl_s.iter().copied())
            .collect();
        let total_input_tokens = total(|request| request.input_tokens);
        let total_output_tokens = total(|request| request.output_tokens);
        Self {
            duration_s,
            completed,
            failed: requests.len() - completed,
            failures,
            total_input_tokens,
            total_output_tokens,
            request_throughput: completed as f64 / duration_s,
            input_throughput: total_input_tokens as f64 / duration_s,
            output_throughput: total_output_tokens as f64 / duration_s,
            ttft_s: summary(|request| request.ttft_s),
            itl_s: Summary::of(&gaps),
            tpot_s: summary(Timed::tpot_s),
            e2e_s: summary(|request| request.e2e_s),
            requests,
        }
    }

    fn totals(&self) -> Vec<Vec<String>> {
        let row = |name: &str, value: String| vec![name.to_owned(), value];
        vec![
            row("completed requests", self.completed.to_string()),
            row("failed requests", self.failed.to_string()),
            row("duration, s", format!("{:.3}", self.duration_s)),
            row("input tokens", self.total_input_tokens.to_string()),
            row("output tokens", self.total_output_tokens.to_string()),
            row("requests/s", format!("{:.2}", self.request_throughput)),
            row("input tokens/s", format!("{:.1}", self.input_throughput)),
            row("output tokens/s", format!("{:.1}", self.output_throughput)),
        ]
    }

    fn latencies(&self) -> Vec<Vec<String>> {
        let row = |name: &str, summary: Option<Summary>| {
            let ms = |seconds: f64| format!("{:.2}", seconds * 1e3);
            let cells = summary.map(
                |Summary {
                     mean,
                     p50,
                     p90,
                     p99,
                 }| [mean, p50, p90, p99].map(ms),
            );
            let cells = cells.unwrap_or_else(|| std::array::from_fn(|_| "-".to_owned()));
            std::iter::once(name.to_owned()).chain(cells).collect()
        };
        vec![
            row("TTFT, time to first token", self.ttft_s),
            row("ITL, between chunks", self.itl_s),
            row("TPOT, per token after the first", self.tpot_s),
            row("E2E, to the last token", self.e2e_s),
        ]
    }
}

impl Timed {
    /// `sent_tokens` is the prompt's length if the server does not report it.
    fn new(sent_tokens: u32, outcome: &Outcome) -> Self {
        let at_s = outcome.at.as_secs_f64();
        let answer = match &outcome.answer {
            Ok(answer) => answer,
            Err(reason) => {
                return Self {
                    at_s,
                    input_tokens: sent_tokens,
                    output_tokens: 0,
                    ttft_s: None,
                    e2e_s: None,
                    itl_s: Vec::new(),
                    error: Some(reason.clone()),
                };
            }
        };
        let chunks: Vec<f64> = answer.chunks.iter().map(Duration::as_secs_f64).collect();
        let counted = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
        Self {
            at_s,
            input_tokens: answer.input_tokens.unwrap_or(sent_tokens),
            output_tokens: answer.output_tokens.unwrap_or(counted),
            ttft_s: chunks.first().copied(),
            e2e_s: chunks.last().copied(),
            itl_s: chunks.windows(2).map(|pair| pair[1] - pair[0]).collect(),
            error: None,
        }
    }

    fn tpot_s(&self) -> Option<f64> {
        let rest = self.output_tokens.checked_sub(1).filter(|rest| *rest > 0)?;
        Some((self.e2e_s? - self.ttft_s?) / f64::from(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(chunks_ms: &[u64], output_tokens: Option<u32>) -> Outcome {
        let chunks = chunks_ms.iter().map(|ms| Duration::from_millis(*ms));
        Outcome {
            at: Duration::from_secs(1),
            answer: Ok(Answer {
                chunks: chunks.collect(),
                input_tokens: Some(10),
                output_tokens,
            }),
        }
    }

    fn failure(reason: &str) -> Outcome {
        Outcome {
            at: Duration::ZERO,
            answer: Err(reason.to_owned()),
        }
    }

    #[test]
    fn latencies_and_throughput_are_computed_from_the_answers() {
        let outcomes = [
            (8, answer(&[500, 750, 1000], Some(5))),
            (8, answer(&[250], None)),
        ];
        let measured = Statistics::new(&outcomes, Duration::from_secs(2));
        assert_eq!((measured.completed, measured.failed), (2, 0));
        assert_eq!(measured.total_input_tokens, 20);
        assert_eq!(measured.total_output_tokens, 5 + 1);
        assert_eq!(measured.request_throughput, 1.0);
        assert_eq!(measured.output_throughput, 3.0);
        let mean = |summary: Option<Summary>| summary.map(|summary| summary.mean);
        assert_eq!(mean(measured.ttft_s), Some(0.375));
        assert_eq!(mean(measured.itl_s), Some(0.25));
        assert_eq!(mean(measured.tpot_s), Some(0.5 / 4.0));
        assert_eq!(mean(measured.e2e_s), Some(0.625));
    }

    #[test]
    fn failures_are_counted_by_reason_and_do_not_affect_latencies() {
        let outcomes = [
            (8, failure("503: full")),
            (8, answer(&[500], Some(1))),
            (8, failure("503: full")),
            (8, failure("reset")),
        ];
        let measured = Statistics::new(&outcomes, Duration::from_secs(1));
        assert_eq!((measured.completed, measured.failed), (1, 3));
        assert_eq!(measured.failures["503: full"], 2);
        assert_eq!(measured.failures["reset"], 1);
        assert_eq!(measured.ttft_s.map(|ttft| ttft.p99), Some(0.5));
        assert_eq!(measured.tpot_s, None);
        assert_eq!(measured.latencies()[2][1..], ["-"; 4].map(str::to_owned));
        let none = Statistics::new(&[], Duration::ZERO);
        assert_eq!((none.completed, none.ttft_s), (0, None));
    }
}
