//! The measurements as a record for programs, tables for people and a picture.

pub mod plot;
pub mod record;
pub mod rows;
pub mod scaling;
pub mod tables;
