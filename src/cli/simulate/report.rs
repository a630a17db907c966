//! The report of a simulation, as tables and as JSON.

use serde_json::{Value, json};

use souffleur::config::EngineConfig;
use souffleur::simulate::outcome::{Outcome, RequestFate};
use souffleur::simulate::replay::Replays;
use souffleur::simulate::store::StoreOutcome;
use souffleur::simulate::trace::Trace;
use souffleur::state::pool::pages::PageSize;

use super::super::output::say;
use super::super::output::table;
use super::super::statistics::Summary;
use super::replicas;
use super::size::gib;

pub struct Run {
    pub outcome: Outcome,
    pub wall_s: f64,
}

pub struct CurvePoint {
    /// The size of each replica's cache; `None` for an unbounded one.
    pub kv_tokens: Option<usize>,
    pub replays: Replays,
}

pub fn describe(name: &str, trace: &Trace) -> String {
    let left_out = match trace.empty_prompts {
        0 => String::new(),
        n => format!(" ({n} requests without a prompt were skipped)"),
    };
    format!(
        "{name}: {} requests, {} prompt and {} output tokens in {:.0} s{left_out}",
        trace.requests.len(),
        trace.prompt_tokens(),
        trace.output_tokens(),
        trace.span_s()
    )
}

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

pub fn print_curve(
    title: &str,
    (page_size, unique_tokens): (PageSize, usize),
    curve: &[CurvePoint],
) {
    say(format_args!("{title}\n"));
    let has_replicas = curve.iter().any(CurvePoint::has_replicas);
    let mut header = vec![
        "KV tokens",
        "pages",
        "of unique tokens",
        "hit rate",
        "evicted nodes",
        "prompts too long",
    ];
    if has_replicas {
        header[0] = "KV tokens of each replica";
        header.push("greatest load, of the mean");
    }
    let rows = curve
        .iter()
        .map(|point| point.row(page_size, unique_tokens));
    table::print(&header, &rows.collect::<Vec<_>>());
}

impl CurvePoint {
    fn has_replicas(&self) -> bool {
        self.replays.replicas.len() > 1
    }

    fn row(&self, page_size: PageSize, unique_tokens: usize) -> Vec<String> {
        let replayed = &self.replays.all;
        let pages = |tokens| page_size.full_pages(tokens).to_string();
        let share = |tokens: usize| {
            let all_tokens = tokens * self.replays.replicas.len();
            let percent = all_tokens as f64 * 100.0 / unique_tokens.max(1) as f64;
            format!("{percent:.1} %")
        };
        let mut row = vec![
            self.kv_tokens
                .map_or("unbounded".to_owned(), |tokens| tokens.to_string()),
            self.kv_tokens.map_or(String::new(), pages),
            self.kv_tokens.map_or(String::new(), share),
            format!("{:.5}", replayed.hit_rate()),
            replayed.evicted_nodes.to_string(),
            replayed.too_long.to_string(),
        ];
        if self.has_replicas() {
            row.push(format!("{:.3}", self.replays.greatest_load()));
        }
        row
    }

    pub fn json(&self, page_size: PageSize) -> Value {
        let replayed = &self.replays.all;
        let mut point = json!({
            "kv_tokens": self.kv_tokens,
            "pages": self.kv_tokens.map(|tokens| page_size.full_pages(tokens)),
            "hit_rate": replayed.hit_rate(),
            "counts": replayed,
        });
        if self.has_replicas() {
            point["replicas"] = json!(self.replays.replicas);
            point["greatest_load"] = json!(self.replays.greatest_load());
        }
        point
    }
}

