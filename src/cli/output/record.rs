//! Writes records for programs: to stdout, or to a JSON file that appears complete or not at all.

use std::path::Path;

use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::stdout::say;
use crate::cli::failure::Failure;

/// Prints with `print`, and writes `record` to `json` if it is given; `-` is stdout, and nothing is printed.
pub fn publish(
    record: &impl Serialize,
    json: Option<&Path>,
    print: impl FnOnce(),
) -> Result<(), Failure> {
    match json {
        None => print(),
        Some(file) if file.as_os_str() == "-" => say(text(record)?),
        Some(file) => {
            print();
            write(file, &text(record)?)?;
        }
    }
    Ok(())
}

/// Writes the record so far, so that a stopped bench loses no measurements.
pub fn keep(record: &impl Serialize, json: Option<&Path>) -> Result<(), Failure> {
    match json {
        Some(file) if is_replaceable(file) => write(file, &text(record)?),
        _ => Ok(()),
    }
}

fn text(record: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(record).map_err(Failure::failed)
}

/// Whether another file may take this one's place: a pipe or a terminal is written to and never replaced.
fn is_replaceable(file: &Path) -> bool {
    match std::fs::symlink_metadata(file) {
        Ok(metadata) => metadata.is_file(),
        Err(_) => file.as_os_str() != "-",
    }
}

/// Writes a file, whole or not at all where it can be replaced.
fn write(file: &Path, text: &str) -> Result<(), Failure> {
    let text = format!("{text}\n");
    let written = if is_replaceable(file) {
        let mut part = file.as_os_str().to_owned();
        part.push(".part");
        std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, file))
    } else {
        std::fs::write(file, text)
    };
    written.map_err(|error| Failure::failed(format_args!("{}: {error}", file.display())))
}

pub fn date() -> String {
    let now = OffsetDateTime::now_utc();
    let now = now.replace_nanosecond(0).unwrap_or(now);
    now.format(&Rfc3339).unwrap_or_default()
}
