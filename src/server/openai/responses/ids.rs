//! The ids of responses and of their items.

use serde::Serialize;
use sha2::{Digest, Sha256};

/// Bytes of a response's id: 128 bits.
const RANDOM_BYTES: usize = 16;
/// Bytes of the hash in an item's id.
const ITEM_BYTES: usize = 16;

/// The id of a response. A client that knows it can read and continue the conversation, so it is random and not derived
/// from the request's id, which clients choose and logs show.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub(crate) struct ResponseId(String);

impl ResponseId {
    pub(super) fn random() -> Self {
        let mut bits = [0; RANDOM_BYTES];
        getrandom::fill(&mut bits).expect("the system provides random numbers");
        Self(format!("resp_{}", digits(&bits)))
    }

    pub(crate) fn from_client(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// The id of an item of this response, from which the response's id cannot be derived.
    pub(super) fn item(&self, kind: ItemKind, index: usize) -> String {
        let mut hash = Sha256::new();
        hash.update(self.0.as_bytes());
        hash.update(kind.prefix().as_bytes());
        hash.update((index as u64).to_le_bytes());
        format!("{}_{}", kind.prefix(), digits(&hash.finalize()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemKind {
    Input,
    Message,
    Reasoning,
    FunctionCall,
    CustomCall,
}

impl ItemKind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Input => "item",
            Self::Message => "msg",
            Self::Reasoning => "rs",
            Self::FunctionCall => "fc",
            Self::CustomCall => "ctc",
        }
    }
}

fn digits(hash: &[u8]) -> String {
    let bytes = hash.iter().take(ITEM_BYTES);
    bytes.map(|byte| format!("{byte:02x}")).collect()
}
