//! Plots the results of a simulation as a self-contained SVG.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use souffleur::simulate::outcome::{Moment, Outcome};

use super::super::failure::Failure;
use super::report::{CurvePoint, Run};
use super::size::gib;
use crate::cli::statistics::Summary;

const SIZE: (u32, u32) = (800, 780);
const CURVE_SIZE: (u32, u32) = (760, 420);
const DISKS_SIZE: (u32, u32) = (760, 640);
const BLUE: RGBColor = RGBColor(0x1f, 0x5f, 0xa8);
const LIGHT: RGBColor = RGBColor(0xa9, 0xc8, 0xe8);
const ORANGE: RGBColor = RGBColor(0xd9, 0x7a, 0x1a);
/// The largest number of points of a line: more are not visible.
const POINTS: usize = 256;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = Result<(), Box<dyn std::error::Error>>;
type Line<'a> = (&'a str, Vec<(f64, f64)>, RGBColor);

pub fn write(file: &Path, svg: Result<String, String>) -> Result<(), Failure> {
    let svg = svg.map_err(Failure::to("draw the plot"))?;
    let written = std::fs::write(file, svg);
    written.map_err(Failure::to(format_args!("write {}", file.display())))
}

/// Plots memory and requests over time, and the distribution of latencies.
pub fn run(title: &str, outcome: &Outcome) -> Result<String, String> {
    let mut svg = String::new();
    draw_run(&mut svg, title, outcome).map_err(|error| error.to_string())?;
    Ok(svg)
}

pub fn curve(title: &str, points: &[CurvePoint]) -> Result<String, String> {
    let mut svg = String::new();
    draw_curve(&mut svg, title, points).map_err(|error| error.to_string())?;
    Ok(svg)
}

/// Plots hit rates and latencies by the size of the KV store.
pub fn disks(title: &str, runs: &[Run]) -> Result<String, String> {
    let mut svg = String::new();
    draw_disks(&mut svg, title, runs).map_err(|error| error.to_string())?;
    Ok(svg)
}

fn draw_run(svg: &mut String, title: &str, outcome: &Outcome) -> DrawResult {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let panels = area.titled(title, ("sans-serif", 15))?.split_evenly((3, 1));
    let moments = thinned(outcome.timeline.moments());
    let over_time = |of: &dyn Fn(&Moment) -> f64| -> Vec<(f64, f64)> {
        moments
            .iter()
            .map(|moment| (moment.at_s, of(moment)))
            .collect()
    };
    let percent = |tokens: usize| 100.0 * tokens as f64 / outcome.kv_tokens.max(1) as f64;
    let memory = [
        (
            "cached, evictable",
            over_time(&|m| percent(m.held_tokens)),
            LIGHT,
        ),
        ("in use", over_time(&|m| percent(m.used_tokens)), BLUE),
    ];
    panel(&panels[0], ("seconds", "KV pool, %"), &memory, true)?;
    let requests = [
        (
            "waiting",
            over_time(&|m| (m.waiting_requests + m.outside_requests) as f64),
            ORANGE,
        ),
        ("running", over_time(&|m| m.running_requests as f64), BLUE),
    ];
    panel(&panels[1], ("seconds", "requests"), &requests, false)?;
    let latencies = [
        ("TTFT", percentiles(&outcome.ttft_s()), BLUE),
        ("E2E", percentiles(&outcome.e2e_s()), ORANGE),
    ];
    panel(
        &panels[2],
        ("percent of requests", "latency, seconds"),
        &latencies,
        false,
    )?;
    area.present()?;
    Ok(())
}

