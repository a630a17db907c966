//! What an offline bench leaves behind: a table for people, a record for machines.

use std::path::{Path, PathBuf};

use serde::Serialize;
use souffleur::engine::ModelInfo;
use souffleur::executor::cpu::CpuDescription;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::super::{Failure, say};
use super::machine::{MachineRates, Rates};
use super::rows::Row;
use super::scaling::Scaling;
use super::statistics::Quartiles;
use super::table;

/// Everything that was measured, raw samples included.
#[derive(Serialize)]
pub struct Record {
    /// Name and version of this form.
    pub schema: &'static str,
    /// Of this program.
    pub version: &'static str,
    /// When the bench ran, UTC.
    pub date: String,
    /// The processor's name.
    pub cpu: String,
    /// The GPU's name, where one computed.
    pub gpu: Option<String>,
    /// What was run.
    pub model: ModelRecord,
    /// Element type of weights and KV.
    pub dtype: &'static str,
    /// What the weights are quantized to, or `none`.
    pub quantization: &'static str,
    /// Compute threads.
    pub threads: usize,
    /// Instruction set of the kernels.
    pub kernel_path: &'static str,
    /// Tokens per KV page.
    pub page_size: usize,
    /// Tokens of the KV pool.
    pub kv_pool_tokens: usize,
    /// Of the random prompts.
    pub seed: u64,
    /// Rounds.
    pub repeat: u32,
    /// The machine at its best, at the start of each round.
    pub machine: Vec<MachineRates>,
    /// The table.
    pub rows: Vec<Row>,
    /// With `--scaling`.
    pub scaling: Option<Scaling>,
    /// Loads that this engine cannot run, and why.
    pub skipped: Vec<String>,
}

/// Which model was run.
#[derive(Serialize)]
pub struct ModelRecord {
    name: String,
    path: PathBuf,
    architecture: &'static str,
    parameters: u64,
    weights_bytes: u64,
    context_tokens: usize,
}

impl ModelRecord {
    /// Names the model.
    pub fn new(model: &ModelInfo, description: &CpuDescription) -> Self {
        Self {
            name: model.served_model_name.clone(),
            path: model.model_path.clone(),
            architecture: description.config.architecture.name(),
            parameters: description.config.parameters(),
            weights_bytes: description.weights_bytes,
            context_tokens: model.context_length,
        }
    }
}

impl Record {
    /// Prints the tables, and writes the record to `json` if it is given; `-` is stdout, without tables.
    pub fn publish(&self, json: Option<&Path>) -> Result<(), Failure> {
        publish(self, json, || self.print())
    }

    /// Writes what there is so far, so that a bench which is stopped loses nothing that it measured.
    pub fn keep(&self, json: Option<&Path>) -> Result<(), Failure> {
        match json {
            Some(file) if is_replaceable(file) => write(file, &text(self)?),
            _ => Ok(()),
        }
    }

    /// What was measured, where and when, in a line.
    pub fn title(&self) -> String {
        let place = match &self.gpu {
            Some(gpu) => format!("{gpu} in {}", self.cpu),
            None => format!("{} threads, {}", self.threads, self.cpu),
        };
        format!(
            "{}, {}, quantization {}, {} kernels, {place}, {}",
            self.model.name, self.dtype, self.quantization, self.kernel_path, self.date,
        )
    }

    fn print(&self) {
        say(self.title() + "\n");
        self.print_machine();
        say("");
        let header = [
            "work",
            "unit",
            "median",
            "quartiles",
            "floor",
            "of the floor",
        ];
        let rows: Vec<_> = self.rows.iter().map(Row::cells).collect();
        table::print(&header, &rows);
        if let Some(scaling) = &self.scaling {
            scaling.print(&header);
        }
        for skipped in &self.skipped {
            say(format_args!("\nskipped: {skipped}"));
        }
    }

    fn print_machine(&self) {
        match self.gpu {
            Some(_) => self.print_gpu(),
            None => self.print_cpu(),
        }
    }

    fn print_gpu(&self) {
        let Some(MachineRates::Gpu(rates)) = self.machine.first() else {
            return;
        };
        let product = format!("large product ({}), TFLOP/s", rates.product);
        let row = |name: &str, value: f64| vec![name.to_owned(), format!("{value:.0}")];
        let rows = [
            row("copy, read and written, GB/s", rates.copy_bytes_per_s / 1e9),
            row(&product, rates.flop_per_s / 1e12),
        ];
        table::print(&["GPU, before the engine started", "best"], &rows);
    }

