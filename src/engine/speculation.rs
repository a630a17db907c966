//! Makes an executor's speculation from the configuration.

use std::sync::Arc;

use souffleur_base::error::ConfigError;
use souffleur_config::EngineConfig;
use souffleur_executor::speculation::{NgramProposers, Speculation};

/// How the executor of a model with this vocabulary speculates; `None` if it does not.
///
/// # Errors
/// Those of [`EngineConfig::speculation`].
pub(crate) fn speculation(
    config: &EngineConfig,
    vocab_size: usize,
) -> Result<Option<Speculation>, ConfigError> {
    let wish = config.speculation()?;
    Ok(wish.map(|wish| Speculation {
        proposers: Arc::new(NgramProposers {
            max_match: wish.max_match,
            capacity: wish.capacity,
            vocab_size,
        }),
        is_controlled: true,
    }))
}
