//! The report of each replica, if a simulation has several.

use serde_json::{Value, json};

use souffleur::config::EngineConfig;
use souffleur::simulate::outcome::{Outcome, UnitOutcome};

use super::super::output::say;
use super::super::output::table;

/// The number of replicas and how requests are routed; `None` for one.
pub fn name(config: &EngineConfig) -> Option<String> {
    let (n, method) = (config.dp_size, config.load_balance_method.as_str());
    (n > 1).then(|| format!("{n} replicas ({method})"))
}

/// The title of a run, with the replicas before their devices and model.
pub fn title(config: &EngineConfig, devices: String) -> String {
    match name(config) {
        Some(replicas) => format!("{replicas}, each on {devices}"),
        None => devices,
    }
}

pub fn print(name: &str, outcome: &Outcome) {
    let makespan_s = outcome.makespan_s.max(1e-9);
    let units = outcome.units.iter().zip(outcome.loads());
    let row = |(replica, (unit, load)): (usize, (&UnitOutcome, f64))| {
        vec![
            replica.to_string(),
            unit.requests.to_string(),
            unit.stats.prompt_tokens.to_string(),
            unit.stats.cached_tokens.to_string(),
            unit.output_tokens.to_string(),
            format!("{load:.3}"),
            format!("{:.1} %", 100.0 * unit.busy_s / makespan_s),
        ]
    };
    let header = [
        "replica",
        "requests",
        "prompt tokens",
        "cached",
        "output tokens",
        "load, of the mean",
        "busy",
    ];
    say(format_args!("\n{name}:\n"));
    table::print(&header, &units.enumerate().map(row).collect::<Vec<_>>());
}

pub fn json(outcome: &Outcome) -> Value {
    let units = outcome.units.iter().zip(outcome.loads());
    let replicas = units.map(|(unit, load)| {
        let mut replica = json!(unit);
        replica["load"] = json!(load);
        replica
    });
    replicas.collect()
}
