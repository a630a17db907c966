//! The output of commands: lines, tables, JSON records.

pub mod record;
mod stdout;
pub mod table;

pub use stdout::say;
