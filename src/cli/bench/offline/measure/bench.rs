//! Runs loads on the engine under test, and compares their rates with the machine's limits.

use indicatif::ProgressBar;
use souffleur::engine::EngineHandle;

use super::streams::{self, Stream, decoded};
use super::waits::StepWaits;
use crate::cli::bench::offline::load::{FREE_TOKENS, Load, longest_prompt};
use crate::cli::bench::offline::machine::floors::{ModelCost, Peak, Sequence};
use crate::cli::bench::offline::machine::{Machine, MachineRates};
use crate::cli::bench::offline::report::rows::Sample;
use crate::cli::bench::offline::subject::Subject;
use crate::cli::bench::prompts::Prompts;
use crate::cli::failure::Failure;

pub struct Bench<'a> {
    pub engine: &'a EngineHandle,
    pub machine: Machine,
    pub cost: ModelCost,
    pub subject: &'a Subject,
    pub prompts: Prompts,
    pub bar: ProgressBar,
    /// `None` on a CPU.
    pub waits: Option<StepWaits>,
    pub skipped: Vec<String>,
}

impl<'a> Bench<'a> {
    pub fn new(
        engine: &'a EngineHandle,
        subject: &'a Subject,
        waits: Option<StepWaits>,
        seed: u64,
        bar: ProgressBar,
    ) -> Result<Self, Failure> {
        let vocab_size = u32::try_from(engine.model().vocab_size).unwrap_or(u32::MAX);
        Ok(Self {
            engine,
            machine: Machine::new(&subject.device)?,
            cost: subject.cost(),
            subject,
            prompts: Prompts::new(seed, vocab_size),
            bar,
            waits,
            skipped: Vec::new(),
        })
    }

    /// Returns the loads whose streams the engine can run concurrently, and records the others as skipped.
    pub fn possible(&mut self, loads: Vec<Load>) -> Vec<Load> {
        let model = self.engine.model();
        let (running, pool) = (model.max_running_requests, model.max_total_tokens);
        let reason = |load: &Load| {
            let tokens = load.prompt_tokens as usize + load.output_tokens as usize + FREE_TOKENS;
            let needed = load.streams as usize * tokens.next_multiple_of(model.page_size);
            if load.streams as usize > running {
                Some(format!(
                    "needs {} running requests, but --max-running-requests is {running}",
                    load.streams
                ))
            } else if tokens > model.context_length {
                Some(format!(
                    "needs {tokens} tokens per stream, but --context-length is {}",
                    model.context_length
                ))
            } else if needed > pool {
                Some(format!(
                    "needs {needed} tokens in all, but --max-total-tokens is {pool}"
                ))
            } else {
                None
            }
        };
        let (mut possible, mut skipped) = (Vec::new(), Vec::new());
        for load in loads {
            match reason(&load) {
                None => possible.push(load),
                Some(reason) => skipped.push(format!("{}: {reason}", load.name())),
            }
        }
        self.skipped.extend(skipped);
        possible
    }

    /// Runs a load with new prompts, and compares its rate with the limit at the machine's current read bandwidth.
    pub async fn sample(
        &mut self,
        load: Load,
        rates: &MachineRates,
    ) -> Result<Option<Sample>, Failure> {
        let peak = self.subject.peak(rates, self.machine.read_bytes_per_s());
        let streams = self.streams(load).await?;
        Ok(rate(load, &streams, &self.cost, &peak))
    }

    pub async fn streams(&mut self, load: Load) -> Result<Vec<Stream>, Failure> {
        let output = load.output_tokens;
        let limit = longest_prompt(self.engine.model(), output);
        let tokens = load.prompt_tokens.min(limit) as usize;
        let prompts = (0..load.streams)
            .map(|_| self.prompts.ids(tokens))
            .collect();
        streams::run_all(self.engine, prompts, output).await
    }

    pub fn show_status(&self, status: String) {
        self.bar.set_message(status);
        self.bar.tick();
    }
}

/// The rate of the streams, and the best possible rate; `None` if the streams never all decoded together.
fn rate(load: Load, streams: &[Stream], cost: &ModelCost, peak: &Peak) -> Option<Sample> {
    let (value, floor) = match load.output_tokens {
        1 => {
            let took = streams.iter().map(Stream::first_token).max()?;
            let prefill = Sequence {
                cached_tokens: 0,
                new_tokens: u64::from(load.prompt_tokens),
            };
            let tokens = f64::from(load.prompt_tokens) * streams.len() as f64;
            let step = vec![prefill; streams.len()];
            (
                tokens / took.as_secs_f64(),
                tokens / cost.step_seconds(&step, peak),
            )
        }
        output_tokens => {
            let decoded = decoded(streams)?;
            let (prompt, output) = (u64::from(load.prompt_tokens), u64::from(output_tokens));
            let min_seconds = cost.decode_seconds(u64::from(load.streams), prompt, output, peak);
            let tokens = u64::from(load.streams) * (output - 1);
            (
                f64::from(decoded.tokens) / decoded.seconds,
                tokens as f64 / min_seconds,
            )
        }
    };
    Some(Sample {
        value,
        floor: Some(floor),
        fraction: Some(value / floor),
        read_bytes_per_s: Some(peak.read_bytes_per_s),
    })
}
