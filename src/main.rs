//! bin
mod cli;
mod server_config;
mod settings;
fn main() {}
