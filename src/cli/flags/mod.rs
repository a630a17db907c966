//! The command-line flags, one for each configuration key: `page_size` is `--page-size` and `SOUFFLEUR_PAGE_SIZE`.
//!
//! The flags are generated from the configuration types: name, help and type from the keys, the default from `Default`.

mod model;
mod section;

use std::path::PathBuf;

use clap::Args;
use souffleur::config::EngineConfig;
use souffleur::server::ServerConfig;

use crate::cli::settings::log::LogConfig;
pub use model::ModelArg;
pub use section::SectionFlags;

/// The file to read, and the flags of all sections.
#[derive(Args, Clone, Debug, Default)]
pub struct AllFlags {
    #[command(flatten)]
    pub model: ModelArg,
    /// TOML file with sections [engine], [server] and [log]; config/default.toml shows every key
    #[arg(
        long,
        value_name = "FILE",
        env = "SOUFFLEUR_CONFIG",
        hide_env_values = true
    )]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub engine: EngineFlags,
    #[command(flatten)]
    pub server: ServerFlags,
    #[command(flatten)]
    pub log: LogFlags,
}

/// The file to read, and the flags of an engine without a server.
#[derive(Args, Clone, Debug, Default)]
pub struct LocalFlags {
    /// TOML file with sections [engine], [server] and [log]; config/default.toml shows every key
    #[arg(
        long,
        value_name = "FILE",
        env = "SOUFFLEUR_CONFIG",
        hide_env_values = true
    )]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub engine: EngineFlags,
    #[command(flatten)]
    pub log: LogFlags,
}

impl From<LocalFlags> for AllFlags {
    fn from(flags: LocalFlags) -> Self {
        let LocalFlags {
            config,
            engine,
            log,
        } = flags;
        Self {
            config,
            engine,
            log,
            ..Self::default()
        }
    }
}

impl LocalFlags {
    pub fn with_model(&self, model: &ModelArg) -> AllFlags {
        AllFlags {
            model: model.clone(),
            ..self.clone().into()
        }
    }
}

pub type EngineFlags = SectionFlags<EngineConfig>;

pub type ServerFlags = SectionFlags<ServerConfig>;

pub type LogFlags = SectionFlags<LogConfig>;
