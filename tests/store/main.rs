//! Tests of the KV store on a real disk, in a process that is killed at random moments.
//!
//! `SOUFFLEUR_STORE_KILLS` sets the number of kills (default 6), `SOUFFLEUR_STORE_SEED` the random seed (default 1).

mod kills;
mod world;
