//! Output of commands on stdout and to files: lines, tables and JSON records.

pub mod record;
mod stdout;
pub mod table;

pub use stdout::say;
