//! What a simulation says: tables for people, JSON for programs.

use serde_json::{Value, json};

use souffleur::config::EngineConfig;
use souffleur::simulate::outcome::{Ending, Outcome};
use souffleur::simulate::replay::Replayed;
use souffleur::simulate::trace::Trace;
use souffleur::state::eviction::EvictionPolicy;
use souffleur::state::pages::PageSize;

use super::super::bench::statistics::Summary;
use super::super::bench::table;
use super::super::say;

/// One simulation of the engine.
pub struct Run {
    /// What happened.
    pub outcome: Outcome,
    /// How long it took to simulate, in seconds.
    pub wall_s: f64,
}

/// One capacity of a curve.
pub struct CurvePoint {
    /// `None` for a cache that holds everything.
    pub kv_tokens: Option<usize>,
    /// What was counted.
    pub replayed: Replayed,
}

/// One line about the load.
pub fn describe(name: &str, trace: &Trace) -> String {
    let left_out = match trace.empty_prompts {
        0 => String::new(),
        n => format!(" ({n} without a prompt left out)"),
    };
    format!(
        "{name}: {} requests, {} prompt and {} output tokens in {:.0} s{left_out}",
        trace.requests.len(),
        trace.prompt_tokens(),
        trace.output_tokens(),
        trace.span_s()
    )
}

/// The load, and what was found under it.
pub fn json_of(name: &str, trace: &Trace, mut body: Value) -> Value {
    body["load"] = json!({
        "name": name,
        "requests": trace.requests.len(),
        "prompt_tokens": trace.prompt_tokens(),
        "output_tokens": trace.output_tokens(),
        "span_s": trace.span_s(),
        "empty_prompts": trace.empty_prompts,
    });
    body
}

/// Prints a curve.
pub fn print_curve(page_size: PageSize, eviction: EvictionPolicy, curve: &[CurvePoint]) {
    say(format_args!(
        "prompts one after another, pages of {page_size} tokens, {} eviction\n",
        eviction.name()
    ));
    let all_tokens = curve
        .last()
        .map_or(1, |unbounded| unbounded.replayed.cached_tokens)
        .max(1);
    let rows = curve.iter().map(
        |CurvePoint {
             kv_tokens,
             replayed,
         }| {
            let pages = |tokens| page_size.full_pages(tokens).to_string();
            let share =
                |tokens: usize| format!("{:.1} %", tokens as f64 * 100.0 / all_tokens as f64);
            vec![
                kv_tokens.map_or("unbounded".to_owned(), |tokens| tokens.to_string()),
                kv_tokens.map_or(String::new(), pages),
                kv_tokens.map_or(String::new(), share),
                format!("{:.5}", replayed.hit_rate()),
                replayed.evicted_nodes.to_string(),
                replayed.too_long.to_string(),
            ]
        },
    );
    let header = [
        "KV tokens",
        "pages",
        "of the unique",
        "hit rate",
        "evicted nodes",
        "too long",
    ];
    table::print(&header, &rows.collect::<Vec<_>>());
}

impl CurvePoint {
    /// For programs.
    pub fn json(&self, page_size: PageSize) -> Value {
        json!({
            "kv_tokens": self.kv_tokens,
            "pages": self.kv_tokens.map(|tokens| page_size.full_pages(tokens)),
            "hit_rate": self.replayed.hit_rate(),
            "counts": self.replayed,
        })
    }
}

/// Prints simulations side by side.
pub fn print_runs(title: &str, config: &EngineConfig, runs: &[Run]) {
    say(format_args!(
        "{title}; {} order, {} eviction, pages of {}, chunks of {}\n",
        config.schedule_policy,
        config.radix_eviction_policy,
        config.page_size,
        config.chunked_prefill_size
    ));
    let columns: Vec<Vec<(&str, String)>> = runs.iter().map(rows).collect();
    let Some(first) = columns.first() else {
        return;
    };
    let header: Vec<String> = runs
        .iter()
        .map(|run| format!("{} KV tokens", run.outcome.kv_tokens))
        .collect();
    let header: Vec<&str> = std::iter::once("")
        .chain(header.iter().map(String::as_str))
        .collect();
    let line = |(index, (name, _)): (usize, &(&str, String))| {
        let cells = columns.iter().map(|column| column[index].1.clone());
        std::iter::once((*name).to_owned()).chain(cells).collect()
    };
    table::print(
        &header,
        &first.iter().enumerate().map(line).collect::<Vec<_>>(),
    );
}

