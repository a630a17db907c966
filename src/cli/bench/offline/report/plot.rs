//! Plots throughput against batch size as a self-contained SVG.

use std::path::Path;

use plotters::prelude::*;

use super::record::Record;
use super::rows::Row;
use super::scaling::Scaling;
use crate::cli::failure::Failure;

const SIZE: (u32, u32) = (760, 460);
const MEASURED: RGBColor = RGBColor(0x1f, 0x5f, 0xa8);
const FLOOR: RGBColor = RGBColor(0x99, 0x99, 0x99);

pub fn write(file: &Path, record: &Record, scaling: &Scaling) -> Result<(), Failure> {
    let svg = curve(&record.title(), &scaling.batch_curve).map_err(Failure::failed)?;
    let written = std::fs::write(file, svg);
    written.map_err(Failure::to(format_args!("write {}", file.display())))
}

/// Tokens per second against streams: medians with quartiles, and the machine's limit.
fn curve(title: &str, rows: &[Row]) -> Result<String, String> {
    let streams = |row: &Row| row.load.map_or(1.0, |load| f64::from(load.streams));
    let last = rows.iter().map(streams).fold(1.0, f64::max);
    let highest = rows
        .iter()
        .map(|row| row.quartiles.upper.max(row.floor.unwrap_or(0.0)));
    let highest = highest.fold(1.0, f64::max) * 1.1;
    let mut svg = String::new();
    let drawn = draw(&mut svg, title, rows, (last, highest));
    drawn.map_err(|error| format!("failed to draw the plot: {error}"))?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    title: &str,
    rows: &[Row],
    (last, highest): (f64, f64),
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let points = |of: fn(&Row) -> Option<f64>| -> Vec<(f64, f64)> {
        let points = rows
            .iter()
            .map(|row| Some((f64::from(row.load?.streams), of(row)?)));
        points.flatten().collect()
    };
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 14))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((1.0..last * 1.1).log_scale().base(2.0), 0.0..highest)?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_desc("streams that decode together")
        .y_desc("tokens/s, all streams")
        .x_label_formatter(&|streams| format!("{streams:.0}"))
        .y_label_formatter(&|rate| format!("{rate:.0}"))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 16))
        .draw()?;
    let floor = points(|row| row.floor);
    chart
        .draw_series(LineSeries::new(floor, FLOOR.stroke_width(2)))?
        .label("machine limit")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], FLOOR.stroke_width(2)));
    let medians = points(|row| Some(row.quartiles.median));
    chart
        .draw_series(LineSeries::new(medians.clone(), MEASURED.stroke_width(2)))?
        .label("measured: median, quartiles")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], MEASURED.stroke_width(2)));
    let dots = medians
        .into_iter()
        .map(|point| Circle::new(point, 3, MEASURED.filled()));
    chart.draw_series(dots)?;
    let spreads = points(|row| Some(row.quartiles.lower))
        .into_iter()
        .zip(rows);
    let spreads = spreads.map(|((streams, lower), row)| {
        PathElement::new([(streams, lower), (streams, row.quartiles.upper)], MEASURED)
    });
    chart.draw_series(spreads)?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", 14))
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::rows::{Sample, Unit};
    use super::*;
    use crate::cli::bench::offline::load::Load;

    fn row(streams: u32, value: f64) -> Row {
        let load = Load {
            streams,
            prompt_tokens: 64,
            output_tokens: 128,
        };
        let sample = Sample {
            value,
            floor: Some(2.0 * value),
            fraction: Some(0.5),
            read_bytes_per_s: None,
        };
        let row = Row::new(load.name(), Unit::TokensPerSecond, Some(load), vec![sample]);
        row.expect("the row has a sample")
    }

    #[test]
    fn the_plot_has_axes_with_units_and_a_dot_for_each_batch() {
        let rows: Vec<Row> = (0..4)
            .map(|power| row(1 << power, f64::from(10 << power)))
            .collect();
        let svg = curve("a model <on a CPU>", &rows).expect("the rows have a curve");
        assert!(
            svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"),
            "{svg}"
        );
        for part in [
            "tokens/s, all streams",
            "streams that decode together",
            "&lt;on a CPU&gt;",
        ] {
            assert!(svg.contains(part), "{part} is not in\n{svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(!svg.contains("href"), "the SVG must be self-contained");
    }

    #[test]
    fn one_batch_or_none_can_be_drawn() {
        assert!(curve("one", &[row(1, 5.0)]).is_ok());
        assert!(curve("none", &[]).is_ok());
    }
}
