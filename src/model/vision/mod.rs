//! Vision towers: the encoders that turn an image's patches into vectors, which take the places of tokens' embeddings.
//!
//! [`TowerConfig`] has the sizes, from `config.json` or from the metadata of a GGUF file (mmproj), and the costs of an
//! encoding. [`TowerCheckpoint`] finds the tensors, [`Tower`] computes, and an [`Encoding`] is one image's state: it
//! advances by units (`cut`), so that other work can run between them. Images are read elsewhere.
//!
//! All towers are transformers in which every patch sees all patches of its image. They differ in norms, positions and
//! MLPs (`layer`, `positions`), and in how they reduce blocks of patches to vectors (`projector`).

mod checkpoint;
mod config;
mod cost;
mod cut;
mod deepstack;
mod encoding;
mod error;
mod from_gguf;
mod from_json;
mod image_keys;
mod layer;
mod loader;
mod names;
mod pairing;
mod parts;
mod positions;
mod projector;
mod search;
mod tower;

pub use checkpoint::TowerCheckpoint;
pub use config::{MAX_PATCHES, TowerConfig, TowerFamily};
pub use cut::UNIT_FLOPS;
pub use encoding::{Encoding, PatchesOf};
pub use error::TowerError;
pub use image_keys::ImageKeys;
pub use search::tower_next_to;
pub use souffleur_kernels::vision::PatchGrid as TowerGrid;
pub use tower::Tower;

#[cfg(test)]
mod tests;
