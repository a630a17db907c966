//! Methods of [`EngineHandle`] that pin cached prefixes in memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::handle::{EngineHandle, down};
use souffleur_actors::messages::{PinPrefix, PinSoftly, PrefixPinned, UnpinPrefix, UnpinSoftly};
use souffleur_actors::watchdog::AddressSlot;
use souffleur_base::error::RequestError;
use souffleur_state::cache::namespace::Namespace;

/// A prefix that stays in memory until a request needs the memory, or the control actors are restarted. Dropping the pin
/// releases the prefix.
pub struct SoftPin {
    name: u64,
    doors: AddressSlot,
}

impl Drop for SoftPin {
    fn drop(&mut self) {
        let doors = self.doors.read();
        // If the engine has ended, so have its pins. Actors that were started anew ignore the name.
        if let Some(doors) = doors.ok().as_ref().and_then(|doors| doors.as_ref()) {
            let name = self.name;
            doors.unpin_softly.do_send(UnpinSoftly { name });
        }
    }
}

impl EngineHandle {
    /// Keeps the cached part of a prefix in memory for at most `ttl`. A death of the control actors, or a lost step,
    /// flushes the cache, and does not end the pin: when a request has computed that part again, it stays in memory.
    ///
    /// # Errors
    /// [`RequestError::Overloaded`] at the limit of pins, [`RequestError::Invalid`] if the namespace's salt or key is
    /// too long, [`RequestError::EngineDown`].
    pub async fn pin_prefix(
        &self,
        namespace: Namespace,
        tokens: Arc<[u32]>,
        ttl: Duration,
    ) -> Result<PrefixPinned, RequestError> {
        namespace.validate(&self.inner.request_limits)?;
        let ttl_s = u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX);
        let pin = PinPrefix {
            namespace,
            tokens,
            ttl_s,
        };
        self.doors()?.pin.send(pin).await.map_err(down)?
    }

    /// Releases a pin; false if it no longer exists. No later pin gets its number.
    ///
    /// # Errors
    /// [`RequestError::EngineDown`].
    pub async fn unpin_prefix(&self, pin: u64) -> Result<bool, RequestError> {
        self.doors()?
            .unpin
            .send(UnpinPrefix { pin })
            .await
            .map_err(down)
    }

    /// Keeps the cached part of a prefix in memory until the pin is dropped, `ttl` has passed, or a request needs the
    /// memory. At the limit of soft pins, the oldest are released. `replaces` is released first, without an eviction
    /// in between.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] if the namespace's salt or key is too long, [`RequestError::EngineDown`].
    pub fn pin_softly(
        &self,
        namespace: Namespace,
        tokens: Arc<[u32]>,
        ttl: Duration,
        replaces: Option<&SoftPin>,
    ) -> Result<SoftPin, RequestError> {
        namespace.validate(&self.inner.request_limits)?;
        let doors = self.doors()?;
        let name = self.inner.next_soft_pin.fetch_add(1, Ordering::Relaxed);
        doors.pin_softly.do_send(PinSoftly {
            name,
            // If the actors were rebuilt since, the replaced pin has already ended.
            replaces: replaces.map(|pin| pin.name),
            namespace,
            tokens,
            ttl_s: u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX),
        });
        Ok(SoftPin {
            name,
            doors: self.inner.doors.clone(),
        })
    }
}
