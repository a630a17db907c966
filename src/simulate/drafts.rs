//! The drafts of decodes as they were measured: the JSON of `souffleur bench --taught`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use fastrand::Rng;
use serde::Deserialize;

use super::SimulateError;
use souffleur_state::speculation::MAX_ROOM;

/// The largest file. A cell has a few kilobytes.
const MAX_FILE_BYTES: u64 = 1 << 26;
const SCHEMA: &str = "souffleur-bench-taught/1";
/// The kinds that an error lists.
const MAX_LISTED: usize = 32;

/// How many decodes had how many drafts, and how many of these were accepted. Decodes without drafts are included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftHistogram {
    /// In ascending order of drafts, then of accepted ones; at least one.
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    drafts: u32,
    accepted: u32,
    /// The decodes of this entry and all before it.
    n_up_to: u64,
}

#[derive(Deserialize)]
struct Record {
    schema: String,
    cells: Vec<Cell>,
}

#[derive(Deserialize)]
struct Cell {
    kind: String,
    /// Drafts, accepted ones, number of decodes. Missing in files of versions before this key.
    #[serde(default)]
    decodes: Vec<(u32, u32, u64)>,
}

impl DraftHistogram {
    /// Reads the decodes of this kind of texts, or of all kinds, from the JSON of `souffleur bench --taught`. The cells of
    /// all contexts and numbers of streams are merged.
    ///
    /// # Errors
    /// The file cannot be read, is too large or malformed, or has no such decodes; the kind is unknown.
    pub fn read(file: &Path, kind: Option<&str>) -> Result<Self, SimulateError> {
        let failed = |error: std::io::Error| SimulateError::file(file, error);
        let mut text = Vec::new();
        // A device or pipe has no length.
        let mut start = File::open(file).map_err(failed)?.take(MAX_FILE_BYTES + 1);
        start.read_to_end(&mut text).map_err(failed)?;
        if text.len() as u64 > MAX_FILE_BYTES {
            let reason = format!("has more than {MAX_FILE_BYTES} bytes, the limit");
            return Err(SimulateError::file(file, reason));
        }
        Self::parse(file, &text, kind)
    }

    /// Like [`Self::read`], from the text; `file` is only used in errors.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(file: &Path, text: &[u8], kind: Option<&str>) -> Result<Self, SimulateError> {
        let record: Record = serde_json::from_slice(text).map_err(|error| {
            let reason = format!("{error}: expected the JSON of souffleur bench --taught");
            SimulateError::file(file, reason)
        })?;
        if record.schema != SCHEMA {
            let reason = format!("schema is {:?}, must be {SCHEMA:?}", record.schema);
            return Err(SimulateError::file(file, reason));
        }
        if let Some(kind) = kind {
            check_kind(kind, &record.cells)?;
        }
        let is_chosen = |cell: &&Cell| kind.is_none_or(|kind| kind == cell.kind);
        let mut counts: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        let mut total = 0_u64;
        for cell in record.cells.iter().filter(is_chosen) {
            for &(drafts, accepted, n_decodes) in &cell.decodes {
                check_decode(drafts, accepted)
                    .map_err(|reason| SimulateError::file(file, reason))?;
                let sum = total.checked_add(n_decodes);
                total = sum.ok_or_else(|| SimulateError::file(file, "counts 2^64 decodes"))?;
                *counts.entry((drafts, accepted)).or_default() += n_decodes;
            }
        }
        if total == 0 {
            let reason =
                "has no decodes with room for drafts: measure with souffleur bench --taught again";
            return Err(SimulateError::file(file, reason));
        }
        Ok(Self::of(&counts))
    }

    /// The histogram of counts by drafts and accepted ones, whose sum is above 0 and below 2^64.
    fn of(counts: &BTreeMap<(u32, u32), u64>) -> Self {
        let mut n_up_to = 0_u64;
        let counts = counts.iter().filter(|(_, n_decodes)| **n_decodes > 0);
        let entries = counts.map(|(&(drafts, accepted), n_decodes)| {
            n_up_to += n_decodes;
            Entry {
                drafts,
                accepted,
                n_up_to,
            }
        });
        Self {
            entries: entries.collect(),
        }
    }

    /// The most drafts of a decode.
    pub fn most_drafts(&self) -> u32 {
        self.entries.last().map_or(0, |entry| entry.drafts)
    }

    /// Draws a decode: its drafts, and how many of them are accepted.
    pub(super) fn draw(&self, random: &mut Rng) -> (u32, u32) {
        let total = self.entries.last().map_or(0, |entry| entry.n_up_to);
        let drawn = random.u64(0..total.max(1));
        let index = self.entries.partition_point(|entry| entry.n_up_to <= drawn);
        let entry = self.entries.get(index);
        entry.map_or((0, 0), |entry| (entry.drafts, entry.accepted))
    }
}

/// Refuses a kind that no cell has.
fn check_kind(kind: &str, cells: &[Cell]) -> Result<(), SimulateError> {
    let known: BTreeSet<&str> = cells.iter().map(|cell| cell.kind.as_str()).collect();
    if known.contains(kind) {
        return Ok(());
    }
    let listed: Vec<&str> = known.into_iter().take(MAX_LISTED).collect();
    let reason = format!("is {kind:?}, must be one of {}", listed.join(", "));
    Err(SimulateError::value("drafts_kind", reason))
}

