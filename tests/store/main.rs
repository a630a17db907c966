//! The KV store on a real disk, whose process is killed at any moment.
//!
//! `SOUFFLEUR_STORE_KILLS` says how often (6 otherwise), `SOUFFLEUR_STORE_SEED` which moments (the same ones otherwise).

mod kills;
mod world;
