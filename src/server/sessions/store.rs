//! The sessions that are open: the tokens of their requests, for requests that go on from there. They are bounded by
//! number, bytes and idle time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::params::SessionParams;
use crate::engine::Canceller;
use crate::ids::RequestId;
use crate::server::config::ServerConfig;
use crate::server::error::ApiError;

/// Bytes that a request takes besides its tokens.
const TURN_BYTES: usize = 512;
/// Bytes that an open session takes besides its requests.
const SESSION_BYTES: usize = 1024;

const PARAMS: &str = "session_params";

/// The sessions of a server. Cheap to clone.
#[derive(Clone)]
pub(in crate::server) struct SessionStore(Arc<Shelf>);

struct Shelf {
    max_count: usize,
    max_bytes: usize,
    idle: Duration,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    sessions: FxHashMap<String, Session>,
    bytes: usize,
    next_turn: u64,
}

/// A client's wishes for a new session.
pub(super) struct Opening {
    pub(super) id: Option<String>,
    /// Tokens of its longest request, prompt and output.
    pub(super) capacity: usize,
    /// How long it may be idle, if that is less than the server allows.
    pub(super) idle: Option<Duration>,
}

struct Session {
    capacity: usize,
    idle: Duration,
    used: Instant,
    turns: FxHashMap<RequestId, Turn>,
}

/// A request of a session.
struct Turn {
    number: u64,
    parent: Option<RequestId>,
    prompt: Arc<[u32]>,
    /// `None` while it runs.
    output: Option<Arc<[u32]>>,
    canceller: Option<Canceller>,
}

impl Turn {
    fn bytes(&self) -> usize {
        let output = self.output.as_ref().map_or(0, |output| output.len());
        TURN_BYTES + (self.prompt.len() + output) * size_of::<u32>()
    }
}

impl SessionStore {
    pub(in crate::server) fn new(config: &ServerConfig) -> Self {
        Self(Arc::new(Shelf {
            max_count: config.sessions_max_count,
            max_bytes: config.sessions_max_bytes,
            idle: Duration::from_secs(config.sessions_idle_s.into()),
            open: Mutex::default(),
        }))
    }

    /// Opens a session and returns its id.
    ///
    /// # Errors
    /// Another one has the id; there are as many as there may be.
    pub(super) fn open(&self, opening: Opening) -> Result<String, ApiError> {
        let mut open = self.lock();
        let limit = self.0.max_count;
        if open.sessions.len() >= limit {
            return Err(ApiError::sessions_full("sessions", limit));
        }
        let id = opening
            .id
            .unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
        if open.sessions.contains_key(&id) {
            let text = format!("session_id {id:?} is open already: close it, or choose another");
            return Err(ApiError::field("session_id", text));
        }
        let session = Session {
            capacity: opening.capacity,
            idle: opening
                .idle
                .map_or(self.0.idle, |idle| idle.min(self.0.idle)),
            used: Instant::now(),
            turns: FxHashMap::default(),
        };
        open.bytes += SESSION_BYTES;
        open.sessions.insert(id.clone(), session);
        Ok(id)
    }

    /// Closes a session, and cancels what runs in it. Returns whether it was open.
    pub(super) fn close(&self, id: &str) -> bool {
        self.lock().close(id)
    }

    /// The prompt that a request has behind its session's earlier ones, and its place among them.
    ///
    /// # Errors
    /// There is no such session or request, or there is one of this name already; the session or the memory of all is full.
    /// Nothing is replaced then.
    pub(super) fn begin(
        &self,
        params: &SessionParams,
        rid: &RequestId,
        new: &[u32],
    ) -> Result<(Arc<[u32]>, SessionTurn), ApiError> {
        let mut open = self.lock();
        let number = open.next_turn;
        open.next_turn += 1;
        let prompt: Arc<[u32]> = open.prompt(params, rid, new)?.into();
        let turn = Turn {
            number,
            parent: params.rid.clone(),
            prompt: prompt.clone(),
            output: None,
            canceller: None,
        };
        let (bytes, limit) = (open.bytes + turn.bytes(), self.0.max_bytes);
        if bytes > limit {
            return Err(ApiError::sessions_full("bytes", limit));
        }
        if params.replace {
            open.replace(params);
        }
        open.insert(&params.id, rid.clone(), turn);
        let place = SessionTurn {
            store: self.clone(),
            session: params.id.clone(),
            rid: rid.clone(),
            number,
        };
        Ok((prompt, place))
    }

    /// The sessions that were not idle for too long.
    fn lock(&self) -> MutexGuard<'_, Open> {
        let open = self.0.open.lock();
        let mut open = open.unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_over = |session: &Session| {
            now.duration_since(session.used) >= session.idle && !session.is_busy()
        };
        let over = open.sessions.iter().filter(|(_, session)| is_over(session));
        let over: Vec<String> = over.map(|(id, _)| id.clone()).collect();
        over.iter().for_each(|id| {
            open.close(id);
        });
        open
    }
}

impl Session {
    fn is_busy(&self) -> bool {
        self.turns.values().any(|turn| turn.output.is_none())
    }
}