fn check_decode(drafts: u32, accepted: u32) -> Result<(), String> {
    if drafts >= MAX_ROOM {
        let most = MAX_ROOM - 1;
        return Err(format!(
            "has a decode with {drafts} drafts, must be at most {most}"
        ));
    }
    if accepted > drafts {
        return Err(format!(
            "has a decode with {accepted} accepted drafts, must be at most its {drafts} drafts"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shortened record of the bench: two cells of one kind, and one of another.
    const RECORD: &str = r#"{"schema": "souffleur-bench-taught/1", "version": "0.1.0", "date": "2026-12-01",
        "model": "m", "dtype": "bfloat16", "quantization": "none", "threads": 2, "kernel_path": "avx512_bf16",
        "texts": "texts.jsonl", "seed": 0, "output_tokens": 512, "cells": [
        {"kind": "edit", "context_tokens": 0, "streams": 1, "plain": [20.0], "plain_again": [20.1],
         "drafts": [80.0], "timed_tokens": 900, "rows": 40, "drafted": 210, "accepted": 140,
         "decodes": [[0, 0, 10], [7, 0, 10], [7, 7, 20]],
         "ratio": {"median": 4.0, "lower": 3.9, "upper": 4.1}},
        {"kind": "edit", "context_tokens": 8192, "streams": 1, "plain": [], "plain_again": [], "drafts": [],
         "timed_tokens": 0, "rows": 10, "drafted": 35, "accepted": 21, "decodes": [[0, 0, 5], [7, 4, 4], [7, 5, 1]]},
        {"kind": "json", "context_tokens": 0, "streams": 1, "plain": [], "plain_again": [], "drafts": [],
         "timed_tokens": 0, "rows": 9, "drafted": 9, "accepted": 0, "decodes": [[1, 0, 9]]}], "skipped": []}"#;

    fn parse(text: &str, kind: Option<&str>) -> Result<DraftHistogram, String> {
        let parsed = DraftHistogram::parse(Path::new("taught.json"), text.as_bytes(), kind);
        parsed.map_err(|error| error.to_string())
    }

    fn histogram(counts: &[(u32, u32, u64)]) -> DraftHistogram {
        let counts = counts
            .iter()
            .map(|(drafts, accepted, n)| ((*drafts, *accepted), *n));
        DraftHistogram::of(&counts.collect())
    }

    #[test]
    fn cells_of_a_kind_are_merged() {
        let edits = [(0, 0, 15), (7, 0, 10), (7, 4, 4), (7, 5, 1), (7, 7, 20)];
        assert_eq!(parse(RECORD, Some("edit")), Ok(histogram(&edits)));
        let json = histogram(&[(1, 0, 9)]);
        assert_eq!(json.most_drafts(), 1);
        assert_eq!(parse(RECORD, Some("json")), Ok(json));
        let all = parse(RECORD, None).expect("it is valid");
        assert_eq!((all.entries.len(), all.most_drafts()), (6, 7));
        assert_eq!(all.entries[5].n_up_to, 59);
    }

    #[test]
    fn draws_are_as_frequent_as_the_counts() {
        let histogram = histogram(&[(0, 0, 1), (3, 1, 2), (3, 3, 1)]);
        let mut random = Rng::with_seed(1);
        let mut counts: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for _ in 0..4000 {
            *counts.entry(histogram.draw(&mut random)).or_default() += 1;
        }
        for (decode, expected) in [((0, 0), 1000), ((3, 1), 2000), ((3, 3), 1000_u32)] {
            let found = counts.get(&decode).copied().unwrap_or(0);
            assert!(found.abs_diff(expected) < 150, "{decode:?} {found}");
        }
        assert_eq!(counts.len(), 3);
    }

    #[test]
    fn wrong_files_and_kinds_are_refused() {
        let refusal = |text: &str, kind| parse(text, kind).expect_err("it is wrong");
        assert_eq!(
            refusal(RECORD, Some("prose")),
            "drafts_kind is \"prose\", must be one of edit, json"
        );
        let with = |decode: &str| refusal(&RECORD.replace("[1, 0, 9]", decode), None);
        assert_eq!(
            with("[64, 0, 9]"),
            "taught.json: has a decode with 64 drafts, must be at most 63"
        );
        assert_eq!(
            with("[3, 4, 9]"),
            "taught.json: has a decode with 4 accepted drafts, must be at most its 3 drafts"
        );
        let most = with(&format!("[1, 0, {}]", u64::MAX));
        assert_eq!(most, "taught.json: counts 2^64 decodes");
        for wrong in ["[1, 0]", "[1, 0, -1]", "\"many\""] {
            let reason = with(wrong);
            assert!(reason.contains("the JSON of souffleur bench"), "{reason}");
        }
        for empty in [
            RECORD.replace("\"decodes\"", "\"earlier\""),
            RECORD.replace("[1, 0, 9]", "[1, 0, 0]"),
        ] {
            let reason = refusal(&empty, Some("json"));
            assert!(reason.contains("has no decodes"), "{reason}");
        }
        let other = refusal(&RECORD.replace("taught/1", "taught/2"), None);
        assert!(
            other.contains("schema is \"souffleur-bench-taught/2\""),
            "{other}"
        );
    }
}
