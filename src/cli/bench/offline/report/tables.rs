//! Prints the results of a bench without a server as tables.

use super::record::Record;
use super::rows::Row;
use super::scaling::Scaling;
use crate::cli::bench::offline::machine::{MachineRates, Rates};
use crate::cli::output::{say, table};
use crate::cli::statistics::Quartiles;

pub fn print(record: &Record) {
    say(record.title() + "\n");
    print_machine(record);
    say("");
    let header = [
        "measurement",
        "unit",
        "median",
        "quartiles",
        "machine limit",
        "efficiency",
    ];
    let rows: Vec<_> = record.rows.iter().map(Row::cells).collect();
    table::print(&header, &rows);
    say(
        "\nmachine limit: the best value that the machine's measured rates allow; efficiency: value / limit for rates, \
         limit / value for times and sizes; 100 % is the best possible",
    );
    if let Some(scaling) = &record.scaling {
        print_scaling(scaling, &header);
    }
    for skipped in &record.skipped {
        say(format_args!("\nskipped: {skipped}"));
    }
}

fn print_machine(record: &Record) {
    match record.gpu {
        Some(_) => print_gpu(record),
        None => print_cpu(record),
    }
}

fn print_gpu(record: &Record) {
    let Some(MachineRates::Gpu(rates)) = record.machine.first() else {
        return;
    };
    let product = format!("large matrix product ({}), TFLOP/s", rates.product);
    let row = |name: &str, value: f64| vec![name.to_owned(), format!("{value:.0}")];
    let rows = [
        row("copy, read and written, GB/s", rates.copy_bytes_per_s / 1e9),
        row(
            "matrix-vector product, weights read, GB/s",
            rates.read_bytes_per_s / 1e9,
        ),
        row(&product, rates.flop_per_s / 1e12),
    ];
    table::print(&["GPU, before the engine started", "best"], &rows);
}

fn print_cpu(record: &Record) {
    let threads = format!("{} threads", record.threads);
    let header = ["machine, median of the rounds", "one thread", &threads];
    let row = |name: &str, rate: fn(&Rates) -> Option<f64>| {
        let median = |is_one: bool| {
            let of = |measured: &MachineRates| match measured {
                MachineRates::Cpu { one, .. } if is_one => rate(one),
                MachineRates::Cpu { all, .. } => rate(all),
                MachineRates::Gpu(_) => None,
            };
            let rates: Vec<f64> = record.machine.iter().filter_map(of).collect();
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

fn print_scaling(scaling: &Scaling, header: &[&str]) {
    let contexts = scaling.decode_by_context.iter().map(|cost| {
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
            "machine limit",
            "efficiency",
        ],
        &contexts.collect::<Vec<_>>(),
    );
    if let (Some(line), Some(floor), Some(fraction)) =
        (scaling.line, scaling.floor_line, scaling.slope_fraction)
    {
        say(format_args!(
            "\neach 1000 tokens of context add {:.3} ms to a decoded token; reading their K/V at full memory bandwidth \
             would take {:.3} ms, {:.1} % of the measured time",
            line.slope * 1e6,
            floor.slope * 1e6,
            100.0 * fraction,
        ));
    }
    say("");
    let rows: Vec<_> = scaling
        .long_prefill
        .iter()
        .chain(&scaling.batch_curve)
        .map(Row::cells)
        .collect();
    table::print(header, &rows);
}
