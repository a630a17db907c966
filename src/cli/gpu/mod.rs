//! The hidden command `souffleur gpu`, which `scripts/gpu-check` runs: probes a GPU and times the kernels.

mod report;

use clap::{Args, Subcommand};
use souffleur::kernels::cuda::driver::Device;
use souffleur::kernels::cuda::timing::{self, Extent, Rates, Timing};

use super::failure::Failure;
use super::output::say;
use report::{Measurement, TableArgs};

/// Flags of the command.
#[derive(Args, Debug)]
pub struct GpuArgs {
    #[command(subcommand)]
    command: GpuCommand,
}

#[derive(Subcommand, Debug)]
enum GpuCommand {
    /// Show the GPU's name, compute capability and free memory
    Probe(DeviceArgs),
    /// Time every kernel and compare it with the shortest time possible at the memory bandwidth and compute rate
    /// measured on this GPU; prints one line of JSON per kernel
    Kernels {
        #[command(flatten)]
        device: DeviceArgs,
        /// Run tiny shapes without timing, to see that everything runs
        #[arg(long)]
        tiny: bool,
    },
    /// Print a table of results, read from files with JSON lines and from records written by `bench --json`
    Table(TableArgs),
}

#[derive(Args, Debug)]
struct DeviceArgs {
    /// Number of the GPU
    #[arg(long, default_value_t = 0)]
    gpu: usize,
}

pub fn run(args: &GpuArgs) -> Result<(), Failure> {
    match &args.command {
        GpuCommand::Probe(device) => probe(device),
        GpuCommand::Kernels { device, tiny } => kernels(device, *tiny),
        GpuCommand::Table(args) => report::print(args),
    }
}

fn open(args: &DeviceArgs) -> Result<Device, Failure> {
    Device::open(args.gpu).map_err(Failure::failed)
}

fn probe(args: &DeviceArgs) -> Result<(), Failure> {
    let device = open(args)?;
    let memory = device.memory().map_err(Failure::failed)?;
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    say(Measurement::note(
        "probe",
        format!(
            "{}: {:.2} GiB free of {:.2} GiB",
            device.info(),
            gib(memory.free_bytes),
            gib(memory.total_bytes)
        ),
    ));
    Ok(())
}

fn kernels(args: &DeviceArgs, tiny: bool) -> Result<(), Failure> {
    let device = open(args)?;
    let extent = if tiny { Extent::Tiny } else { Extent::Full };
    let mut has_rates = false;
    let print = &mut |rates: &Rates, timing: Timing| {
        // The rates are printed first, so that the output of an interrupted run has them.
        if extent == Extent::Full && !std::mem::replace(&mut has_rates, true) {
            say_rates(rates);
        }
        say(line(rates, &timing, extent));
    };
    timing::measure(&device, extent, print).map_err(Failure::failed)?;
    Ok(())
}

fn say_rates(rates: &Rates) {
    let copied = rates.copy_bytes_per_s / 1e9;
    say(Measurement::rate("copy bandwidth", "GB/s", copied));
    let read = rates.read_bytes_per_s / 1e9;
    say(Measurement::rate(
        "read bandwidth, by a matrix-vector product",
        "GB/s",
        read,
    ));
    let name = format!("large bf16 GEMM, {}", rates.product);
    say(Measurement::rate(&name, "TFLOP/s", rates.flop_per_s / 1e12));
}

fn line(rates: &Rates, timing: &Timing, extent: Extent) -> Measurement {
    match extent {
        Extent::Tiny => Measurement::ran("kernels", &timing.name),
        Extent::Full => Measurement::cost(
            "kernels",
            &timing.name,
            timing.seconds * 1e6,
            timing.floor_seconds(rates) * 1e6,
        ),
    }
}