impl Open {
    fn close(&mut self, id: &str) -> bool {
        let Some(session) = self.sessions.remove(id) else {
            return false;
        };
        self.bytes -= SESSION_BYTES;
        for turn in session.turns.into_values() {
            self.forget(turn);
        }
        true
    }

    /// Gives back the memory of a request that is taken out, and cancels it if it runs.
    fn forget(&mut self, turn: Turn) {
        self.bytes -= turn.bytes();
        if let (None, Some(canceller)) = (&turn.output, &turn.canceller) {
            canceller.cancel();
        }
    }

    fn insert(&mut self, session: &str, rid: RequestId, turn: Turn) {
        self.bytes += turn.bytes();
        let session = self.sessions.get_mut(session);
        let earlier = session.and_then(|session| session.turns.insert(rid, turn));
        if let Some(earlier) = earlier {
            self.forget(earlier);
        }
    }

    /// Takes requests out, with all that went on from them.
    fn remove_all(&mut self, session: &str, mut rids: Vec<RequestId>) {
        while let Some(rid) = rids.pop() {
            let Some(found) = self.sessions.get_mut(session) else {
                return;
            };
            let gone = found.turns.remove(&rid);
            let is_child = |turn: &Turn| turn.parent.as_ref() == Some(&rid);
            let children = found.turns.iter().filter(|(_, turn)| is_child(turn));
            rids.extend(children.map(|(rid, _)| rid.clone()));
            if let Some(turn) = gone {
                self.forget(turn);
            }
        }
    }

    /// The tokens of a request behind those that it goes on from.
    fn prompt(
        &mut self,
        params: &SessionParams,
        rid: &RequestId,
        new: &[u32],
    ) -> Result<Vec<u32>, ApiError> {
        let Some(session) = self.sessions.get_mut(&params.id) else {
            let text = format!(
                "session {:?} is not open: open one with /open_session",
                params.id
            );
            return Err(ApiError::field(PARAMS, text));
        };
        session.used = Instant::now();
        let namesake = session.turns.get(rid);
        if namesake.is_some_and(|turn| !(params.replace && turn.parent == params.rid)) {
            let text = format!(
                "rid {:?} is one of the session's requests already: choose another",
                rid.as_str()
            );
            return Err(ApiError::field("rid", text));
        }
        let capacity = session.capacity;
        let prompt = match &params.rid {
            None => new.to_vec(),
            Some(rid) => {
                let Some(turn) = session.turns.get(rid) else {
                    let text = format!("the session has no request {:?}", rid.as_str());
                    return Err(ApiError::field(PARAMS, text));
                };
                if turn.output.is_none() && !params.replace {
                    let text = format!(
                        "request {:?} has not ended: wait for it, or send replace",
                        rid.as_str()
                    );
                    return Err(ApiError::field(PARAMS, text));
                }
                let output = turn.output.as_deref().unwrap_or(&[]);
                let output = if params.drop_previous_output {
                    &[]
                } else {
                    output
                };
                let earlier: Vec<u32> = turn.prompt.iter().chain(output).copied().collect();
                let kept = params.kept_of(earlier.len());
                earlier[..kept].iter().chain(new).copied().collect()
            }
        };
        if prompt.len() > capacity {
            let text = format!(
                "the request has {} tokens, the session's capacity_of_str_len is {capacity}: open a larger one",
                prompt.len()
            );
            return Err(ApiError::field(PARAMS, text));
        }
        Ok(prompt)
    }

    /// Takes out what a request replaces: all that there is, or what went on from its parent, which is cancelled if it runs.
    fn replace(&mut self, params: &SessionParams) {
        let Some(session) = self.sessions.get_mut(&params.id) else {
            return;
        };
        let parent = params.rid.as_ref();
        let is_replaced = |turn: &Turn| turn.parent.as_ref() == parent;
        let replaced = session.turns.iter().filter(|(_, turn)| is_replaced(turn));
        let replaced: Vec<RequestId> = replaced.map(|(rid, _)| rid.clone()).collect();
        if let Some(turn) = parent.and_then(|rid| session.turns.get(rid))
            && let (None, Some(canceller)) = (&turn.output, &turn.canceller)
        {
            canceller.cancel();
        }
        self.remove_all(&params.id, replaced);
    }

    /// The request at a place, unless it was replaced or its session closed.
    fn turn_at(&mut self, place: &SessionTurn) -> Option<&mut Turn> {
        let session = self.sessions.get_mut(&place.session)?;
        let turn = session.turns.get_mut(&place.rid)?;
        (turn.number == place.number).then_some(turn)
    }
}

/// The place of a request that runs in its session; dropped before the request has ended, it is given up.
pub(in crate::server) struct SessionTurn {
    store: SessionStore,
    session: String,
    rid: RequestId,
    number: u64,
}

impl SessionTurn {
    /// The request is under way. It is cancelled at once if its place is gone already.
    pub(in crate::server) fn started(&self, canceller: Canceller) {
        match self.store.lock().turn_at(self) {
            Some(turn) => turn.canceller = Some(canceller),
            None => {
                canceller.cancel();
            }
        }
    }

