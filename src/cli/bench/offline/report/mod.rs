//! The offline benchmark's reports: a JSON record, tables and a plot.

pub mod plot;
pub mod record;
pub mod rows;
pub mod scaling;
pub mod tables;
