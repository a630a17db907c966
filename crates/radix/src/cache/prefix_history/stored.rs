//! Reasons why a prompt's blocks were not loaded from the KV store.

use serde::{Deserialize, Serialize};

use super::{Cause, Departure};

/// Why blocks of a prompt did not come from the KV store.
///
/// The message log contains it: keep the order of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredMiss {
    /// Computing them is faster than loading them.
    TooSlow,
    /// Not in memory in time: their deadline passed, no buffer was free, or the disk does not answer.
    Late,
    Damaged,
    Evicted,
}

impl StoredMiss {
    pub fn cause(self) -> Cause {
        match self {
            Self::TooSlow => Cause::StoredTooSlow,
            Self::Late => Cause::StoredLate,
            Self::Damaged => Cause::StoredDamaged,
            Self::Evicted => Cause::StoredEvicted,
        }
    }
}

/// The part of a request's prefix that came from the KV store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredPart {
    /// Tokens that were loaded, after the tokens that the tree had.
    pub loaded_tokens: usize,
    /// Why further tokens did not come from the store; `None` if, as far as recorded, the store never had them.
    pub miss: Option<StoredMiss>,
}

impl StoredPart {
    /// Moves the miss point past the loaded tokens, and drops the branch at the old miss point.
    pub(super) fn move_miss_point(self, departure: Departure) -> Departure {
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
