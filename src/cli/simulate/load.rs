//! The load of a simulation: read from a trace file, or synthetic.

use std::path::PathBuf;

use clap::Args;

use souffleur::simulate::SimulateError;
use souffleur::simulate::read::read_trace;
use souffleur::simulate::synthetic::{Arrivals, Lengths, SyntheticLoad};
use souffleur::simulate::trace::Trace;

use super::super::failure::Failure;

/// Flags of the load.
#[derive(Args, Debug)]
pub struct LoadArgs {
    /// Mooncake trace (JSON lines) or Azure LLM trace (CSV), optionally gzipped; without a trace the load is synthetic
    trace: Option<PathBuf>,
    /// Use only this many requests, from the start of the trace
    #[arg(long, value_name = "N", help_heading = "Load", requires = "trace")]
    max_requests: Option<usize>,
    /// Repeat the load this many times; prompts of different repetitions share nothing
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Load")]
    repeat: u32,
    /// Multiplies the arrival rate: with 2, requests arrive twice as fast
    #[arg(
        long,
        value_name = "FACTOR",
        default_value_t = 1.0,
        help_heading = "Load"
    )]
    rate_scale: f64,
    /// Synthetic: number of requests
    #[arg(long, value_name = "N", default_value_t = 1000, help_heading = "Load")]
    requests: usize,
    /// Synthetic: requests per second
    #[arg(
        long,
        value_name = "RATE",
        default_value_t = 4.0,
        help_heading = "Load"
    )]
    request_rate: f64,
    /// Synthetic: poisson, uniform, or burst (all at once)
    #[arg(
        long,
        value_name = "KIND",
        default_value = "poisson",
        help_heading = "Load"
    )]
    arrivals: Arrivals,
    /// Synthetic: tokens of each prompt: N, uniform:FROM..TO, exponential:MEAN or lognormal:MEDIAN,SIGMA
    #[arg(
        long,
        value_name = "LENGTHS",
        default_value = "lognormal:1000,1",
        help_heading = "Load"
    )]
    input_len: Lengths,
    /// Synthetic: tokens of each output, in the same forms
    #[arg(
        long,
        value_name = "LENGTHS",
        default_value = "lognormal:200,0.8",
        help_heading = "Load"
    )]
    output_len: Lengths,
    /// Synthetic: number of prefixes that requests share
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Load")]
    shared_prefixes: u32,
    /// Synthetic: tokens of each shared prefix, before the request's own
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 1024,
        help_heading = "Load"
    )]
    shared_prefix_len: u32,
    /// Synthetic: share of the requests that begin with a shared prefix
    #[arg(
        long,
        value_name = "0..1",
        default_value_t = 1.0,
        help_heading = "Load"
    )]
    shared_fraction: f64,
    /// Synthetic: seed of all random choices
    #[arg(long, default_value_t = 0, help_heading = "Load")]
    seed: u64,
}

impl LoadArgs {
    pub fn trace(&self) -> Result<Trace, Failure> {
        if !(1e-6..=1e6).contains(&self.rate_scale) {
            let reason = format!(
                "rate_scale is {}, must lie between 1e-6 and 1e6",
                self.rate_scale
            );
            return Err(Failure::Usage(reason));
        }
        let trace = match &self.trace {
            Some(file) => read_trace(file, self.max_requests)?,
            None => self.synthetic()?,
        };
        Ok(trace.repeated(self.repeat)?.faster(self.rate_scale))
    }

    pub fn name(&self) -> String {
        let name = match &self.trace {
            Some(file) => file
                .file_name()
                .unwrap_or(file.as_os_str())
                .to_string_lossy()
                .into_owned(),
            None => "synthetic load".to_owned(),
        };
        let repeat = if self.repeat > 1 {
            format!(", {} times", self.repeat)
        } else {
            String::new()
        };
        let scale = if self.rate_scale == 1.0 {
            String::new()
        } else {
            format!(", {}x the rate", self.rate_scale)
        };
        name + &repeat + &scale
    }

    fn synthetic(&self) -> Result<Trace, SimulateError> {
        let load = SyntheticLoad {
            requests: self.requests,
            rate: self.request_rate,
            arrivals: self.arrivals,
            input_tokens: self.input_len,
            output_tokens: self.output_len,
            shared_prefixes: self.shared_prefixes,
            shared_prefix_tokens: self.shared_prefix_len,
            shared_fraction: self.shared_fraction,
            seed: self.seed,
        };
        load.trace()
    }
}