    fn print_cpu(&self) {
        let threads = format!("{} threads", self.threads);
        let header = ["machine, median of the rounds", "one thread", &threads];
        let row = |name: &str, rate: fn(&Rates) -> Option<f64>| {
            let median = |is_one: bool| {
                let of = |measured: &MachineRates| match measured {
                    MachineRates::Cpu { one, .. } if is_one => rate(one),
                    MachineRates::Cpu { all, .. } => rate(all),
                    MachineRates::Gpu(_) => None,
                };
                let rates: Vec<f64> = self.machine.iter().filter_map(of).collect();
                let median = Quartiles::of(&rates).map(|quartiles| quartiles.median / 1e9);
                median.map_or("not present".to_owned(), |rate| format!("{rate:.1}"))
            };
            vec![name.to_owned(), median(true), median(false)]
        };
        let rows = [
            row("read bandwidth, GB/s", |rates| Some(rates.read_bytes_per_s)),
            row("f32 FMA, GFLOP/s", |rates| Some(rates.f32_ops_per_s)),
            row("vdpbf16ps, GFLOP/s", |rates| rates.bf16_ops_per_s),
            row("vpdpbusd, GOP/s", |rates| rates.int8_ops_per_s),
        ];
        table::print(&header, &rows);
    }
}

impl Scaling {
    fn print(&self, header: &[&str]) {
        let contexts = self.decode_by_context.iter().map(|cost| {
            let ms = |seconds: f64| format!("{:.3}", seconds * 1e3);
            vec![
                cost.context_tokens.to_string(),
                ms(cost.quartiles.median),
                format!(
                    "{} to {}",
                    ms(cost.quartiles.lower),
                    ms(cost.quartiles.upper)
                ),
                ms(cost.floor_s),
                format!("{:.1} %", 100.0 * cost.floor_s / cost.quartiles.median),
            ]
        });
        say("");
        table::print(
            &[
                "context",
                "ms a token",
                "quartiles",
                "floor",
                "of the floor",
            ],
            &contexts.collect::<Vec<_>>(),
        );
        if let (Some(line), Some(floor), Some(fraction)) =
            (self.line, self.floor_line, self.slope_fraction)
        {
            say(format_args!(
                "\neach 1000 tokens of context add {:.3} ms a token; K/V bytes by read bandwidth are {:.3} ms: {:.1} %",
                line.slope * 1e6,
                floor.slope * 1e6,
                100.0 * fraction,
            ));
        }
        say("");
        let rows: Vec<_> = self
            .long_prefill
            .iter()
            .chain(&self.batch_curve)
            .map(Row::cells)
            .collect();
        table::print(header, &rows);
    }
}

/// Prints with `print`, and writes `record` to `json` if it is given; `-` is stdout, and nothing is printed.
pub fn publish(
    record: &impl Serialize,
    json: Option<&Path>,
    print: impl FnOnce(),
) -> Result<(), Failure> {
    match json {
        None => print(),
        Some(file) if file.as_os_str() == "-" => say(text(record)?),
        Some(file) => {
            print();
            write(file, &text(record)?)?;
        }
    }
    Ok(())
}

fn text(record: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(record).map_err(Failure::failed)
}

/// Whether another file may take this one's place: a pipe or a terminal is written to and never replaced.
fn is_replaceable(file: &Path) -> bool {
    match std::fs::symlink_metadata(file) {
        Ok(metadata) => metadata.is_file(),
        Err(_) => file.as_os_str() != "-",
    }
}

/// Writes a file, whole or not at all where it can be replaced.
fn write(file: &Path, text: &str) -> Result<(), Failure> {
    let text = format!("{text}\n");
    let written = match is_replaceable(file) {
        true => {
            let mut part = file.as_os_str().to_owned();
            part.push(".part");
            std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, file))
        }
        false => std::fs::write(file, text),
    };
    written.map_err(|error| Failure::failed(format_args!("{}: {error}", file.display())))
}

/// Now, in UTC, to the second.
pub fn date() -> String {
    let now = OffsetDateTime::now_utc();
    let now = now.replace_nanosecond(0).unwrap_or(now);
    now.format(&Rfc3339).unwrap_or_default()
}

/// The first processor's name, as the system gives it.
pub fn cpu() -> String {
    let Ok(mut system) = sysinfo::System::new() else {
        return "unknown CPU".to_owned();
    };
    system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
    let brand = system.cpus().first().map(|cpu| cpu.brand().trim());
    brand
        .filter(|brand| !brand.is_empty())
        .unwrap_or("unknown CPU")
        .to_owned()
}
