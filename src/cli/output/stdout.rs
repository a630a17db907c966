//! Lines on stdout.

use std::fmt::Display;
use std::io::Write;

/// Writes a line to stdout. A reader that went away is no reason to stop.
pub fn say(line: impl Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
