//! Prints GPU measurements as lines of JSON, and combines results in one table.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::failure::Failure;
use super::super::output::{say, table};

/// Files to show.
#[derive(Args, Debug)]
pub struct TableArgs {
    /// Lines of JSON, or a record of the bench
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Write everything to a file, as one array
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    part: String,
    /// The name of the measured work.
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unit: Option<String>,
    /// `None` if nothing was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<f64>,
    /// The best possible value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    floor: Option<f64>,
    /// The efficiency: how close the value comes to the machine's limit, which is 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fraction: Option<f64>,
    /// A result in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl Measurement {
    fn new(part: &str, name: &str) -> Self {
        Self {
            part: part.to_owned(),
            name: name.to_owned(),
            unit: None,
            value: None,
            floor: None,
            fraction: None,
            note: None,
        }
    }

    pub fn ran(part: &str, name: &str) -> Self {
        Self {
            note: Some("ran".to_owned()),
            ..Self::new(part, name)
        }
    }

    pub fn note(part: &str, note: String) -> Self {
        Self {
            note: Some(note),
            ..Self::new(part, part)
        }
    }

    /// A time in microseconds; smaller is better.
    pub fn cost(part: &str, name: &str, us: f64, floor_us: f64) -> Self {
        Self {
            unit: Some("us".to_owned()),
            value: Some(us),
            floor: Some(floor_us),
            fraction: Some(floor_us / us),
            ..Self::new(part, name)
        }
    }

    /// The highest rate that the GPU reaches.
    pub fn rate(name: &str, unit: &str, value: f64) -> Self {
        Self {
            unit: Some(unit.to_owned()),
            value: Some(value),
            ..Self::new("kernels", name)
        }
    }

    fn cells(&self) -> Vec<String> {
        let shown = |value: Option<f64>| match value {
            Some(value) if value.abs() >= 1000.0 => format!("{value:.0}"),
            Some(value) => format!("{value:.2}"),
            None => "-".to_owned(),
        };
        let fraction = self
            .fraction
            .map(|fraction| format!("{:.1} %", 100.0 * fraction));
        vec![
            self.name.clone(),
            self.part.clone(),
            self.unit.clone().unwrap_or_default(),
            match (&self.note, self.value) {
                (Some(note), None) => note.clone(),
                _ => shown(self.value),
            },
            shown(self.floor),
            fraction.unwrap_or_else(|| "-".to_owned()),
        ]
    }
}

/// Writes a line of JSON.
impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

pub fn print(args: &TableArgs) -> Result<(), Failure> {
    let mut results = Vec::new();
    for file in &args.files {
        let text = std::fs::read_to_string(file);
        let text = text.map_err(Failure::to(format_args!("read {}", file.display())))?;
        results.extend(read(file, &text)?);
    }
    let header = [
        "work",
        "part",
        "unit",
        "value",
        "machine limit",
        "efficiency",
    ];
    let cells: Vec<_> = results.iter().map(Measurement::cells).collect();
    table::print(&header, &cells);
    say(
        "\nmachine limit: the best value that the machine's measured rates allow; efficiency: value / limit for rates, \
         limit / value for times",
    );
    let Some(file) = &args.json else {
        return Ok(());
    };
    let text = serde_json::to_string_pretty(&results).map_err(Failure::failed)?;
    std::fs::write(file, text + "\n").map_err(Failure::to(format_args!("write {}", file.display())))
}

fn read(file: &Path, text: &str) -> Result<Vec<Measurement>, Failure> {
    if let Ok(record) = serde_json::from_str::<Value>(text)
        && let Some(rows) = record["rows"].as_array()
    {
        return Ok(rows.iter().map(|row| of_bench(&record, row)).collect());
    }
    // An interrupted writer leaves a last line without a line end, which may be incomplete.
    let (lines, last) = text.rsplit_once('\n').unwrap_or(("", text));
    let last = Some(last).filter(|last| serde_json::from_str::<Measurement>(last).is_ok());
    let lines = lines.lines().chain(last);
    let lines = lines.filter(|line| !line.trim().is_empty());
    let parsed = lines.enumerate().map(|(index, line)| {
        serde_json::from_str(line).map_err(|error| {
            let (file, number) = (file.display(), index + 1);
            Failure::failed(format_args!("{file}, line {number}: {error}"))
        })
    });
    parsed.collect()
}

fn of_bench(record: &Value, row: &Value) -> Measurement {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = format!("{}: {}", text(&record["model"]["name"]), text(&row["name"]));
    Measurement {
        unit: Some(text(&row["unit"])),
        value: row["median"].as_f64(),
        floor: row["floor"].as_f64(),
        fraction: row["fraction"]["median"].as_f64(),
        ..Measurement::new("engine", &name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_and_records_become_one_table() {
        let file = Path::new("x");
        let lines = format!(
            "{}\n{}\n",
            Measurement::cost("kernels", "rms_norm", 4.0, 3.0),
            Measurement::ran("kernels", "embed")
        );
        let results = read(file, &lines).expect("both lines parse");
        assert_eq!(
            results[0].cells(),
            ["rms_norm", "kernels", "us", "4.00", "3.00", "75.0 %"]
        );
        assert_eq!(
            results[1].cells(),
            ["embed", "kernels", "", "ran", "-", "-"]
        );
        let record = json!({
            "model": {"name": "tiny"},
            "rows": [{
                "name": "prefill", "unit": "tokens/s", "median": 1234.4, "floor": 2000.0,
                "fraction": {"lower": 0.5, "median": 0.62, "upper": 0.7},
            }],
        });
        let results = read(file, &record.to_string()).expect("the record parses");
        assert_eq!(
            results[0].cells(),
            [
                "tiny: prefill",
                "engine",
                "tokens/s",
                "1234",
                "2000",
                "62.0 %"
            ]
        );
    }

    #[test]
    fn an_incomplete_last_line_is_skipped() {
        let whole = Measurement::ran("kernels", "embed");
        let cut = Measurement::cost("kernels", "rms_norm", 4.0, 3.0).to_string();
        let results = |text: String| read(Path::new("x"), &text).expect("whole lines parse");
        let cut_short = format!("{whole}\n{}", &cut[..cut.len() / 2]);
        assert_eq!(results(cut_short), std::slice::from_ref(&whole));
        assert_eq!(results(format!("{whole}\n{cut}")).len(), 2);
        assert_eq!(results(cut[..4].to_owned()), []);
    }

    #[test]
    fn the_error_for_an_invalid_line_names_it() {
        let Err(Failure::Failed(reason)) = read(Path::new("x.jsonl"), "{}\n") else {
            panic!("the line is refused");
        };
        assert!(reason.starts_with("x.jsonl, line 1: "), "{reason}");
    }
}