pub fn print_runs(title: &str, config: &EngineConfig, runs: &[Run]) {
    say(format_args!(
        "{title}; {} order, {} eviction, pages of {}, chunks of {}\n",
        config.schedule_policy,
        config.radix_eviction_policy,
        config.page_size,
        config.chunked_prefill_size
    ));
    let has_store = runs.iter().any(|run| run.outcome.store.is_some());
    let columns: Vec<Vec<NamedValue>> = runs.iter().map(|run| rows(run, has_store)).collect();
    let Some(first) = columns.first() else {
        return;
    };
    let header: Vec<String> = runs.iter().map(|run| name(&run.outcome)).collect();
    let header: Vec<&str> = std::iter::once("")
        .chain(header.iter().map(String::as_str))
        .collect();
    let line = |(index, (name, _)): (usize, &NamedValue)| {
        let cells = columns.iter().map(|column| column[index].1.clone());
        std::iter::once(name.clone()).chain(cells).collect()
    };
    table::print(
        &header,
        &first.iter().enumerate().map(line).collect::<Vec<_>>(),
    );
    let outcomes = runs.iter().map(|run| &run.outcome);
    for outcome in outcomes.filter(|outcome| outcome.units.len() > 1) {
        replicas::print(&name(outcome), outcome);
    }
}

type NamedValue = (String, String);

fn name(outcome: &Outcome) -> String {
    let pool = match outcome.units.len() {
        0 | 1 => format!("{} KV tokens", outcome.kv_tokens),
        n => format!("{n} x {} KV tokens", outcome.kv_tokens / n),
    };
    match &outcome.store {
        Some(store) => format!("{pool}, {} GiB disk", shown_gib(store.disk_bytes)),
        None => pool,
    }
}