fn draw_curve(svg: &mut String, title: &str, points: &[CurvePoint]) -> DrawResult {
    let area = SVGBackend::with_string(svg, CURVE_SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let area = area.titled(title, ("sans-serif", 15))?;
    let millions = |point: &CurvePoint| {
        let replays = &point.replays;
        let all_tokens = |tokens: usize| tokens * replays.replicas.len();
        let tokens = point
            .kv_tokens
            .map_or(replays.all.cached_tokens, all_tokens);
        (tokens as f64 / 1e6, 100.0 * replays.all.hit_rate())
    };
    let mut line: Vec<_> = std::iter::once((0.0, 0.0))
        .chain(points.iter().map(millions))
        .collect();
    line.sort_by(|a, b| a.0.total_cmp(&b.0));
    panel(
        &area,
        ("KV pool, million tokens", "prompt tokens that hit, %"),
        &[("hit rate", line, BLUE)],
        false,
    )?;
    area.present()?;
    Ok(())
}

fn draw_disks(svg: &mut String, title: &str, runs: &[Run]) -> DrawResult {
    let area = SVGBackend::with_string(svg, DISKS_SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let panels = area.titled(title, ("sans-serif", 15))?.split_evenly((2, 1));
    // Plots only the runs with the first pool size.
    let pool = runs.first().map(|run| run.outcome.kv_tokens);
    let of_pool = runs
        .iter()
        .filter(|run| Some(run.outcome.kv_tokens) == pool);
    let mut outcomes: Vec<_> = of_pool.map(|run| &run.outcome).collect();
    let size = |outcome: &Outcome| outcome.store.map_or(0, |store| store.disk_bytes);
    outcomes.sort_by_key(|outcome| size(outcome));
    let line = |of: &dyn Fn(&Outcome) -> f64| -> Vec<(f64, f64)> {
        let points = outcomes.iter();
        points
            .map(|outcome| (gib(size(outcome)), of(outcome)))
            .collect()
    };
    let hits = [
        ("hits", line(&|outcome| 100.0 * outcome.hit_rate()), BLUE),
        (
            "of them in memory",
            line(&|outcome| 100.0 * outcome.memory_hit_rate()),
            LIGHT,
        ),
        (
            "of them on disk",
            line(&|outcome| 100.0 * outcome.disk_hit_rate()),
            ORANGE,
        ),
    ];
    let names = ("KV store, GiB", "prompt tokens, %");
    panel(&panels[0], names, &hits, false)?;
    let ttft = |of: fn(&Summary) -> f64| {
        line(&|outcome| Summary::of(&outcome.ttft_s()).as_ref().map_or(0.0, of))
    };
    let latencies = [
        ("mean", ttft(|summary| summary.mean), BLUE),
        ("p90", ttft(|summary| summary.p90), ORANGE),
    ];
    let names = ("KV store, GiB", "time to first token, seconds");
    panel(&panels[1], names, &latencies, false)?;
    area.present()?;
    Ok(())
}

fn panel(
    area: &Area<'_>,
    (x_name, y_name): (&str, &str),
    lines: &[Line<'_>],
    is_filled: bool,
) -> DrawResult {
    let points = || lines.iter().flat_map(|(_, points, _)| points);
    let right = points().map(|point| point.0).fold(1e-9, f64::max);
    let top = points().map(|point| point.1).fold(1e-9, f64::max) * 1.05;
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    let shown = |value: &f64| {
        if top < 5.0 {
            format!("{value:.1}")
        } else {
            format!("{value:.0}")
        }
    };
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_desc(x_name)
        .y_desc(y_name)
        .y_label_formatter(&shown)
        .label_style(("sans-serif", 12))
        .axis_desc_style(("sans-serif", 13))
        .draw()?;
    for (name, points, color) in lines {
        if is_filled {
            let mut outline = vec![(0.0, 0.0)];
            outline.extend(points);
            outline.push((points.last().map_or(0.0, |last| last.0), 0.0));
            chart.draw_series([Polygon::new(outline, color.filled())])?;
        }
        let style = color.stroke_width(2);
        chart
            .draw_series([PathElement::new(points.clone(), style)])?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperMiddle)
        .background_style(WHITE.mix(0.8))
        .label_font(("sans-serif", 12))
        .draw()?;
    Ok(())
}

/// Merges moments to at most `POINTS`, each with the largest values.
fn thinned(moments: &[Moment]) -> Vec<Moment> {
    let together = moments.len().div_ceil(POINTS).max(1);
    let largest = |same: &[Moment]| same.iter().copied().reduce(Moment::with);
    moments.chunks(together).filter_map(largest).collect()
}

fn percentiles(samples: &[f64]) -> Vec<(f64, f64)> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = |percent: u32| {
        let place =
            (sorted.len().checked_sub(1)? as f64 * f64::from(percent) / 100.0).round() as usize;
        Some((f64::from(percent), sorted[place]))
    };
    (0..=100).filter_map(at).collect()
}
