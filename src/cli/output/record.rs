//! Writes JSON records, to stdout or atomically to a file.

use std::path::Path;

use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::stdout::say;
use crate::cli::failure::Failure;

/// Calls `print`, and writes `record` to the file `json` if given. If `json` is `-`, only writes the record to stdout.
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

/// Writes the record so far, if `json` is a regular file, so that an interrupted bench loses no measurements.
pub fn save_progress(record: &impl Serialize, json: Option<&Path>) -> Result<(), Failure> {
    match json {
        Some(file) if is_replaceable(file) => write(file, &text(record)?),
        _ => Ok(()),
    }
}

fn text(record: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(record).map_err(Failure::failed)
}

/// True if a rename may replace the file: pipes and terminals are written to directly.
fn is_replaceable(file: &Path) -> bool {
    match std::fs::symlink_metadata(file) {
        Ok(metadata) => metadata.is_file(),
        Err(_) => file.as_os_str() != "-",
    }
}

/// Writes a file, atomically if it can be replaced.
fn write(file: &Path, text: &str) -> Result<(), Failure> {
    let text = format!("{text}\n");
    let written = if is_replaceable(file) {
        let mut part = file.as_os_str().to_owned();
        part.push(".part");
        std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, file))
    } else {
        std::fs::write(file, text)
    };
    written.map_err(Failure::to(format_args!("write {}", file.display())))
}

pub fn date() -> String {
    let now = OffsetDateTime::now_utc();
    let now = now.replace_nanosecond(0).unwrap_or(now);
    now.format(&Rfc3339).unwrap_or_default()
}
