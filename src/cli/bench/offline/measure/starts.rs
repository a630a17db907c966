//! Measures start-up time and peak memory, each start in a new process, so that earlier allocations do not count.
//!
//! The process is this program with the same arguments and `--start-once`. It prints a line when it is ready, and
//! another when it has the first token of a short prompt; the parent records the times. Then it answers one more prompt
//! and prints its peak memory.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use actix_web::rt::System;
use serde::{Deserialize, Serialize};
use souffleur::config::EngineConfig;
use souffleur::executor::cpu::CpuDescription;

use super::streams;
use crate::cli::bench::offline::load::longest_prompt;
use crate::cli::bench::offline::machine::MachineRates;
use crate::cli::bench::offline::machine::floors::Sequence;
use crate::cli::bench::offline::report::rows::{Row, Sample, Unit};
use crate::cli::bench::offline::subject::Subject;
use crate::cli::bench::prompts::Prompts;
use crate::cli::failure::Failure;
use crate::cli::local;
use crate::cli::output::say;

const FIRST_PROMPT_TOKENS: u32 = 16;
const OUTPUT_TOKENS: u32 = 8;
const READY: &str = "ready";
const FIRST_TOKEN: &str = "first token";
const STOP_DEADLINE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Start {
    /// Seconds from the start of the process until the engine accepts requests.
    pub ready_s: f64,
    /// Seconds from the start of the process to the first token of a short prompt.
    pub first_token_s: f64,
    /// Peak resident memory; `None` if the system does not report it.
    pub peak_resident_bytes: Option<u64>,
    /// Tokens whose keys and values were computed by the end.
    pub computed_tokens: u64,
}

#[derive(Serialize, Deserialize)]
struct Report {
    peak_resident_bytes: Option<u64>,
    computed_tokens: u64,
}

pub fn measure() -> Result<Start, Failure> {
    let program = std::env::current_exe();
    let program = program.map_err(Failure::to("find the path of this program"))?;
    let began = Instant::now();
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg("--start-once")
        // The parent has downloaded the model, and requests to the hub would distort the start-up time.
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Failure::to("start this program again to time its start"))?;
    let watched = watch(&mut child, began);
    let output = child.wait_with_output();
    let output = output.map_err(Failure::to("read the output of this program's timed start"))?;
    match (watched, output.status.success()) {
        (Some(start), true) => Ok(start),
        _ => {
            let log = String::from_utf8_lossy(&output.stderr);
            let last = log.lines().last().unwrap_or("its stderr is empty");
            let reason = last.trim_start_matches("souffleur: ");
            Err(Failure::failed(format_args!(
                "this program, started again to time its start, failed: {reason}"
            )))
        }
    }
}

/// Times the child's output; `None` if the child exits before it has printed all lines.
fn watch(child: &mut Child, began: Instant) -> Option<Start> {
    let mut lines = BufReader::new(child.stdout.take()?).lines();
    let mut wait_for = |expected: &str| {
        let is_there = lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line == expected);
        is_there.then(|| began.elapsed().as_secs_f64())
    };
    let ready_s = wait_for(READY)?;
    let first_token_s = wait_for(FIRST_TOKEN)?;
    let report: Report = serde_json::from_str(&lines.next()?.ok()?).ok()?;
    Some(Start {
        ready_s,
        first_token_s,
        peak_resident_bytes: report.peak_resident_bytes,
        computed_tokens: report.computed_tokens,
    })
}

pub fn start_once(config: EngineConfig, prompt_tokens: u32, seed: u64) -> Result<(), Failure> {
    let engine = local::start(config, |_| Ok(()))?;
    say(READY);
    let vocab_size = u32::try_from(engine.model().vocab_size).unwrap_or(u32::MAX);
    let mut prompts = Prompts::new(seed, vocab_size);
    System::new().block_on(async {
        let answered = async {
            streams::run(&engine, prompts.ids(FIRST_PROMPT_TOKENS as usize), 1).await?;
            say(FIRST_TOKEN);
            let limit = longest_prompt(engine.model(), OUTPUT_TOKENS);
            let prompt = prompts.ids(prompt_tokens.min(limit) as usize);
            let computed = FIRST_PROMPT_TOKENS as usize + prompt.len() + OUTPUT_TOKENS as usize;
            streams::run(&engine, prompt, OUTPUT_TOKENS).await?;
            let report = Report {
                peak_resident_bytes: peak_resident_bytes(),
                computed_tokens: computed as u64,
            };
            say(serde_json::to_string(&report).map_err(Failure::failed)?);
            Ok(())
        };
        let answered = answered.await;
        engine.shutdown(STOP_DEADLINE).await;
        answered
    })
}

/// The first start has separate rows, as it may create files that later starts find.
pub fn rows(starts: &[Start], subject: &Subject, machine: &MachineRates) -> Vec<Row> {
    let peak = subject.peak(machine, machine.read_bytes_per_s());
    let prompt = Sequence {
        cached_tokens: 0,
        new_tokens: u64::from(FIRST_PROMPT_TOKENS),
    };
    let first_token_floor = subject.cost().step_seconds(&[prompt], &peak);
    let CpuDescription {
        weights_bytes,
        kv_layout,
        config,
        ..
    } = &subject.description;
    // Layers with a sliding window may keep only the window's tokens.
    let windowed = kv_layout.windowed(&config.windows);
    let kv_layout = windowed.as_ref().unwrap_or(kv_layout);
    let memory = |start: &Start| {
        let kv_bytes = start.computed_tokens * kv_layout.bytes_per_token();
        let floor = (weights_bytes + kv_bytes) as f64;
        Some(Sample::of_cost(
            start.peak_resident_bytes? as f64,
            Some(floor),
        ))
    };
    let rows_of = |starts: &[Start], suffix: &str| {
        let ready = starts
            .iter()
            .map(|start| Sample::of_cost(start.ready_s, None));
        let first = starts
            .iter()
            .map(|start| Sample::of_cost(start.first_token_s, Some(first_token_floor)));
        let name = |what: &str| format!("{what}{suffix}");
        let first_token = format!("start to first token, prompt of {FIRST_PROMPT_TOKENS} tokens");
        [
            (name("start to ready"), Unit::Seconds, ready.collect()),
            (name(&first_token), Unit::Seconds, first.collect()),
            (
                name("peak resident memory"),
                Unit::Bytes,
                starts.iter().filter_map(memory).collect(),
            ),
        ]
    };
    let (first, later) = starts.split_at(starts.len().min(1));
    let rows = rows_of(first, ", first start").into_iter();
    rows.chain(rows_of(later, ", later starts"))
        .filter_map(|(name, unit, samples)| Row::new(name, unit, None, samples))
        .collect()
}

/// `VmHWM` of this process, on Linux.
fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    high_water_mark(&status)
}

fn high_water_mark(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_is_read_in_kibibytes() {
        let status = "Name:\tsouffleur\nVmPeak:\t  999 kB\nVmHWM:\t   1234 kB\nVmRSS:\t 9 kB\n";
        assert_eq!(high_water_mark(status), Some(1234 << 10));
        assert_eq!(high_water_mark("Name:\tx\n"), None);
        assert_eq!(high_water_mark("VmHWM:\t many kB\n"), None);
    }
}
