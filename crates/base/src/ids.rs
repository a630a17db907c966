//! Newtypes for ids that cross module boundaries.

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
            pub const fn new(raw: $inner) -> Self {
                Self(raw)
            }

            pub const fn get(self) -> $inner {
                self.0
            }

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
    /// One forward pass. Increases by one per step and is never reused.
    StepId(u64)
}
numeric_id! {
    /// An admitted request inside the engine. Never reused while the engine lives.
    SeqId(u64)
}
numeric_id! {
    /// A request from its intake by the Tokenizer on. Never reused while the engine lives, unlike a [`RequestId`],
    /// which a client may send again once the request has ended.
    IntakeId(u64)
}
numeric_id! {
    /// One page of `page_size` consecutive tokens in the KV pool. Page 0 is for padded rows and is never allocated.
    PageId(u32)
}
numeric_id! {
    /// A row of the page table (SGLang's `req_pool_idx`). Row 0 is padding and is never allocated.
    RowId(u32)
}

numeric_id! {
    /// A slot for the recurrent states of one sequence in all layers. Slot 0 is for padded rows and is never allocated.
    StateSlot(u32)
}

numeric_id! {
    /// A save or load of blocks of the KV store. Never reused while the engine lives.
    Ticket(u64)
}

numeric_id! {
    /// A unit: the actors that share one scheduler and one executor. An engine with replicas has several.
    UnitId(u32)
}

impl UnitId {
    /// The only unit of an engine without replicas.
    pub const FIRST: Self = Self::new(0);
}

impl IntakeId {
    /// The bit that marks health probes. As a part of the id, it is also in the scheduler's message log.
    const PROBE: u64 = 1 << 63;

    /// The id with the mark of a health probe.
    pub const fn of_probe(self) -> Self {
        Self(self.0 | Self::PROBE)
    }

    pub const fn is_probe(self) -> bool {
        self.0 & Self::PROBE != 0
    }
}

/// Chosen by the client, unique among the requests in flight.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct RequestId(Arc<str>);

impl RequestId {
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().simple().to_string().into())
    }

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
