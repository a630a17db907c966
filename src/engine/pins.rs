//! Methods of [`EngineHandle`] that pin cached prefixes in memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix::Recipient;

use super::handle::{EngineHandle, down};
use souffleur_actors::messages::{PinPrefix, PinSoftly, PrefixPinned, UnpinPrefix, UnpinSoftly};
use souffleur_base::error::RequestError;
use souffleur_state::cache::namespace::Namespace;

/// A prefix that stays in memory until a request needs it; released on drop.
pub struct SoftPin {
    name: u64,
    door: Recipient<UnpinSoftly>,
}

impl Drop for SoftPin {
    fn drop(&mut self) {
        // A unit that has stopped holds nothing any more.
        self.door.do_send(UnpinSoftly { name: self.name });
    }
}

impl EngineHandle {
    /// Keeps the cached part of a prefix in memory for at most `ttl`.
    ///
    /// # Errors
    /// [`RequestError::Overloaded`] with too many pins, [`RequestError::Invalid`] for a namespace with too long a name,
    /// [`RequestError::EngineDown`].
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

    /// Releases a pin; false if it no longer exists.
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
    /// memory. The oldest soft pins are released for it; `replaces` is released first, with nothing evicted in between.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] for a namespace with too long a name, [`RequestError::EngineDown`].
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
            // A pin of an earlier unit ended with it.
            replaces: replaces.map(|pin| pin.name),
            namespace,
            tokens,
            ttl_s: u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX),
        });
        Ok(SoftPin {
            name,
            door: doors.unpin_softly,
        })
    }
}
