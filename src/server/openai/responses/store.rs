//! Stores responses, so that clients can read and continue them: bounded by number, bytes and age.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use actix_web::web::Bytes;
use rustc_hash::FxHashMap;

use super::ids::ResponseId;
use crate::config::ServerConfig;
use souffleur_engine::SoftPin;

/// Bytes that an entry takes in addition to its texts.
const ENTRY_BYTES: usize = 1024;
/// Bytes that an item takes in addition to its text, in its entry and in the index.
const ITEM_BYTES: usize = 256;

/// The id of a WebSocket connection, for responses that only this connection can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionId(u64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Any client that knows the id of the response.
    Anyone,
    /// One connection, until it ends.
    Connection {
        id: ConnectionId,
        /// The lane on which the response was made.
        lane: Option<Arc<str>>,
    },
}

impl Owner {
    fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Anyone => None,
            Self::Connection { id, .. } => Some(*id),
        }
    }
}

#[derive(Clone)]
pub(crate) struct ResponseStore(Arc<Inner>);

struct Inner {
    max_count: usize,
    ttl: Duration,
    memory: Memory,
    next_connection: AtomicUsize,
    entries: Mutex<Entries>,
}

/// The byte limit of all stored data, and the bytes in use. Cheap to clone.
#[derive(Clone)]
struct Memory {
    limit_bytes: usize,
    taken_bytes: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Entries {
    next_sequence: u64,
    by_id: FxHashMap<ResponseId, Arc<StoredResponse>>,
    by_age: BTreeMap<u64, ResponseId>,
    by_item: FxHashMap<String, ResponseId>,
}

struct Charge {
    memory: Memory,
    bytes: usize,
}

impl Memory {
    fn charge(&self, bytes: usize) -> Charge {
        self.taken_bytes.fetch_add(bytes, Ordering::AcqRel);
        Charge {
            memory: self.clone(),
            bytes,
        }
    }

    fn is_full(&self) -> bool {
        self.taken_bytes.load(Ordering::Acquire) > self.limit_bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let taken = &self.memory.taken_bytes;
        taken.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// The input and the answer that one response added to its conversation. Later responses share them.
pub(super) struct Turn {
    /// The messages for the chat template, as a JSON list.
    pub(super) messages: Box<[u8]>,
    pub(super) n_messages: usize,
    _charge: Charge,
}

pub(super) struct StoredItem {
    pub(super) id: String,
    pub(super) json: Box<str>,
}

pub(super) struct NewResponse {
    pub(super) id: ResponseId,
    pub(super) owner: Owner,
    pub(super) json: Vec<u8>,
    pub(super) input: Vec<StoredItem>,
    pub(super) output: Vec<StoredItem>,
    pub(super) earlier: Vec<Arc<Turn>>,
    /// The messages that the response added, as JSON, and their number.
    pub(super) messages: (Vec<u8>, usize),
    pub(super) tokens: Option<KeptTokens>,
    /// Lengths of the deltas in the response's stream, item by item.
    pub(super) delta_lens: Vec<u32>,
    pub(super) pin: Option<SoftPin>,
}

/// The tokens of a conversation with its instructions and tools.
#[derive(Clone)]
pub(super) struct KeptTokens {
    pub(super) tokens: Arc<[u32]>,
    pub(super) has_answer: bool,
    /// Hash of everything that the template renders except the messages.
    pub(super) setup_hash: [u8; 32],
}

pub(super) struct StoredResponse {
    pub(super) json: Bytes,
    pub(super) input: Vec<StoredItem>,
    pub(super) output: Vec<StoredItem>,
    /// The conversation up to the end of this response, without instructions.
    pub(super) turns: Vec<Arc<Turn>>,
    pub(super) tokens: Option<KeptTokens>,
    pub(super) delta_lens: Vec<u32>,
    pub(super) pin: Option<SoftPin>,
    id: ResponseId,
    owner: Owner,
    sequence: u64,
    expires: Instant,
    _charge: Charge,
}

impl ResponseStore {
    pub(crate) fn new(config: &ServerConfig) -> Self {
        Self(Arc::new(Inner {
            max_count: config.responses_max_count,
            ttl: Duration::from_secs(config.responses_ttl_s.into()),
            memory: Memory {
                limit_bytes: config.responses_max_bytes,
                taken_bytes: Arc::default(),
            },
            next_connection: AtomicUsize::new(0),
            entries: Mutex::default(),
        }))
    }

    pub(crate) fn connection(&self) -> ConnectionId {
        let next = self.0.next_connection.fetch_add(1, Ordering::Relaxed);
        ConnectionId(next as u64)
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.0.max_count > 0
    }

    /// Stores a response, and evicts the oldest ones if necessary. A response above the byte limit is not stored.
    pub(super) fn keep(&self, new: NewResponse) {
        let bytes = new.bytes();
        if !self.is_enabled() || bytes > self.0.memory.limit_bytes {
            return;
        }
        let mut dropped = Vec::new();
        let mut entries = self.lock(&mut dropped);
        while entries.by_age.len() >= self.0.max_count {
            dropped.extend(entries.pop_oldest());
        }
        let sequence = entries.next_sequence;
        entries.next_sequence += 1;
        entries.insert(Arc::new(self.0.stored(new, sequence)));
        while self.0.memory.is_full()
            && let Some(oldest) = entries.pop_oldest()
        {
            // Frees its memory at once, except turns that later responses share.
            drop(oldest);
        }
    }

    pub(super) fn find(&self, id: &ResponseId, owner: &Owner) -> Option<Arc<StoredResponse>> {
        let mut dropped = Vec::new();
        let entries = self.lock(&mut dropped);
        let found = entries.by_id.get(id)?;
        found.is_for(owner).then(|| found.clone())
    }

    pub(super) fn find_item(&self, id: &str, owner: &Owner) -> Option<Box<str>> {
        let mut dropped = Vec::new();
        let entries = self.lock(&mut dropped);
        let stored = entries.by_id.get(entries.by_item.get(id)?)?;
        let mut items = stored.input.iter().chain(&stored.output);
        let item = items.find(|item| item.id == id)?;
        stored.is_for(owner).then(|| item.json.clone())
    }

    /// Deletes a response that `owner` may see. Returns false if there is none.
    pub(crate) fn forget(&self, id: &ResponseId, owner: &Owner) -> bool {
        let mut dropped = Vec::new();
        let mut entries = self.lock(&mut dropped);
        let is_there = entries
            .by_id
            .get(id)
            .is_some_and(|stored| stored.is_for(owner));
        if is_there {
            dropped.extend(entries.remove(id));
        }
        is_there
    }

    /// Deletes a response that is stored for this connection alone, if it was made on this lane.
    pub(crate) fn forget_own(
        &self,
        response: &ResponseId,
        connection: ConnectionId,
        lane: Option<&Arc<str>>,
    ) {
        let mut dropped = Vec::new();
        let mut entries = self.lock(&mut dropped);
        let owner = entries.by_id.get(response).map(|stored| &stored.owner);
        if let Some(Owner::Connection { id, lane: made_on }) = owner
            && (*id, made_on.as_ref()) == (connection, lane)
        {
            dropped.extend(entries.remove(response));
        }
    }

    pub(crate) fn forget_all_own(&self, connection: ConnectionId) {
        let mut dropped = Vec::new();
        let mut entries = self.lock(&mut dropped);
        let is_own = |stored: &&Arc<StoredResponse>| stored.owner.connection() == Some(connection);
        let own = entries.by_id.values().filter(is_own);
        let own: Vec<ResponseId> = own.map(|stored| stored.id.clone()).collect();
        dropped.extend(own.iter().filter_map(|id| entries.remove(id)));
    }

    /// Locks the entries and removes expired ones. The entries in `dropped` are freed after the lock is released.
    fn lock(&self, dropped: &mut Vec<Arc<StoredResponse>>) -> MutexGuard<'_, Entries> {
        let entries = self.0.entries.lock();
        let mut entries = entries.unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        while entries.oldest().is_some_and(|oldest| oldest.expires <= now) {
            dropped.extend(entries.pop_oldest());
        }
        entries
    }
}

impl Inner {
    fn stored(&self, new: NewResponse, sequence: u64) -> StoredResponse {
        let charge = self.memory.charge(new.bytes_without_turns());
        let (messages, n_messages) = new.messages;
        let mut turns = new.earlier;
        turns.push(Arc::new(Turn {
            _charge: self.memory.charge(messages.len()),
            messages: messages.into(),
            n_messages,
        }));
        StoredResponse {
            json: new.json.into(),
            input: new.input,
            output: new.output,
            turns,
            tokens: new.tokens,
            delta_lens: new.delta_lens,
            pin: new.pin,
            id: new.id,
            owner: new.owner,
            sequence,
            expires: Instant::now() + self.ttl,
            _charge: charge,
        }
    }
}

impl NewResponse {
    /// Bytes of the response, and of the earlier turns that it keeps alive.
    fn bytes(&self) -> usize {
        let earlier = self.earlier.iter().map(|turn| turn.messages.len());
        self.bytes_without_turns() + self.messages.0.len() + earlier.sum::<usize>()
    }

