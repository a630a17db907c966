#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod address;
mod data_url;
mod domains;
mod error;
mod fetch;
mod url;

pub use address::non_global_kind;
pub use data_url::{decode_base64, decode_data_url, is_data_url};
pub use domains::AllowedDomains;
pub use error::MediaError;
pub use fetch::{Connect, FetchLimits, Fetcher, Resolve};
pub use url::{Host, MediaUrl};
