//! Newtypes for every id that crosses a module boundary.

use std::fmt;
use std::sync::Arc;

macro_rules! numeric_id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize,
        )]
        #[serde(transparent)]
        #[repr(transparent)]
        pub struct $name($inner);

        impl $name {
            /// Wraps a raw number.
            pub const fn new(raw: $inner) -> Self {
                Self(raw)
            }

            /// Returns the raw number.
            pub const fn get(self) -> $inner {
                self.0
            }

            /// Returns the raw number as an index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

numeric_id! {
    /// One forward pass. Grows by one a step and is never reused.
    StepId(u64)
}
numeric_id! {
    /// One admitted request inside the engine. Never reused while the engine lives.
    SeqId(u64)
}
numeric_id! {
    /// One request as the Tokenizer took it in. Distinguishes two requests with one [`RequestId`], the second begun
    /// when the first had just ended. Never reused while the engine lives.
    IntakeId(u64)
}
numeric_id! {
    /// One page of `page_size` consecutive tokens in the KV pool. Page 0 is the dummy page of padded rows and is never granted.
    PageId(u32)
}
numeric_id! {
    /// One row of the page table (SGLang's `req_pool_idx`). Row 0 is padding and is never granted.
    RowId(u32)
}

numeric_id! {
    /// One state of a sequence, in all layers that keep one. Slot 0 is the dummy of padded rows and is never granted.
    StateSlot(u32)
}

numeric_id! {
    /// One save or one load of blocks of the KV store. Never reused while the engine lives.
    Ticket(u64)
}

impl IntakeId {
    /// Set in the numbers of probes. The scheduler and its log know a request by its number from the intake on: a log
    /// is replayed with it.
    const PROBE: u64 = 1 << 63;

    /// The same number, marked as that of a probe, which is no client's request.
    pub const fn of_probe(self) -> Self {
        Self(self.0 | Self::PROBE)
    }

    /// True for the number of a probe.
    pub const fn is_probe(self) -> bool {
        self.0 & Self::PROBE != 0
    }
}

/// The client's name of a request, unique among the requests in flight.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// Wraps a name chosen by the client.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// Makes a random name.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().simple().to_string().into())
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rid:{}", self.0)
    }
}