fn rows(run: &Run) -> Vec<(&'static str, String)> {
    let outcome = &run.outcome;
    let stats = &outcome.stats;
    let rate = |tokens: u64| format!("{:.1}", tokens as f64 / outcome.makespan_s.max(1e-9));
    let outputs = outcome
        .requests
        .iter()
        .map(|request| u64::from(request.output_tokens))
        .sum();
    let mut rows = vec![
        ("hit rate", format!("{:.4}", outcome.hit_rate())),
        (
            "requests finished",
            outcome.ended(Ending::Finished).count().to_string(),
        ),
        (
            "  too long, refused",
            outcome.ended(Ending::TooLong).count().to_string(),
        ),
        (
            "  given up",
            outcome.ended(Ending::Failed).count().to_string(),
        ),
        ("  waited at the door", outcome.waited_outside.to_string()),
    ];
    let latencies = [
        (
            ["TTFT mean, s", "TTFT p50, s", "TTFT p90, s", "TTFT p99, s"],
            outcome.ttft_s(),
            1.0,
            3,
        ),
        (
            [
                "TPOT mean, ms",
                "TPOT p50, ms",
                "TPOT p90, ms",
                "TPOT p99, ms",
            ],
            outcome.tpot_s(),
            1e3,
            1,
        ),
        (
            [
                "longest gap mean, ms",
                "longest gap p50, ms",
                "longest gap p90, ms",
                "longest gap p99, ms",
            ],
            outcome.longest_gap_s(),
            1e3,
            1,
        ),
        (
            ["E2E mean, s", "E2E p50, s", "E2E p90, s", "E2E p99, s"],
            outcome.e2e_s(),
            1.0,
            3,
        ),
    ];
    for (names, samples, scale, digits) in latencies {
        let values = Summary::of(&samples)
            .map(|summary| [summary.mean, summary.p50, summary.p90, summary.p99]);
        for (index, name) in names.into_iter().enumerate() {
            let shown = values.map_or("-".to_owned(), |values| {
                format!("{:.digits$}", values[index] * scale)
            });
            rows.push((name, shown));
        }
    }
    rows.extend([
        ("output tokens/s", rate(outputs)),
        ("prompt tokens/s", rate(stats.prompt_tokens)),
        (
            "  of them computed",
            rate(stats.prompt_tokens - stats.cached_tokens),
        ),
        ("makespan, s", format!("{:.1}", outcome.makespan_s)),
        (
            "  busy",
            format!(
                "{:.1} %",
                100.0 * outcome.busy_s / outcome.makespan_s.max(1e-9)
            ),
        ),
        ("prefill steps", outcome.prefill_steps.to_string()),
        ("decode steps", outcome.decode_steps.to_string()),
        ("largest batch", outcome.largest_batch.to_string()),
        ("retractions", stats.retractions.to_string()),
        ("evicted tokens", stats.evicted_tokens.to_string()),
        ("evicted nodes", outcome.evicted_nodes.to_string()),
        ("simulated in, s", format!("{:.2}", run.wall_s)),
    ]);
    rows
}

impl Run {
    /// For programs.
    pub fn json(&self) -> Value {
        let outcome = &self.outcome;
        let outputs: u64 = outcome
            .requests
            .iter()
            .map(|request| u64::from(request.output_tokens))
            .sum();
        json!({
            "kv_tokens": outcome.kv_tokens,
            "hit_rate": outcome.hit_rate(),
            "finished": outcome.ended(Ending::Finished).count(),
            "too_long": outcome.ended(Ending::TooLong).count(),
            "failed": outcome.ended(Ending::Failed).count(),
            "waited_outside": outcome.waited_outside,
            "ttft_s": Summary::of(&outcome.ttft_s()),
            "tpot_s": Summary::of(&outcome.tpot_s()),
            "longest_gap_s": Summary::of(&outcome.longest_gap_s()),
            "e2e_s": Summary::of(&outcome.e2e_s()),
            "output_tokens": outputs,
            "output_tokens_per_s": outputs as f64 / outcome.makespan_s.max(1e-9),
            "makespan_s": outcome.makespan_s,
            "busy_s": outcome.busy_s,
            "prefill_steps": outcome.prefill_steps,
            "decode_steps": outcome.decode_steps,
            "largest_batch": outcome.largest_batch,
            "evicted_nodes": outcome.evicted_nodes,
            "stats": outcome.stats,
            "simulated_in_s": self.wall_s,
            "timeline": outcome.timeline.moments(),
            "requests": outcome.requests,
        })
    }
}
