//! Tests of `souffleur plan --table`.

use std::fs;
use std::path::Path;
use std::process::Output;

use super::{run, souffleur, stderr, stdout, tiny_model};

const BEGIN: &str = "<!-- souffleur plan --table -->\n\n";
const END: &str = "\n<!-- end -->";

fn table(flags: &[&str]) -> Output {
    run(&[&["plan", "--table"], flags].concat())
}

/// The lines of the table that does not depend on the machine.
fn lines(flags: &[&str]) -> Vec<String> {
    let output = table(flags);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let lines = text.lines().skip_while(|line| !line.starts_with('|'));
    let lines = lines.take_while(|line| line.starts_with('|'));
    lines.map(str::to_owned).collect()
}

/// The rows of the table: the cells of each.
fn rows(flags: &[&str]) -> Vec<Vec<String>> {
    let rows = lines(flags).into_iter().skip(2);
    rows.map(|line| {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    })
    .collect()
}

/// A column of sizes in GiB.
fn numbers(rows: &[Vec<String>], column: usize) -> Vec<f64> {
    let cells = rows.iter().map(|row| row[column].parse());
    cells.map(|number| number.expect("a number")).collect()
}

#[test]
fn the_table_in_the_documents_is_the_output() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/models.md");
    let text = fs::read_to_string(path).expect("the document exists");
    let (_, rest) = text.split_once(BEGIN).expect("a begin");
    let (documented, _) = rest.split_once(END).expect("an end");
    let documented: Vec<&str> = documented.lines().collect();
    assert_eq!(
        documented,
        lines(&[]),
        "copy the table of `souffleur plan --table` into docs/models.md"
    );
}

#[test]
fn the_table_fits_into_a_terminal_and_is_sorted_by_memory() {
    let text = stdout(&table(&[]));
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    let rows = rows(&[]);
    let memory = numbers(&rows, 2);
    assert!(memory.is_sorted(), "{memory:?}");
    let files = numbers(&rows, 1);
    for ((row, file), memory) in rows.iter().zip(files).zip(memory) {
        assert!(file < memory, "{row:?}");
        let fits: Vec<bool> = row[3..].iter().map(|tokens| tokens != "-").collect();
        assert!(fits.is_sorted(), "{row:?}");
    }
}

#[test]
fn other_flags_change_the_table() {
    let memory = |flags: &[&str]| numbers(&rows(flags), 2);
    let default = memory(&[]);
    let smaller = memory(&["--kv-cache-dtype", "int8", "--chunked-prefill-size", "256"]);
    let larger = memory(&["--max-total-tokens", "65536"]);
    for ((default, smaller), larger) in default.iter().zip(&smaller).zip(&larger) {
        assert!(smaller < default && default < larger);
    }
    let short = rows(&["--context-length", "1000000"]);
    assert_eq!(short, rows(&[]), "the context of a model limits it");
}

#[test]
fn a_model_and_a_gpu_are_refused() {
    let model = tiny_model();
    let model = model.to_string_lossy();
    for flags in [&[&*model][..], &["--model-path", &model]] {
        let output = table(flags);
        assert_eq!(output.status.code(), Some(2));
        let error = stderr(&output);
        let is_named = error.contains("--table") && error.contains("cannot be used with");
        assert!(is_named, "{error}");
    }
    let output = table(&["--device", "cuda"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("add --device cpu"));
}

/// A server's environment may name a model.
#[test]
fn the_table_needs_neither_files_nor_a_network() {
    let home = tempfile::tempdir().expect("temporary folder");
    let mut command = souffleur(&["plan", "--table"]);
    command
        .env("HF_HOME", home.path().join("hub"))
        .env("SOUFFLEUR_CACHE_DIR", home.path().join("cache"))
        .env("SOUFFLEUR_MODEL_PATH", "owner/missing");
    let output = command.output().expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let written = fs::read_dir(home.path())
        .expect("the folder exists")
        .count();
    assert_eq!(written, 0);
}
