//! Why what the KV store has of a prompt, or had, did not come from there.

use serde::{Deserialize, Serialize};

use super::{Cause, Departure};

/// Why blocks of a prompt did not come from the KV store.
///
/// It is in the message log: the places of the variants stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredMiss {
    /// Computing them is sooner than loading them.
    TooSlow,
    /// They were not in memory in time: their deadline passed, no buffer was free for them, or the disk does not answer.
    Late,
    /// What was read is not what was written.
    Damaged,
    /// They gave way to others on the disk.
    Evicted,
}

impl StoredMiss {
    /// The cause of a miss for this reason.
    pub fn cause(self) -> Cause {
        match self {
            Self::TooSlow => Cause::StoredTooSlow,
            Self::Late => Cause::StoredLate,
            Self::Damaged => Cause::StoredDamaged,
            Self::Evicted => Cause::StoredEvicted,
        }
    }
}

/// The part of the KV store in a request's prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredPart {
    /// Tokens that were loaded behind those that the tree had.
    pub loaded_tokens: usize,
    /// Why what follows on these did not come from the store; `None` where it never had it, as far as is remembered.
    pub miss: Option<StoredMiss>,
}

impl StoredPart {
    /// Where the prompt left the cache: behind what was loaded. What the tree saw in between is no part of it.
    pub(super) fn moved(self, departure: Departure) -> Departure {
        if self.loaded_tokens == 0 {
            return departure;
        }
        let matched_tokens = departure.matched_tokens + self.loaded_tokens;
        Departure {
            matched_tokens,
            branch: None,
            elsewhere: departure
                .elsewhere
                .filter(|elsewhere| elsewhere.tokens > matched_tokens),
            ..departure
        }
    }
}
