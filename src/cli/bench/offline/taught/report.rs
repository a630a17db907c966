//! The record and the table of `souffleur bench --taught`.

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};
use souffleur::engine::ModelInfo;
use souffleur::executor::taught::TaughtCounts;
use souffleur::kernels::dtype::Quantization;

use crate::cli::bench::offline::args::OfflineArgs;
use crate::cli::bench::offline::measure::streams::Decoded;
use crate::cli::bench::offline::subject::Subject;
use crate::cli::failure::Failure;
use crate::cli::output::record::date;
use crate::cli::output::{say, table};
use crate::cli::statistics::Quartiles;

/// How a load decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Plain,
    /// As `Plain`: the ratio of the two is the noise of the ratios.
    PlainAgain,
    Drafts,
}

impl Mode {
    pub const COUNT: usize = 3;
}

#[derive(Serialize)]
pub struct TaughtRecord {
    /// The name and version of this record format.
    schema: &'static str,
    version: &'static str,
    date: String,
    model: String,
    dtype: &'static str,
    quantization: &'static str,
    threads: usize,
    kernel_path: &'static str,
    texts: PathBuf,
    seed: u64,
    output_tokens: u32,
    pub cells: Vec<Cell>,
    pub skipped: Vec<String>,
}

/// The measurements of one kind of texts, prompt length and number of streams. Rates are in tokens a second of all
/// streams, with one entry for each round.
#[derive(Serialize)]
pub struct Cell {
    kind: String,
    context_tokens: u32,
    pub streams: u32,
    plain: Vec<f64>,
    plain_again: Vec<f64>,
    drafts: Vec<f64>,
    /// Tokens that the rates are of, all rounds and modes together.
    timed_tokens: u64,
    /// Rows of decodes that may have drafts, one for each stream and step.
    rows: u64,
    drafted: u64,
    accepted: u64,
    /// The same rows as a list of `[drafts, accepted drafts, number of rows]`, ascending and without zeros.
    #[serde(serialize_with = "triples")]
    decodes: TaughtCounts,
    #[serde(flatten)]
    summary: Option<Summary>,
}

/// Medians and quartiles; ratios are taken within each round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Summary {
    plain_per_s: Quartiles,
    drafts_per_s: Quartiles,
    ratio: Quartiles,
    plain_ratio: Quartiles,
}

fn triples<S: Serializer>(counts: &TaughtCounts, serializer: S) -> Result<S::Ok, S::Error> {
    let decodes = counts.decodes.iter();
    serializer.collect_seq(decodes.map(|((drafts, accepted), n)| (*drafts, *accepted, *n)))
}

impl TaughtRecord {
    pub fn new(
        args: &OfflineArgs,
        model: &ModelInfo,
        subject: &Subject,
        (texts, seed): (&Path, u64),
    ) -> Result<Self, Failure> {
        Ok(Self {
            schema: "souffleur-bench-taught/1",
            version: env!("CARGO_PKG_VERSION"),
            date: date(),
            model: model.served_model_name.clone(),
            dtype: subject.description.dtype.name(),
            quantization: subject.quantization.map_or("none", Quantization::name),
            threads: subject.device.threads(),
            kernel_path: subject.device.kernel_path()?,
            texts: texts.to_owned(),
            seed,
            output_tokens: args.output_tokens,
            cells: Vec::new(),
            skipped: Vec::new(),
        })
    }

    pub fn print(&self) {
        say(format_args!(
            "{}, {}, quantization {}, {} kernels, {} threads, {}\n",
            self.model, self.dtype, self.quantization, self.kernel_path, self.threads, self.date
        ));
        let header = [
            "texts",
            "context",
            "streams",
            "plain, tok/s",
            "quartiles",
            "drafts, tok/s",
            "quartiles",
            "ratio",
            "quartiles",
            "plain / plain",
            "timed tokens",
            "accepted",
            "tokens a step",
        ];
        let rows: Vec<_> = self.cells.iter().filter_map(Cell::row).collect();
        table::print(&header, &rows);
        say(
            "\nrates: medians over the rounds, of all streams, while all decode; ratio: drafts over plain in the same \
             round; timed tokens: those of the rates, in all; accepted: part of the drafts; tokens a step: of one \
             stream, with drafts",
        );
        if let Some((cell, ratio)) = self.least() {
            say(format_args!("least ratio: {ratio:.3}, {}", cell.name()));
        }
        if self.cells.iter().all(|cell| cell.rows == 0) {
            say("no step had room for drafts: increase --output-tokens or --max-total-tokens");
        }
        for skipped in &self.skipped {
            say(format_args!("\nskipped: {skipped}"));
        }
    }

    /// The cell of the least median ratio.
    fn least(&self) -> Option<(&Cell, f64)> {
        let ratios = self
            .cells
            .iter()
            .filter_map(|cell| Some((cell, cell.summary?.ratio.median)));
        ratios.min_by(|a, b| a.1.total_cmp(&b.1))
    }
}

