//! Decodes batches of KV events from MessagePack, for subscribers in this process.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::batch::{KvEvent, StoredBlocks};
use super::wire::{CLEARED, REMOVED, STORED};

/// Decodes the output of [`encode`] in either encoding into the time in seconds since 1970, and the events. Event
/// arrays have no salts, and neither encoding has an `extra_key`: `is_named` is true only for blocks with a salt.
///
/// # Errors
/// The bytes are not an encoded batch.
///
/// [`encode`]: super::wire::encode
pub fn decode(payload: &[u8]) -> Result<(f64, Vec<KvEvent>), rmp_serde::decode::Error> {
    let (time_s, events, _rank): (f64, Vec<DecodedEvent>, u32) = rmp_serde::from_slice(payload)?;
    let events = events.into_iter().map(|DecodedEvent(event)| event);
    Ok((time_s, events.collect()))
}

struct DecodedEvent(KvEvent);

impl<'de> Deserialize<'de> for DecodedEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = deserializer.deserialize_any(EventVisitor)?;
        fields.into_event().map(Self).map_err(D::Error::custom)
    }
}

#[derive(Default)]
struct EventFields {
    name: String,
    ids: Vec<i64>,
    parent: Option<i64>,
    tokens: Vec<u32>,
    cache_salt: Option<String>,
}

impl EventFields {
    fn into_event(self) -> Result<KvEvent, String> {
        match self.name.as_str() {
            STORED => Ok(KvEvent::Stored(StoredBlocks {
                ids: self.ids,
                parent: self.parent,
                tokens: self.tokens,
                is_named: self.cache_salt.is_some(),
                cache_salt: self.cache_salt.map(Arc::from),
            })),
            REMOVED => Ok(KvEvent::Removed(self.ids)),
            CLEARED => Ok(KvEvent::Cleared),
            name => Err(format!("unknown event {name:?}")),
        }
    }
}

struct EventVisitor;

impl<'de> Visitor<'de> for EventVisitor {
    type Value = EventFields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event as a map or as an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<EventFields, A::Error> {
        let mut fields = EventFields::default();
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "type" => fields.name = map.next_value()?,
                "block_hashes" => fields.ids = map.next_value()?,
                "parent_block_hash" => fields.parent = map.next_value()?,
                "token_ids" => fields.tokens = map.next_value()?,
                "cache_salt" => fields.cache_salt = map.next_value()?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(fields)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<EventFields, A::Error> {
        let mut fields = EventFields::default();
        let missing = |what: &str| A::Error::custom(format_args!("an event without {what}"));
        let name = elements.next_element()?;
        fields.name = name.ok_or_else(|| missing("a name"))?;
        if fields.name != CLEARED {
            let ids = elements.next_element()?;
            fields.ids = ids.ok_or_else(|| missing("blocks"))?;
        }
        if fields.name == STORED {
            let parent = elements.next_element()?;
            fields.parent = parent.ok_or_else(|| missing("a parent block"))?;
            let tokens = elements.next_element()?;
            fields.tokens = tokens.ok_or_else(|| missing("tokens"))?;
        }
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Encoding;
    use crate::wire::{Stamp, encode};

    const STAMP: Stamp = Stamp {
        time_s: 1.5,
        rank: 1,
    };

    fn events(cache_salt: Option<Arc<str>>) -> Vec<KvEvent> {
        vec![
            KvEvent::Cleared,
            KvEvent::Stored(StoredBlocks {
                ids: vec![i64::MIN, 7],
                parent: Some(-1),
                tokens: vec![0, 200, 70_000, u32::MAX],
                is_named: cache_salt.is_some(),
                cache_salt,
            }),
            KvEvent::Removed(vec![i64::MAX, -5]),
            KvEvent::Stored(StoredBlocks {
                ids: vec![1],
                parent: None,
                tokens: vec![1, 2],
                cache_salt: None,
                is_named: false,
            }),
        ]
    }

    #[test]
    fn an_encoded_batch_is_decoded_unchanged() {
        for (encoding, salt) in [
            (Encoding::Map, None),
            (Encoding::Map, Some("s".into())),
            (Encoding::Array, None),
        ] {
            let events = events(salt);
            let payload = encode(&events, STAMP, 2, encoding);
            let read = decode(&payload).expect("it is a batch");
            assert_eq!(read, (1.5, events), "{encoding:?}");
        }
    }

    #[test]
    fn invalid_bytes_are_an_error() {
        let payload = encode(&events(None), STAMP, 2, Encoding::Map);
        assert!(decode(&payload[..payload.len() - 2]).is_err());
        assert!(decode(b"").is_err());
        let other = rmp_serde::to_vec(&(1.5, [("BlockMoved", [1])], 0)).expect("a vector");
        let error = decode(&other).expect_err("it is unknown");
        assert!(error.to_string().contains("BlockMoved"), "{error}");
    }
}
