//! The KV store on a real disk, in a process that is killed at any moment.
//!
//! `SOUFFLEUR_STORE_KILLS` sets the number of kills (default 6), `SOUFFLEUR_STORE_SEED` the moments (fixed by default).

mod kills;
mod world;
