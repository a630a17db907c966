#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod limits;
mod picture;
mod processor;
mod read;
mod resample;
#[cfg(test)]
mod tests;

pub use limits::{ImageError, Kind, Limits};
pub use picture::{Orientation, Picture};
pub use processor::{
    Gemma3, Gemma4, Grid, Layout, Lfm2, MmprojSettings, Normalisation, Order, Part, Patches,
    Pixtral, Prepared, Processor, Qwen, SettingsError, View,
};
pub use read::{Header, inspect, kind_of, read};
pub use resample::{Filter, resize};
