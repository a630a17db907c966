//! Measures the proposing of drafts from a row's text of 32,768 tokens: the time of a proposal and of a token that is
//! added, and the bytes of the index.
//!
//! ```text
//! cargo bench --bench drafts
//! ```
//!
//! The texts are this repository's: documents, sources, and a file that is written again. Their tokens are words,
//! single signs and runs of spaces.

#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::collections::HashMap;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use souffleur::state::speculation::{MatchFinder, Proposer, TextLimits, TextProposer};

const PROMPT_TOKENS: usize = 32_768;
const OUTPUT_TOKENS: usize = 2048;
const MAX_DRAFTS: usize = 7;
const MAX_MATCH: usize = 12;
/// A fast step of a small model, of which a proposal must take less than 1 %.
const STEP: Duration = Duration::from_millis(5);

fn main() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let documents = tokens(&[root.join("docs"), root.join("ARCHITECTURE.md")])?;
    let sources = tokens(&[root.join("src/state"), root.join("src/actors")])?;
    println!("text             ns/proposal  ns/token  drafts accepted  bytes of index/token");
    let (prompt, output) = split(&documents)?;
    measure("documents", prompt, output);
    let (prompt, output) = split(&sources)?;
    measure("sources", prompt, output);
    measure(
        "a copied source",
        prompt,
        &prompt[1000..1000 + OUTPUT_TOKENS],
    );
    let same = vec![1; PROMPT_TOKENS];
    measure("one token", &same, &same[..OUTPUT_TOKENS]);
    Ok(())
}

/// The first tokens, and those after them.
fn split(tokens: &[u32]) -> anyhow::Result<(&[u32], &[u32])> {
    let n_tokens = tokens.len();
    ensure!(
        n_tokens >= PROMPT_TOKENS + OUTPUT_TOKENS,
        "a text has only {n_tokens} tokens"
    );
    let (prompt, rest) = tokens.split_at(PROMPT_TOKENS);
    Ok((prompt, &rest[..OUTPUT_TOKENS]))
}

/// The texts of files and folders as ids of words.
fn tokens(paths: &[impl AsRef<Path>]) -> anyhow::Result<Vec<u32>> {
    let mut text = String::new();
    for path in paths {
        read(path.as_ref(), &mut text)?;
    }
    let mut ids = HashMap::new();
    let mut id = |word: &str| {
        let next = ids.len() as u32;
        *ids.entry(word.to_owned()).or_insert(next)
    };
    let mut tokens = Vec::new();
    let mut start = 0;
    let mut kind = ' ';
    for (at, letter) in text.char_indices() {
        let this = match letter {
            ' ' | '\n' => ' ',
            _ if letter.is_alphanumeric() => 'a',
            _ => '.',
        };
        if at > start && (this != kind || this == '.') {
            tokens.push(id(&text[start..at]));
            start = at;
        }
        kind = this;
    }
    Ok(tokens)
}

/// Appends the texts of a file, or of the files in a folder by their names.
fn read(path: &Path, text: &mut String) -> anyhow::Result<()> {
    if !path.is_dir() {
        let extension = path.extension().unwrap_or_default();
        if extension == "rs" || extension == "md" {
            *text += &fs::read_to_string(path).with_context(|| path.display().to_string())?;
        }
        return Ok(());
    }
    let entries = fs::read_dir(path).with_context(|| path.display().to_string())?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry?.path());
    }
    paths.sort();
    paths.iter().try_for_each(|path| read(path, text))
}

/// Proposes after each token of an output as a greedy decode would: accepted drafts are added at once.
fn measure(name: &str, prompt: &[u32], output: &[u32]) {
    let limits = TextLimits {
        own_tokens: prompt.len() + output.len(),
        other_tokens: 0,
        max_match: MAX_MATCH,
        n_ids: u32::MAX,
    };
    let started = Instant::now();
    let mut proposer = TextProposer::new(prompt, &[], limits);
    let per_token = started.elapsed().as_nanos() / prompt.len() as u128;
    let mut drafts = Vec::with_capacity(MAX_DRAFTS);
    let (mut n_proposals, mut n_accepted) = (0_u32, 0);
    let mut proposing = Duration::ZERO;
    let mut rest = output;
    while !rest.is_empty() {
        drafts.clear();
        let started = Instant::now();
        black_box(proposer.propose(MAX_DRAFTS, &mut drafts));
        proposing += started.elapsed();
        n_proposals += 1;
        let pairs = drafts.iter().zip(rest);
        let accepted = pairs.take_while(|(draft, token)| draft == token).count();
        n_accepted += accepted;
        let (taken, left) = rest.split_at(rest.len().min(accepted + 1));
        proposer.extend(taken);
        rest = left;
    }
    let proposal = proposing / n_proposals;
    let finder = MatchFinder::new(limits.own_tokens, MAX_MATCH, limits.n_ids);
    let bytes = finder.index_bytes() as f64 / limits.own_tokens as f64;
    let share = 100.0 * proposal.as_secs_f64() / STEP.as_secs_f64();
    println!(
        "{name:16} {:>11}  {per_token:>8}  {n_accepted:>6} of {:<5}  {bytes:.1}; {share:.3} % of {STEP:?}",
        proposal.as_nanos(),
        output.len(),
    );
}
