//! The rows of the bench's table: a load or start, its samples, and each sample as a fraction of its floor.

use serde::Serialize;

use crate::cli::bench::offline::load::Load;
use crate::cli::statistics::Quartiles;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    #[serde(rename = "tokens/s")]
    TokensPerSecond,
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "bytes")]
    Bytes,
    /// A share of the time; smaller is better.
    #[serde(rename = "share")]
    Share,
}

/// One measurement, and the machine's limit at that time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    pub value: f64,
    /// The machine's limit in the row's unit, if there is one: the highest rate or the lowest cost.
    pub floor: Option<f64>,
    /// How close the value comes to the floor; 1 is the limit of the machine.
    pub fraction: Option<f64>,
    /// The machine's read bandwidth just before the measurement.
    pub read_bytes_per_s: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub unit: Unit,
    #[serde(flatten)]
    pub load: Option<Load>,
    pub samples: Vec<Sample>,
    #[serde(flatten)]
    pub quartiles: Quartiles,
    pub floor: Option<f64>,
    pub fraction: Option<Quartiles>,
}

impl Sample {
    /// A sample of a cost, for which smaller is better.
    pub fn of_cost(value: f64, floor: Option<f64>) -> Self {
        Self {
            value,
            floor,
            fraction: floor.map(|floor| floor / value),
            read_bytes_per_s: None,
        }
    }
}

impl Row {
    pub fn new(name: String, unit: Unit, load: Option<Load>, samples: Vec<Sample>) -> Option<Self> {
        let all = |of: fn(&Sample) -> Option<f64>| -> Option<Quartiles> {
            Quartiles::of(&samples.iter().filter_map(of).collect::<Vec<_>>())
        };
        Some(Self {
            quartiles: all(|sample| Some(sample.value))?,
            floor: all(|sample| sample.floor).map(|floors| floors.median),
            fraction: all(|sample| sample.fraction),
            name,
            unit,
            load,
            samples,
        })
    }

    /// The row's cells: name, unit, median, quartiles, machine limit, efficiency.
    pub fn cells(&self) -> Vec<String> {
        let shown = |value: f64| self.unit.show(value);
        let Quartiles {
            lower,
            median,
            upper,
        } = self.quartiles;
        let percent = |fraction: Quartiles| format!("{:.1} %", 100.0 * fraction.median);
        vec![
            self.name.clone(),
            self.unit.name().to_owned(),
            shown(median),
            format!("{} to {}", shown(lower), shown(upper)),
            self.floor.map_or("-".to_owned(), shown),
            self.fraction.map_or("-".to_owned(), percent),
        ]
    }
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::TokensPerSecond => "tokens/s",
            Self::Seconds => "s",
            Self::Bytes => "MiB",
            Self::Share => "%",
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Self::TokensPerSecond if value >= 100.0 => format!("{value:.0}"),
            Self::TokensPerSecond => format!("{value:.1}"),
            Self::Seconds => format!("{value:.4}"),
            Self::Bytes => format!("{:.0}", value / f64::from(1 << 20)),
            Self::Share => format!("{:.2}", 100.0 * value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fraction_of_a_cost_is_the_floor_divided_by_the_value() {
        let sample = Sample::of_cost(4.0, Some(1.0));
        assert_eq!(sample.fraction, Some(0.25));
        assert_eq!(Sample::of_cost(4.0, None).fraction, None);
    }

    #[test]
    fn a_row_shows_medians_and_its_json_keeps_every_sample() {
        let load = Load {
            streams: 8,
            prompt_tokens: 64,
            output_tokens: 128,
        };
        let rate = |value: f64| Sample {
            value,
            floor: Some(200.0),
            fraction: Some(value / 200.0),
            read_bytes_per_s: Some(1e9),
        };
        let samples = vec![rate(50.0), rate(150.0), rate(100.0)];
        let row = Row::new(load.name(), Unit::TokensPerSecond, Some(load), samples);
        let row = row.expect("the row has samples");
        assert_eq!(
            row.cells(),
            [
                "8 concurrent streams together, 128 tokens each after prompts of 64",
                "tokens/s",
                "100",
                "75.0 to 125",
                "200",
                "50.0 %",
            ]
        );
        let json = serde_json::to_value(&row).expect("plain data");
        assert_eq!(json["median"], 100.0);
        assert_eq!(json["streams"], 8);
        assert_eq!(json["unit"], "tokens/s");
        assert_eq!(json["samples"].as_array().map(Vec::len), Some(3));
        assert!(Row::new("x".to_owned(), Unit::Bytes, None, Vec::new()).is_none());
    }

    #[test]
    fn a_row_without_a_floor_shows_dashes() {
        let samples = vec![Sample::of_cost(f64::from(3 << 20), None)];
        let row = Row::new("memory".to_owned(), Unit::Bytes, None, samples).expect("a sample");
        assert_eq!(row.cells(), ["memory", "MiB", "3", "3 to 3", "-", "-"]);
    }
}
