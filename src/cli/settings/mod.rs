//! Loads the configuration from defaults, a file, environment variables and flags.
//!
//! A later source wins, key by key; `SOUFFLEUR_LOG_LEVEL` wins over `RUST_LOG`. Errors name key, value and source.

pub mod log;

use std::path::Path;

use clap::Parser;
use figment::providers::{Format, Serialized, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use serde::{Deserialize, Serialize};
use souffleur::config::EngineConfig;
use souffleur::error::ConfigError;

use crate::cli::flags::{AllFlags, EngineFlags, LogFlags, ServerFlags};
use log::LogConfig;
use souffleur::server::ServerConfig;

const ENV_PREFIX: &str = "SOUFFLEUR_";
/// Variables with the prefix that are not configuration keys.
const OTHER_VARIABLES: [&str; 5] = [
    "CONFIG",
    "CACHE_DIR",
    "CPU_ISA",
    "NVRTC_DIR",
    "RADIX_TRACES",
];
const FLAG_SOURCE: &str = "flag";
const ENV_SOURCE: &str = "environment";
/// The usual variable for the log filter of Rust programs; also the name of this configuration source.
const RUST_LOG: &str = "RUST_LOG";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    pub engine: EngineConfig,
    pub server: ServerConfig,
    pub log: LogConfig,
}

/// An error of the configuration: one line with key, value and source.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(String);

impl Settings {
    /// Reads all sources. Also returns warnings, to be logged once the log is started.
    pub fn load(
        flags: &AllFlags,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(Self, Vec<String>), SettingsError> {
        let mut figment = Figment::from(Serialized::defaults(Self::default()));
        if let Some(file) = &flags.config {
            figment = figment.merge(toml_file(file)?);
        }
        let mut warnings = Vec::new();
        let environment: Vec<(String, String)> = environment.into_iter().collect();
        // RUST_LOG is merged first, so that this program's own variables override it in any order.
        if let Some((_, value)) = environment.iter().find(|(name, _)| name == RUST_LOG) {
            match log::of_rust_log(value) {
                Ok(None) => (),
                Ok(Some(log_level)) => {
                    let log = Dict::from([("log_level".to_owned(), log_level.into())]);
                    figment = figment.merge(Layer {
                        source: RUST_LOG,
                        sections: Dict::from([("log".to_owned(), log.into())]),
                    });
                }
                Err(warning) => warnings.push(warning),
            }
        }
        for (name, value) in environment {
            match env_layer(&name, &value)? {
                EnvVariable::Key(layer) => figment = figment.merge(layer),
                EnvVariable::Ignored(warning) => warnings.push(warning),
                EnvVariable::Foreign => (),
            }
        }
        figment = figment.merge(flag_layer(
            &flags.engine,
            &flags.server,
            &flags.log,
            FLAG_SOURCE,
        )?);
        let settings: Self = figment
            .extract()
            .map_err(|error| explain(&figment, error))?;
        let at = |section| {
            let figment = &figment;
            move |error: ConfigError| {
                let source = source_of(figment, &[section, &error.key]);
                SettingsError(format!("{source} {}", error.reason))
            }
        };
        settings.engine.validate().map_err(at("engine"))?;
        settings.server.validate().map_err(at("server"))?;
        settings.check_chaos().map_err(at("engine"))?;
        settings.check_ports().map_err(at("engine"))?;
        settings.log.filter().map_err(at("log"))?;
        Ok((settings, warnings))
    }

    /// Faults must not reach the clients of other machines by mistake.
    fn check_chaos(&self) -> Result<(), ConfigError> {
        let server = &self.server;
        if self.engine.chaos.is_empty() || server.chaos_force || server.is_on_loopback() {
            return Ok(());
        }
        Err(ConfigError {
            key: "chaos".to_owned(),
            reason: format!(
                "is given, but other machines can reach the server on {}: set --host to 127.0.0.1, or give \
                 --chaos-force",
                server.host
            ),
        })
    }

    /// The ports of KV events must not be those of the server, which it opens first.
    fn check_ports(&self) -> Result<(), ConfigError> {
        let Some(events) = self.engine.kv_events()? else {
            return Ok(());
        };
        let server = &self.server;
        let ports = [("port", Some(server.port)), ("grpc_port", server.grpc_port)];
        for (flag, port) in ports {
            let Some(port) = port else { continue };
            let replicas = self.engine.units();
            let Some(key) = events.key_of_port((server.host.as_str(), port), replicas) else {
                continue;
            };
            return Err(ConfigError {
                key: "kv_events_config".to_owned(),
                reason: format!(
                    "needs port {port} for {key}, as dp_size is {replicas}, but the server's {flag} is {port}: choose \
                     another {key}"
                ),
            });
        }
        Ok(())
    }
}

/// All keys with their sections and defaults.
pub fn keys() -> Vec<(String, String, serde_json::Value)> {
    let defaults = serde_json::to_value(Settings::default()).expect("plain data serializes");
    let sections = defaults.as_object().expect("settings are a map").iter();
    let keys = sections.flat_map(|(section, keys)| {
        let keys = keys.as_object().expect("a section is a map").iter();
        keys.map(|(key, default)| (section.clone(), key.clone(), default.clone()))
    });
    keys.collect()
}

fn toml_file(file: &Path) -> Result<figment::providers::Data<Toml>, SettingsError> {
    let shown = file.display();
    match std::fs::metadata(file) {
        Err(error) => Err(SettingsError(format!(
            "failed to read configuration file {shown}: {error}"
        ))),
        Ok(metadata) if !metadata.is_file() => Err(SettingsError(format!(
            "configuration file {shown} is not a regular file"
        ))),
        Ok(_) => Ok(Toml::file_exact(file)),
    }
}

/// The values of one source, by section.
struct Layer {
    source: &'static str,
    sections: Dict,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.source)
    }

    fn data(&self) -> figment::error::Result<Map<Profile, Dict>> {
        Ok(Profile::Default.collect(self.sections.clone()))
    }
}

