//! Encodes batches of KV events as MessagePack.
//!
//! A batch is an array of its time in seconds, its events and the data-parallel rank. Events ([`Encoding`]) are maps,
//! as in SGLang, or arrays, as in older versions of vLLM and in llm-d.

use serde::ser::{Serialize, SerializeSeq, Serializer};

use super::batch::{KvEvent, StoredBlocks};
use super::config::Encoding;

/// The medium of all blocks, also on a CPU: routers treat `GPU` as the fastest tier.
const MEDIUM: &str = "GPU";

pub(super) const STORED: &str = "BlockStored";
pub(super) const REMOVED: &str = "BlockRemoved";
pub(super) const CLEARED: &str = "AllBlocksCleared";

/// The source of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stamp {
    /// Seconds since 1970.
    pub time_s: f64,
    /// The number of the replica whose cache the batch is about.
    pub rank: u32,
}

/// Encodes a batch.
///
/// # Panics
/// Never: encoding into a vector does not fail.
pub fn encode(events: &[KvEvent], stamp: Stamp, block_size: usize, encoding: Encoding) -> Vec<u8> {
    let Stamp { time_s, rank } = stamp;
    let events = Events {
        events,
        block_size: block_size as u64,
        encoding,
    };
    rmp_serde::to_vec_named(&(time_s, events, rank)).expect("a vector takes all bytes")
}

struct Events<'a> {
    events: &'a [KvEvent],
    block_size: u64,
    encoding: Encoding,
}

impl Serialize for Events<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let block_size = self.block_size;
        let mut list = serializer.serialize_seq(Some(self.events.len()))?;
        for event in self.events {
            match self.encoding {
                Encoding::Map => list.serialize_element(&EventMap::new(event, block_size))?,
                Encoding::Array => match event {
                    KvEvent::Stored(blocks) => {
                        list.serialize_element(&stored_array(blocks, block_size))?;
                    }
                    KvEvent::Removed(ids) => list.serialize_element(&(REMOVED, ids, MEDIUM))?,
                    KvEvent::Cleared => list.serialize_element(&(CLEARED,))?,
                },
            }
        }
        list.end()
    }
}

/// An event as a map. Absent fields are omitted, except SGLang's mandatory ones.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum EventMap<'a> {
    Stored {
        r#type: &'static str,
        block_hashes: &'a [i64],
        parent_block_hash: Option<i64>,
        token_ids: &'a [u32],
        block_size: u64,
        lora_id: Option<u32>,
        medium: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_salt: Option<&'a str>,
    },
    Removed {
        r#type: &'static str,
        block_hashes: &'a [i64],
        medium: &'static str,
    },
    Cleared {
        r#type: &'static str,
    },
}

impl<'a> EventMap<'a> {
    fn new(event: &'a KvEvent, block_size: u64) -> Self {
        match event {
            KvEvent::Stored(blocks) => Self::Stored {
                r#type: STORED,
                block_hashes: &blocks.ids,
                parent_block_hash: blocks.parent,
                token_ids: &blocks.tokens,
                block_size,
                lora_id: None,
                medium: MEDIUM,
                cache_salt: blocks.cache_salt.as_deref(),
            },
            KvEvent::Removed(ids) => Self::Removed {
                r#type: REMOVED,
                block_hashes: ids,
                medium: MEDIUM,
            },
            KvEvent::Cleared => Self::Cleared { r#type: CLEARED },
        }
    }
}

/// Name, blocks, parent block, tokens, tokens per block, adapter id, medium, adapter name, extra keys.
type StoredArray<'a> = (
    &'static str,
    &'a [i64],
    Option<i64>,
    &'a [u32],
    u64,
    Option<u32>,
    &'static str,
    Option<&'a str>,
    Option<u32>,
);

fn stored_array(blocks: &StoredBlocks, block_size: u64) -> StoredArray<'_> {
    (
        STORED,
        &blocks.ids,
        blocks.parent,
        &blocks.tokens,
        block_size,
        None,
        MEDIUM,
        None,
        None,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: i64 = -3_488_128_144_981_237_669;
    const SECOND: i64 = 5_674_439_469_042_975_057;

    fn events() -> Vec<KvEvent> {
        vec![
            KvEvent::Stored(StoredBlocks {
                ids: vec![FIRST, SECOND],
                parent: None,
                tokens: (1..=8).collect(),
                cache_salt: None,
                is_named: false,
            }),
            KvEvent::Removed(vec![SECOND]),
            KvEvent::Cleared,
        ]
    }

    fn hex(events: &[KvEvent], encoding: Encoding) -> String {
        hex_of_replica(0, events, encoding)
    }

    fn hex_of_replica(rank: u32, events: &[KvEvent], encoding: Encoding) -> String {
        let time_s = 1_700_000_000.5;
        let bytes = encode(events, Stamp { time_s, rank }, 4, encoding);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn maps_are_encoded_exactly_as_in_sglang() {
        let expected = concat!(
            "93cb41d954fc402000009387a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392",
            "d3cf97adeedb59e05bcf4ebfa8a1f3c34151b1706172656e745f626c6f636b5f68617368c0a9746f6b656e",
            "5f696473980102030405060708aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da347",
            "505583a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf4ebfa8a1f3c341",
            "51a66d656469756da347505581a474797065b0416c6c426c6f636b73436c656172656400",
        );
        assert_eq!(hex(&events(), Encoding::Map), expected);
    }

    #[test]
    fn arrays_have_the_field_order_of_vllm() {
        let expected = concat!(
            // The time and the three events. The first has nine fields.
            "93cb41d954fc4020000093",
            "99ab426c6f636b53746f726564",
            "92d3cf97adeedb59e05bcf4ebfa8a1f3c34151",
            "c0980102030405060708",
            "04c0a3475055c0c0",
            "93ac426c6f636b52656d6f766564",
            "91cf4ebfa8a1f3c34151",
            "a3475055",
            "91b0416c6c426c6f636b73436c6561726564",
            // The rank.
            "00",
        );
        assert_eq!(hex(&events(), Encoding::Array), expected);
    }

    #[test]
    fn a_batch_ends_with_the_number_of_its_replica() {
        for encoding in [Encoding::Map, Encoding::Array] {
            let first = hex(&events(), encoding);
            let fourth = hex_of_replica(3, &events(), encoding);
            assert_eq!(fourth.strip_suffix("03"), first.strip_suffix("00"));
            assert!(fourth.ends_with("03"), "{fourth}");
        }
    }

    #[test]
    fn a_salt_is_the_last_field() {
        let event = KvEvent::Stored(StoredBlocks {
            ids: vec![1],
            parent: Some(-1),
            tokens: vec![70_000, 300, 200, 5],
            cache_salt: Some("s".into()),
            is_named: true,
        });
        let text = hex(&[event], Encoding::Map);
        // A map of eight fields, the parent (-1 in one byte), the tokens, and the salt as the last field.
        assert!(text.starts_with("93cb41d954fc402000009188"), "{text}");
        assert!(text.contains("5f68617368ff"), "{text}");
        assert!(text.contains("94ce00011170cd012cccc805"), "{text}");
        assert!(text.ends_with("aa63616368655f73616c74a17300"), "{text}");
    }
}