impl Cell {
    pub fn new(kind: String, context_tokens: u32, streams: u32) -> Self {
        Self {
            kind,
            context_tokens,
            streams,
            plain: Vec::new(),
            plain_again: Vec::new(),
            drafts: Vec::new(),
            timed_tokens: 0,
            rows: 0,
            drafted: 0,
            accepted: 0,
            decodes: TaughtCounts::default(),
            summary: None,
        }
    }

    pub fn name(&self) -> String {
        let (kind, streams) = (&self.kind, self.streams);
        match self.context_tokens {
            0 => format!("{kind}, {streams} streams"),
            context => format!("{kind}, context {context}, {streams} streams"),
        }
    }

    /// Adds a round: what each [`Mode`] has decoded, and the drafts of the run with drafts. A round with an empty time
    /// is left out.
    pub fn add(&mut self, decoded: [Option<Decoded>; Mode::COUNT], counts: &TaughtCounts) {
        self.rows += counts.rows();
        self.drafted += counts.drafted();
        self.accepted += counts.accepted();
        self.decodes.add(counts);
        let [Some(plain), Some(plain_again), Some(drafts)] = decoded else {
            return;
        };
        let runs = [plain, plain_again, drafts];
        self.timed_tokens += runs.iter().map(|run| u64::from(run.tokens)).sum::<u64>();
        let [plain, plain_again, drafts] = runs.map(|run| f64::from(run.tokens) / run.seconds);
        self.plain.push(plain);
        self.plain_again.push(plain_again);
        self.drafts.push(drafts);
        self.summary = self.summarise();
    }

    /// `None` without rounds.
    fn summarise(&self) -> Option<Summary> {
        let ratios = |of: &[f64]| {
            let pairs = of.iter().zip(&self.plain);
            Quartiles::of(&pairs.map(|(rate, plain)| rate / plain).collect::<Vec<_>>())
        };
        Some(Summary {
            plain_per_s: Quartiles::of(&self.plain)?,
            drafts_per_s: Quartiles::of(&self.drafts)?,
            ratio: ratios(&self.drafts)?,
            plain_ratio: ratios(&self.plain_again)?,
        })
    }

    fn row(&self) -> Option<Vec<String>> {
        let summary = self.summary?;
        let spread = |of: Quartiles, digits: usize| {
            let Quartiles { lower, upper, .. } = of;
            format!("{lower:.digits$} to {upper:.digits$}")
        };
        let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        let accepted = share(self.accepted, self.drafted);
        let a_step = share(self.accepted, self.rows).map_or(1.0, |drafts| 1.0 + drafts);
        Some(vec![
            self.kind.clone(),
            self.context_tokens.to_string(),
            self.streams.to_string(),
            format!("{:.1}", summary.plain_per_s.median),
            spread(summary.plain_per_s, 1),
            format!("{:.1}", summary.drafts_per_s.median),
            spread(summary.drafts_per_s, 1),
            format!("{:.2}", summary.ratio.median),
            spread(summary.ratio, 2),
            format!("{:.2}", summary.plain_ratio.median),
            self.timed_tokens.to_string(),
            accepted.map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share)),
            format!("{a_step:.2}"),
        ])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn ratios_are_taken_within_rounds() {
        let mut cell = Cell::new("edit".to_owned(), 512, 4);
        assert_eq!(cell.row(), None);
        let counts = TaughtCounts {
            decodes: BTreeMap::from([((3, 2), 5), ((5, 4), 5)]),
        };
        let decoded = |tokens| {
            Some(Decoded {
                tokens,
                seconds: 2.0,
            })
        };
        cell.add([20, 22, 60].map(decoded), &counts);
        cell.add([40, 40, 40].map(decoded), &counts);
        let cut = [decoded(2), None, decoded(18)];
        cell.add(cut, &TaughtCounts::default());
        let row = cell.row().expect("it has rounds");
        assert_eq!(
            row,
            [
                "edit",
                "512",
                "4",
                "15.0",
                "12.5 to 17.5",
                "25.0",
                "22.5 to 27.5",
                "2.00",
                "1.50 to 2.50",
                "1.05",
                "222",
                "75 %",
                "4.00",
            ]
        );
        assert_eq!(cell.name(), "edit, context 512, 4 streams");
        let json = serde_json::to_value(&cell).expect("plain data");
        assert_eq!(json["ratio"]["median"], 2.0);
        assert_eq!(json["rows"], 20);
        let decodes = serde_json::json!([[3, 2, 10], [5, 4, 10]]);
        assert_eq!(json["decodes"], decodes);
        assert_eq!(json["plain"].as_array().map(Vec::len), Some(2));
    }
}