/// A size in GiB, with as few digits as necessary.
fn shown_gib(bytes: u64) -> String {
    let shown = format!("{:.3}", gib(bytes));
    shown.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn rows(run: &Run, has_store: bool) -> Vec<NamedValue> {
    let outcome = &run.outcome;
    let mut rows = request_rows(outcome);
    if has_store {
        rows.splice(1..1, hit_rows(outcome));
    }
    rows.extend(latency_rows("TTFT", &outcome.ttft_s(), SECONDS));
    rows.extend(latency_rows("TPOT", &outcome.tpot_s(), MILLISECONDS));
    let gaps = outcome.longest_gap_s();
    rows.extend(latency_rows(
        "longest gap between tokens",
        &gaps,
        MILLISECONDS,
    ));
    rows.extend(latency_rows("E2E", &outcome.e2e_s(), SECONDS));
    rows.extend(engine_rows(outcome));
    if has_store {
        rows.extend(store_rows(outcome));
    }
    rows.push((
        "simulation time, s".to_owned(),
        format!("{:.2}", run.wall_s),
    ));
    rows
}

fn named<const N: usize>(rows: [(&str, String); N]) -> Vec<NamedValue> {
    rows.map(|(name, value)| (name.to_owned(), value)).into()
}

fn request_rows(outcome: &Outcome) -> Vec<NamedValue> {
    let ended = |end| outcome.ended(end).count().to_string();
    named([
        ("hit rate", format!("{:.4}", outcome.hit_rate())),
        ("requests finished", ended(RequestFate::Finished)),
        ("  too long", ended(RequestFate::TooLong)),
        ("  failed", ended(RequestFate::Failed)),
        ("  waited for admission", outcome.waited_outside.to_string()),
    ])
}

/// The hit rates by where the tokens were cached.
fn hit_rows(outcome: &Outcome) -> Vec<NamedValue> {
    named([
        ("  in memory", format!("{:.4}", outcome.memory_hit_rate())),
        ("  on disk", format!("{:.4}", outcome.disk_hit_rate())),
    ])
}

/// A unit of latencies: name, units per second, and digits shown.
type Unit = (&'static str, f64, usize);
const SECONDS: Unit = ("s", 1.0, 3);
const MILLISECONDS: Unit = ("ms", 1e3, 1);

fn latency_rows(name: &str, samples_s: &[f64], (unit, per_s, digits): Unit) -> Vec<NamedValue> {
    let summary = Summary::of(samples_s);
    let row = |what: &str, value: Option<f64>| {
        let shown = value.map_or("-".to_owned(), |s| format!("{:.digits$}", s * per_s));
        (format!("{name} {what}, {unit}"), shown)
    };
    vec![
        row("mean", summary.map(|summary| summary.mean)),
        row("p50", summary.map(|summary| summary.p50)),
        row("p90", summary.map(|summary| summary.p90)),
        row("p99", summary.map(|summary| summary.p99)),
    ]
}

fn engine_rows(outcome: &Outcome) -> Vec<NamedValue> {
    let stats = &outcome.stats;
    let makespan_s = outcome.makespan_s.max(1e-9);
    let rate = |tokens: u64| format!("{:.1}", tokens as f64 / makespan_s);
    let computed = stats.prompt_tokens - stats.cached_tokens;
    let mean_busy_s = outcome.busy_s / outcome.units.len().max(1) as f64;
    let busy = format!("{:.1} %", 100.0 * mean_busy_s / makespan_s);
    named([
        ("output tokens/s", rate(output_tokens(outcome))),
        ("prompt tokens/s", rate(stats.prompt_tokens)),
        ("  of them computed", rate(computed)),
        ("makespan, s", format!("{:.1}", outcome.makespan_s)),
        ("  busy", busy),
        ("prefill steps", outcome.prefill_steps.to_string()),
        ("decode steps", outcome.decode_steps.to_string()),
        ("largest batch", outcome.largest_batch.to_string()),
        ("retractions", stats.retractions.to_string()),
        ("evicted tokens", stats.evicted_tokens.to_string()),
        ("evicted nodes", outcome.evicted_nodes.to_string()),
    ])
}

fn store_rows(outcome: &Outcome) -> Vec<NamedValue> {
    let store = outcome.store.as_ref();
    let cell = |of: &dyn Fn(&StoreOutcome) -> String| store.map_or_else(|| "-".to_owned(), of);
    let share = |seconds: f64| format!("{:.1} %", 100.0 * seconds / outcome.makespan_s.max(1e-9));
    let stats = &outcome.stats;
    let in_memory = stats.cached_tokens - outcome.loaded_tokens();
    let computed = stats.prompt_tokens - stats.cached_tokens;
    named([
        ("prompt tokens in memory", in_memory.to_string()),
        ("prompt tokens on disk", outcome.loaded_tokens().to_string()),
        ("prompt tokens computed", computed.to_string()),
        (
            "disk used, GiB",
            cell(&|store| format!("{:.2}", gib(store.held_bytes))),
        ),
        (
            "disk reads, share of the makespan",
            cell(&|store| share(store.read_s)),
        ),
        (
            "disk writes, share of the makespan",
            cell(&|store| share(store.write_s)),
        ),
        ("blocks written", cell(&|store| store.written.to_string())),
        ("blocks read", cell(&|store| store.read.to_string())),
        ("blocks evicted", cell(&|store| store.evicted.to_string())),
        (
            "loads skipped, slower than computing",
            cell(&|store| store.too_slow.to_string()),
        ),
        (
            "fetches that loaded no block",
            cell(&|store| store.late.to_string()),
        ),
        ("copy steps", outcome.copy_steps.to_string()),
    ])
}

fn output_tokens(outcome: &Outcome) -> u64 {
    let tokens = outcome.requests.iter().map(|request| request.output_tokens);
    tokens.map(u64::from).sum()
}

impl Run {
    pub fn json(&self) -> Value {
        let outcome = &self.outcome;
        let outputs = output_tokens(outcome);
        let mut run = json!({
            "kv_tokens": outcome.kv_tokens,
            "hit_rate": outcome.hit_rate(),
            "memory_hit_rate": outcome.memory_hit_rate(),
            "disk_hit_rate": outcome.disk_hit_rate(),
            "finished": outcome.ended(RequestFate::Finished).count(),
            "too_long": outcome.ended(RequestFate::TooLong).count(),
            "failed": outcome.ended(RequestFate::Failed).count(),
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
            "copy_steps": outcome.copy_steps,
            "store": outcome.store,
            "decode_steps": outcome.decode_steps,
            "largest_batch": outcome.largest_batch,
            "evicted_nodes": outcome.evicted_nodes,
            "stats": outcome.stats,
            "simulated_in_s": self.wall_s,
            "timeline": outcome.timeline.moments(),
            "requests": outcome.requests,
        });
        if outcome.units.len() > 1 {
            run["replicas"] = replicas::json(outcome);
        }
        run
    }
}