fn flag_layer(
    engine: &EngineFlags,
    server: &ServerFlags,
    log: &LogFlags,
    source: &'static str,
) -> Result<Layer, SettingsError> {
    let given = |flags: serde_json::Result<serde_json::Value>| {
        let mut flags = flags
            .map_err(|error| SettingsError(format!("failed to read flags ({source}): {error}")))?;
        let keys = flags.as_object_mut().expect("flags are a map");
        keys.retain(|_, value| !value.is_null());
        Value::serialize(&flags)
            .map_err(|error| SettingsError(format!("failed to read flags ({source}): {error}")))
    };
    let sections = [
        ("engine", given(serde_json::to_value(engine))?),
        ("server", given(serde_json::to_value(server))?),
        ("log", given(serde_json::to_value(log))?),
    ];
    let sections = sections
        .into_iter()
        .map(|(name, keys)| (name.to_owned(), keys))
        .collect();
    Ok(Layer { source, sections })
}

enum EnvVariable {
    Key(Layer),
    Ignored(String),
    Foreign,
}

/// Parses the value of an environment variable like the value of its flag.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct OneFlag {
    #[command(flatten)]
    engine: EngineFlags,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    log: LogFlags,
}

fn env_layer(name: &str, value: &str) -> Result<EnvVariable, SettingsError> {
    let Some(rest) = name.strip_prefix(ENV_PREFIX) else {
        return Ok(EnvVariable::Foreign);
    };
    if OTHER_VARIABLES.contains(&rest) {
        return Ok(EnvVariable::Foreign);
    }
    let key = rest.to_lowercase();
    // Kubernetes sets <SERVICE>_PORT=tcp://address:port, and more, for a service called souffleur.
    let is_service_link = key == "port" && value.starts_with("tcp://");
    if is_service_link || !keys().iter().any(|(_, known, _)| *known == key) {
        let warning =
            format!("environment variable {name} is not a configuration key and is ignored");
        return Ok(EnvVariable::Ignored(warning));
    }
    let flag = format!("--{}={value}", key.replace('_', "-"));
    let parsed = OneFlag::try_parse_from([flag]).map_err(|error| {
        let text = error.to_string();
        let lines = text
            .lines()
            .map(str::trim)
            .take_while(|line| !line.is_empty());
        let lines: Vec<_> = lines.collect();
        let reason = lines.join(" ").trim_start_matches("error: ").to_owned();
        SettingsError(format!("environment variable {name}: {reason}"))
    })?;
    let layer = flag_layer(&parsed.engine, &parsed.server, &parsed.log, ENV_SOURCE)?;
    Ok(EnvVariable::Key(layer))
}

fn explain(figment: &Figment, error: figment::Error) -> SettingsError {
    let path: Vec<&str> = error.path.iter().map(String::as_str).collect();
    let source = match (&error.metadata, path.as_slice()) {
        (Some(metadata), path) => name_source(metadata, path),
        (None, path) => source_of(figment, path),
    };
    let reason = error.kind.to_string();
    let lines: Vec<_> = reason
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    SettingsError(format!("{source}: {}", lines.join("; ")))
}

fn source_of(figment: &Figment, path: &[&str]) -> String {
    let metadata = figment.find_metadata(&path.join("."));
    metadata.map_or_else(|| path.join("."), |metadata| name_source(metadata, path))
}

fn name_source(metadata: &Metadata, path: &[&str]) -> String {
    let key = path.last().copied().unwrap_or_default();
    let file = metadata
        .source
        .as_ref()
        .and_then(|source| source.file_path());
    match (metadata.name.as_ref(), file) {
        (_, Some(file)) if path.is_empty() => file.display().to_string(),
        (_, Some(file)) => format!("{}: {}", file.display(), path.join(".")),
        (RUST_LOG, None) => format!("environment variable {RUST_LOG}"),
        (FLAG_SOURCE, None) => format!("--{}", key.replace('_', "-")),
        (ENV_SOURCE, None) => {
            format!("environment variable {ENV_PREFIX}{}", key.to_uppercase())
        }
        (_, None) => path.join("."),
    }
}

#[cfg(test)]
mod tests;
