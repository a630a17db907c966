//! What commands print and write: lines, tables, records.

pub mod record;
mod stdout;
pub mod table;

pub use stdout::say;
