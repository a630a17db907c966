//! Prints one table: this engine's times, the peers' times, and what was faster: kv-index, TGI (scaled) or the goal.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::clock::Times;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    Match,
    MatchDeep,
    MatchCold,
    Lock,
    Insert,
    InsertHalf,
    Split,
    EvictLeaf,
    EvictFree,
    EvictHalf,
    Cycle,
    Admission,
    Step,
    StepPaged,
    StepActors,
    StepChurn,
}

impl Operation {
    fn label(self) -> &'static str {
        match self {
            Self::Match => "match, full hit",
            Self::MatchDeep => "match over 32 nodes",
            Self::MatchCold => "match, leaves at random",
            Self::Lock => "match, lock, unlock",
            Self::Insert => "insert",
            Self::InsertHalf => "insert, half shared (splits)",
            Self::Split => "split",
            Self::EvictLeaf => "evict one leaf, one call",
            Self::EvictFree => "evict one leaf, pages to the pool",
            Self::EvictHalf => "evict half in bulk, per node",
            Self::Cycle => "match, evict 64 tokens, insert",
            Self::Admission => "admit one request",
            Self::Step => "step, decode, page 1",
            Self::StepPaged => "step, decode, page 16",
            Self::StepActors => "step, decode, page 1, as actors",
            Self::StepChurn => "step, requests of 64 tokens come and go",
        }
    }

    /// The goal for this engine's time, in microseconds.
    fn goal_us(self, size: &str) -> Option<f64> {
        match (self, size) {
            (Self::Match, "1k tokens") => Some(0.3),
            (Self::Match, "32k tokens") => Some(6.0),
            (Self::Match, "1e5 leaves") => Some(0.5),
            (Self::Insert, "1e5 leaves") => Some(0.3),
            (Self::EvictLeaf, size) if size.ends_with("leaves") => Some(0.1),
            (Self::Admission, _) => Some(20.0),
            (Self::Step | Self::StepActors, "batch 256") => Some(15.0),
            (Self::Step | Self::StepActors, "batch 1024") => Some(60.0),
            _ => None,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Row {
    operation: Operation,
    size: String,
    souffleur_us: Option<f64>,
    souffleur_least_us: Option<f64>,
    kv_index_us: Option<f64>,
    kv_index_least_us: Option<f64>,
    /// The peers' times in an earlier run, from `peers.json`.
    then: Option<Figures>,
    /// Text Generation Inference's earlier time, scaled by kv-index's time now over its earlier time.
    tgi_scaled_us: Option<f64>,
    wish_us: Option<f64>,
    /// Which of kv-index, TGI (scaled) and the goal (`wish`) are faster; times of another day are not compared.
    missed: Vec<&'static str>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Figures {
    operation: Operation,
    size: String,
    sglang_python: Option<f64>,
    sglang_rust: Option<f64>,
    tgi: Option<f64>,
    kv_index: Option<f64>,
    vllm: Option<f64>,
}

#[derive(Deserialize)]
struct Peers {
    figures: Vec<Figures>,
}

const PEERS: &str = include_str!("peers.json");

impl Row {
    /// Makes a row from the times of this engine's tree and of kv-index, and prints the row to stderr.
    pub fn new(operation: Operation, size: &str, times: [Option<Times>; 2]) -> Self {
        let [ours, peer] = times;
        let row = Self {
            operation,
            size: size.to_owned(),
            souffleur_us: ours.as_ref().map(Times::median_us),
            souffleur_least_us: ours.as_ref().map(Times::least_us),
            kv_index_us: peer.as_ref().map(Times::median_us),
            kv_index_least_us: peer.as_ref().map(Times::least_us),
            then: None,
            tgi_scaled_us: None,
            wish_us: operation.goal_us(size),
            missed: Vec::new(),
        };
        eprintln!("{}", row.line());
        row
    }

    fn compare(&mut self, peers: &Peers) {
        let is_same = |then: &&Figures| then.operation == self.operation && then.size == self.size;
        self.then = peers.figures.iter().find(is_same).cloned();
        if let Some(then) = &self.then
            && let (Some(tgi), Some(before), Some(now)) =
                (then.tgi, then.kv_index, self.kv_index_us)
        {
            self.tgi_scaled_us = Some(tgi * now / before);
        }
        let limits = [
            ("kv-index", self.kv_index_us),
            ("TGI", self.tgi_scaled_us),
            ("wish", self.wish_us),
        ];
        if let Some(ours) = self.souffleur_us {
            let missed = limits
                .iter()
                .filter(|(_, limit)| limit.is_some_and(|limit| ours > limit));
            self.missed = missed.map(|(name, _)| *name).collect();
        }
    }

    fn line(&self) -> String {
        let then = self.then.as_ref();
        let cells = [
            self.souffleur_us,
            self.kv_index_us,
            self.tgi_scaled_us,
            then.and_then(|then| then.tgi),
            then.and_then(|then| then.kv_index),
            then.and_then(|then| then.sglang_rust),
            then.and_then(|then| then.sglang_python),
            then.and_then(|then| then.vllm),
            self.wish_us,
        ];
        let mut line = format!("| {} | {} |", self.operation.label(), self.size);
        for cell in cells {
            let text = cell.map(rounded).unwrap_or_default();
            let _ = write!(line, " {text} |");
        }
        let _ = write!(line, " {} |", self.missed.join(", "));
        line
    }
}

#[derive(Serialize)]
pub struct Report {
    origin_of_then: serde_json::Value,
    rows: Vec<Row>,
    pub memory: Vec<crate::memory::Memory>,
}

impl Report {
    /// Compares the measurements with the figures of the peers.
    pub fn new(mut rows: Vec<Row>, memory: Vec<crate::memory::Memory>) -> serde_json::Result<Self> {
        let peers: Peers = serde_json::from_str(PEERS)?;
        let mut all: serde_json::Value = serde_json::from_str(PEERS)?;
        rows.iter_mut().for_each(|row| row.compare(&peers));
        Ok(Self {
            origin_of_then: all["origin"].take(),
            rows,
            memory,
        })
    }

    pub fn table(&self) -> String {
        let mut table = String::from(
            "Microseconds, medians of one run; \"then\": another run, another day.\n\n\
             | operation | size | Souffleur | kv-index | TGI scaled | TGI then | kv-index then | SGLang Rust then \
             | SGLang Python then | vLLM then | wish | missed |\n\
             |---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n",
        );
        for row in &self.rows {
            let _ = writeln!(table, "{}", row.line());
        }
        if !self.memory.is_empty() {
            table.push_str(
                "\n| memory after a long run | tokens cached | nodes | bytes a token |\n|---|--:|--:|--:|\n",
            );
        }
        for memory in &self.memory {
            let _ = writeln!(table, "{}", memory.line());
        }
        table
    }
}

fn rounded(us: f64) -> String {
    match us {
        100.0.. => format!("{us:.0}"),
        10.0.. => format!("{us:.1}"),
        1.0.. => format!("{us:.2}"),
        _ => format!("{us:.3}"),
    }
}