    fn bytes_without_turns(&self) -> usize {
        let items = self.input.iter().chain(&self.output);
        let items = items.map(|item| item.json.len() + ITEM_BYTES);
        let tokens = self.tokens.as_ref().map_or(0, |kept| kept.tokens.len());
        let turns = self.earlier.len() * size_of::<Arc<Turn>>();
        let words = (tokens + self.delta_lens.len()) * size_of::<u32>();
        ENTRY_BYTES + self.json.len() + items.sum::<usize>() + turns + words
    }
}

impl StoredResponse {
    fn is_for(&self, owner: &Owner) -> bool {
        self.owner == Owner::Anyone || self.owner.connection() == owner.connection()
    }
}

impl Entries {
    fn oldest(&self) -> Option<&Arc<StoredResponse>> {
        let (_, id) = self.by_age.first_key_value()?;
        self.by_id.get(id)
    }

    fn insert(&mut self, stored: Arc<StoredResponse>) {
        for item in stored.input.iter().chain(&stored.output) {
            // If two items have the same id, which clients can choose, the first one counts.
            let response = || stored.id.clone();
            self.by_item.entry(item.id.clone()).or_insert_with(response);
        }
        self.by_age.insert(stored.sequence, stored.id.clone());
        self.by_id.insert(stored.id.clone(), stored);
    }

    fn pop_oldest(&mut self) -> Option<Arc<StoredResponse>> {
        let (_, id) = self.by_age.first_key_value()?;
        let id = id.clone();
        self.remove(&id)
    }

    fn remove(&mut self, id: &ResponseId) -> Option<Arc<StoredResponse>> {
        let stored = self.by_id.remove(id)?;
        self.by_age.remove(&stored.sequence);
        for item in stored.input.iter().chain(&stored.output) {
            if self.by_item.get(&item.id) == Some(id) {
                self.by_item.remove(&item.id);
            }
        }
        Some(stored)
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
