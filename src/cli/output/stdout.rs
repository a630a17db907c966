//! Prints lines to stdout, ignoring errors.

use std::fmt::Display;
use std::io::Write;

pub fn say(line: impl Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