    /// The request has ended with this output.
    pub(in crate::server) fn ended(self, output: &[u32]) {
        let mut open = self.store.lock();
        let Some(turn) = open.turn_at(&self) else {
            return;
        };
        turn.output = Some(output.into());
        turn.canceller = None;
        open.bytes += size_of_val(output);
        if let Some(session) = open.sessions.get_mut(&self.session) {
            session.used = Instant::now();
        }
    }
}

impl Drop for SessionTurn {
    fn drop(&mut self) {
        let mut open = self.store.lock();
        let runs = open.turn_at(self).is_some_and(|turn| turn.output.is_none());
        if runs {
            open.remove_all(&self.session, vec![self.rid.clone()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(max_bytes: usize) -> SessionStore {
        SessionStore::new(&ServerConfig {
            sessions_max_count: 2,
            sessions_max_bytes: max_bytes,
            ..ServerConfig::default()
        })
    }

    fn open(store: &SessionStore, capacity: usize) -> String {
        let opening = Opening {
            id: None,
            capacity,
            idle: None,
        };
        store.open(opening).expect("there is room")
    }

    fn params(id: &str, rid: Option<&str>) -> SessionParams {
        SessionParams {
            id: id.to_owned(),
            rid: rid.map(RequestId::new),
            ..SessionParams::default()
        }
    }

    #[test]
    fn requests_go_on_from_each_other_and_leave_no_memory() {
        let store = store(1 << 20);
        let id = open(&store, 100);
        let (prompt, turn) = store
            .begin(&params(&id, None), &RequestId::new("a"), &[1, 2])
            .expect("the first");
        assert_eq!(*prompt, [1, 2]);
        let runs = store.begin(&params(&id, Some("a")), &RequestId::new("b"), &[5]);
        assert!(runs.is_err(), "it has not ended");
        turn.ended(&[3, 4]);
        let named = |name: &str, params: &SessionParams| {
            let (prompt, turn) = store
                .begin(params, &RequestId::new(name), &[9])
                .expect("it has ended");
            turn.ended(&[8]);
            prompt.to_vec()
        };
        let behind = |params: &SessionParams| named("b", params);
        let plain = SessionParams {
            replace: true,
            ..params(&id, Some("a"))
        };
        assert_eq!(behind(&plain), [1, 2, 3, 4, 9]);
        let offset = |offset| SessionParams {
            offset: Some(offset),
            ..plain.clone()
        };
        assert_eq!(behind(&offset(1)), [1, 9]);
        assert_eq!(behind(&offset(-1)), [1, 2, 3, 9]);
        assert_eq!(behind(&offset(-50)), [9]);
        assert_eq!(behind(&offset(i64::MAX)), [1, 2, 3, 4, 9]);
        let without = SessionParams {
            drop_previous_output: true,
            ..plain.clone()
        };
        assert_eq!(behind(&without), [1, 2, 9]);
        // What is refused replaces nothing, and no request takes the place of one that it does not replace.
        let long = vec![1; 101];
        assert!(store.begin(&plain, &RequestId::new("b"), &long).is_err());
        let again = store.begin(&params(&id, Some("a")), &RequestId::new("b"), &[1]);
        assert!(again.is_err(), "there is one of this name");
        assert_eq!(named("c", &params(&id, Some("b"))), [1, 2, 9, 8, 9]);
        // Replacing from the beginning forgets the rest.
        let anew = SessionParams {
            replace: true,
            ..params(&id, None)
        };
        assert_eq!(named("d", &anew), [9]);
        assert!(store.begin(&plain, &RequestId::new("e"), &[1]).is_err());
        assert!(store.close(&id) && !store.close(&id));
        assert_eq!(store.lock().bytes, 0);
    }

    #[test]
    fn a_request_that_is_given_up_leaves_its_session() {
        let store = store(1 << 20);
        let id = open(&store, 100);
        let begun = store.begin(&params(&id, None), &RequestId::new("a"), &[1]);
        drop(begun);
        assert!(
            store
                .begin(&params(&id, Some("a")), &RequestId::new("b"), &[1])
                .is_err()
        );
        let before = store.lock().bytes;
        let (_, turn) = store
            .begin(&params(&id, None), &RequestId::new("a"), &[1])
            .expect("it is open");
        store.close(&id);
        turn.ended(&[1, 2, 3]);
        assert_eq!((before, store.lock().bytes), (SESSION_BYTES, 0));
    }

    #[test]
    fn sessions_are_bounded_by_number_tokens_and_bytes() {
        let store = store(2 * SESSION_BYTES + TURN_BYTES + 40);
        let (first, second) = (open(&store, 4), open(&store, 100));
        let third = Opening {
            id: None,
            capacity: 1,
            idle: None,
        };
        assert!(store.open(third).is_err());
        let begin = |id: &str, tokens: usize| {
            let tokens = vec![1; tokens];
            store.begin(&params(id, None), &RequestId::new("a"), &tokens)
        };
        assert!(begin(&first, 5).is_err(), "more than its capacity");
        assert!(begin(&second, 11).is_err(), "more than all may take");
        assert!(begin(&second, 10).is_ok());
    }
}
