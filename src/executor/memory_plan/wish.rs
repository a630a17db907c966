//! Inputs of a memory plan: the model's needs and the user's settings.

use super::windows::WindowRequest;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryWish {
    /// K/V of one token in all layers, in bytes (SGLang's cell size), except layers with window pages.
    pub kv_bytes_per_token: u64,
    /// The sliding-window layers, if there are any; a model with such layers has no states.
    pub windows: Option<WindowRequest>,
    /// States of one sequence in all layers, in bytes; 0 where no layer has one.
    pub state_bytes: u64,
    pub page_size: u32,
    /// Longest sequence of the model, in tokens.
    pub context_tokens: u64,
    /// Share of the memory free before loading that weights and KV pool take together.
    pub mem_fraction_static: Option<f64>,
    pub max_total_tokens: Option<u64>,
    pub max_running_requests: Option<u32>,
    /// Number of recurrent states, of running requests and cached prefixes together.
    pub max_states: Option<u64>,
    /// Whether prefixes are cached, together with their states.
    pub caches_prefixes: bool,
    /// Distance between the states that long prefills save, in tokens; 0 saves none at regular distances.
    pub state_interval_tokens: Option<usize>,
}
