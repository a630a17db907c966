//! Stores open sessions: the tokens of their requests, which later requests continue. The store is bounded by number,
//! bytes and idle time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::params::SessionParams;
use crate::config::ServerConfig;
use crate::error::ApiError;
use souffleur_base::ids::RequestId;
use souffleur_engine::Canceller;

/// Bytes that a request takes in addition to its tokens.
const TURN_BYTES: usize = 512;
/// Bytes that an open session takes in addition to its requests.
const SESSION_BYTES: usize = 1024;

const PARAMS: &str = "session_params";

#[derive(Clone)]
pub(crate) struct SessionStore(Arc<Inner>);

struct Inner {
    max_count: usize,
    max_bytes: usize,
    idle: Duration,
    open: Mutex<OpenSessions>,
}

#[derive(Default)]
struct OpenSessions {
    sessions: FxHashMap<String, Session>,
    bytes: usize,
    next_turn: u64,
}

pub(super) struct NewSession {
    pub(super) id: Option<String>,
    /// Maximum tokens of a request's prompt, which includes the earlier prompts and outputs that it continues.
    pub(super) capacity: usize,
    /// How long the session may be idle, if that is less than the server allows.
    pub(super) idle: Option<Duration>,
}

pub(super) struct NewTokens {
    pub(super) tokens: Vec<u32>,
    /// The BOS token, which may only be the first token of a prompt.
    pub(super) bos: Option<u32>,
}

impl NewTokens {
    /// The tokens to append to `kept` earlier ones.
    fn after(&self, kept: usize) -> &[u32] {
        match self.tokens.split_first() {
            Some((first, rest)) if kept > 0 && Some(*first) == self.bos => rest,
            _ => &self.tokens,
        }
    }
}

struct Session {
    capacity: usize,
    idle: Duration,
    last_used: Instant,
    turns: FxHashMap<RequestId, Turn>,
}

struct Turn {
    number: u64,
    parent: Option<RequestId>,
    prompt: Arc<[u32]>,
    /// `None` while the request runs.
    output: Option<Arc<[u32]>>,
    canceller: Option<Canceller>,
}

impl Turn {
    fn bytes(&self) -> usize {
        let output = self.output.as_ref().map_or(0, |output| output.len());
        TURN_BYTES + (self.prompt.len() + output) * size_of::<u32>()
    }

    fn cancel(&self) {
        if let (None, Some(canceller)) = (&self.output, &self.canceller) {
            canceller.cancel();
        }
    }
}

impl SessionStore {
    pub(crate) fn new(config: &ServerConfig) -> Self {
        Self(Arc::new(Inner {
            max_count: config.sessions_max_count,
            max_bytes: config.sessions_max_bytes,
            idle: Duration::from_secs(config.sessions_idle_s.into()),
            open: Mutex::default(),
        }))
    }

    /// Opens a session and returns its id. Fails if another session has the id, or at the limit of sessions.
    pub(super) fn open(&self, new_session: NewSession) -> Result<String, ApiError> {
        let mut open = self.lock();
        let limit = self.0.max_count;
        if open.sessions.len() >= limit {
            return Err(ApiError::sessions_full("sessions", limit));
        }
        let id = new_session
            .id
            .unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
        if open.sessions.contains_key(&id) {
            let text = format!("session_id {id:?} is open already: close it, or choose another");
            return Err(ApiError::field("session_id", text));
        }
        let session = Session {
            capacity: new_session.capacity,
            idle: new_session
                .idle
                .map_or(self.0.idle, |idle| idle.min(self.0.idle)),
            last_used: Instant::now(),
            turns: FxHashMap::default(),
        };
        open.bytes += SESSION_BYTES;
        open.sessions.insert(id.clone(), session);
        Ok(id)
    }

    /// Closes a session, and cancels its running requests. Returns whether it was open.
    pub(super) fn close(&self, id: &str) -> bool {
        self.lock().close(id)
    }

    /// Starts a request whose prompt continues its session, and adds it to the session. `start` sends the request to
    /// the engine, and returns a value for the caller and the request's canceller.
    ///
    /// # Errors
    /// An error if there is no such session or request, if the new request's id is taken, or if the session or the
    /// memory of all sessions is full; the errors of `start`. No request is replaced then.
    pub(super) fn begin<T>(
        &self,
        params: &SessionParams,
        rid: &RequestId,
        new: &NewTokens,
        start: impl FnOnce(Arc<[u32]>) -> Result<(T, Option<Canceller>), ApiError>,
    ) -> Result<(T, SessionTurn), ApiError> {
        let mut open = self.lock();
        let number = open.next_turn;
        open.next_turn += 1;
        let prompt: Arc<[u32]> = open.prompt(params, rid, new)?.into();
        let mut turn = Turn {
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
        let (started, canceller) = start(prompt)?;
        turn.canceller = canceller;
        let replaced = if params.replace {
            open.replace(params)
        } else {
            Vec::new()
        };
        open.insert(&params.id, rid.clone(), turn);
        let session_turn = SessionTurn {
            store: self.clone(),
            session: params.id.clone(),
            rid: rid.clone(),
            number,
            replaced,
        };
        Ok((started, session_turn))
    }

    /// Locks the sessions and closes those that were idle for too long.
    fn lock(&self) -> MutexGuard<'_, OpenSessions> {
        let open = self.0.open.lock();
        let mut open = open.unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_over = |session: &Session| {
            now.duration_since(session.last_used) >= session.idle && !session.is_busy()
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

impl OpenSessions {
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

    /// Releases the memory of a removed request, and cancels it if it runs.
    fn forget(&mut self, turn: Turn) {
        self.bytes -= turn.bytes();
        turn.cancel();
    }

    /// Puts back replaced requests that had ended, unless their session is closed or their ids are taken.
    fn restore(&mut self, session: &str, replaced: Vec<(RequestId, Turn)>) {
        let found = self.sessions.get(session);
        let is_free = found.is_some_and(|session| {
            let mut rids = replaced.iter().map(|(rid, _)| rid);
            rids.all(|rid| !session.turns.contains_key(rid))
        });
        for (rid, turn) in replaced {
            let found = self.sessions.get_mut(session);
            match found.filter(|_| is_free && turn.output.is_some()) {
                Some(session) => drop(session.turns.insert(rid, turn)),
                None => self.forget(turn),
            }
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

    fn remove_all(&mut self, session: &str, rids: Vec<RequestId>) {
        for (_, turn) in self.take_all(session, rids) {
            self.forget(turn);
        }
    }

    /// Takes requests out, with all their continuations.
    fn take_all(&mut self, session: &str, mut rids: Vec<RequestId>) -> Vec<(RequestId, Turn)> {
        let mut taken = Vec::new();
        let Some(found) = self.sessions.get_mut(session) else {
            return taken;
        };
        while let Some(rid) = rids.pop() {
            let gone = found.turns.remove(&rid);
            let is_child = |turn: &Turn| turn.parent.as_ref() == Some(&rid);
            let children = found.turns.iter().filter(|(_, turn)| is_child(turn));
            rids.extend(children.map(|(rid, _)| rid.clone()));
            taken.extend(gone.map(|turn| (rid, turn)));
        }
        taken
    }

    /// The prompt of a request: the tokens that it continues, and its new tokens.
    fn prompt(
        &mut self,
        params: &SessionParams,
        rid: &RequestId,
        new: &NewTokens,
    ) -> Result<Vec<u32>, ApiError> {
        let Some(session) = self.sessions.get_mut(&params.id) else {
            let text = format!(
                "session {:?} is not open: open one with /open_session",
                params.id
            );
            return Err(ApiError::field(PARAMS, text));
        };
        session.last_used = Instant::now();
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
            None => new.tokens.clone(),
            Some(rid) => {
                let Some(turn) = session.turns.get(rid) else {
                    let text = format!(
                        "the session has no request {:?}: send the rid of one of its requests",
                        rid.as_str()
                    );
                    return Err(ApiError::field(PARAMS, text));
                };
                if turn.output.is_none() && !params.replace {
                    let text = format!(
                        "request {:?} has not ended: wait for it, or set session_params.replace",
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
                [&earlier[..kept], new.after(kept)].concat()
            }
        };
        if prompt.len() > capacity {
            let text = format!(
                "the request has {} tokens, the session's capacity_of_str_len is {capacity}: open a larger session",
                prompt.len()
            );
            return Err(ApiError::field(PARAMS, text));
        }
        Ok(prompt)
    }

    /// Takes out the requests that a new request replaces: the continuations of its parent, or all requests if it has
    /// no parent. Cancels those that run, and the parent if it runs.
    fn replace(&mut self, params: &SessionParams) -> Vec<(RequestId, Turn)> {
        let Some(session) = self.sessions.get_mut(&params.id) else {
            return Vec::new();
        };
        let parent = params.rid.as_ref();
        let is_replaced = |turn: &Turn| turn.parent.as_ref() == parent;
        let replaced = session.turns.iter().filter(|(_, turn)| is_replaced(turn));
        let replaced: Vec<RequestId> = replaced.map(|(rid, _)| rid.clone()).collect();
        if let Some(turn) = parent.and_then(|rid| session.turns.get(rid)) {
            turn.cancel();
        }
        let replaced = self.take_all(&params.id, replaced);
        replaced.iter().for_each(|(_, turn)| turn.cancel());
        replaced
    }

    /// The entry of a request, unless the request was replaced or its session closed.
    fn turn_at(&mut self, session_turn: &SessionTurn) -> Option<&mut Turn> {
        let session = self.sessions.get_mut(&session_turn.session)?;
        let turn = session.turns.get_mut(&session_turn.rid)?;
        (turn.number == session_turn.number).then_some(turn)
    }
}

/// A running request of a session, which is removed if this value is dropped before the end of the request.
pub(crate) struct SessionTurn {
    store: SessionStore,
    session: String,
    rid: RequestId,
    number: u64,
    /// The requests that this request replaces. Those that had ended are restored if this request fails.
    replaced: Vec<(RequestId, Turn)>,
}

impl SessionTurn {
    pub(crate) fn ended(mut self, output: &[u32]) {
        let store = self.store.clone();
        let mut open = store.lock();
        for (_, turn) in std::mem::take(&mut self.replaced) {
            open.forget(turn);
        }
        let Some(turn) = open.turn_at(&self) else {
            return;
        };
        turn.output = Some(output.into());
        turn.canceller = None;
        open.bytes += size_of_val(output);
        if let Some(session) = open.sessions.get_mut(&self.session) {
            session.last_used = Instant::now();
        }
    }
}

impl Drop for SessionTurn {
    fn drop(&mut self) {
        let replaced = std::mem::take(&mut self.replaced);
        let store = self.store.clone();
        let mut open = store.lock();
        let runs = open.turn_at(self).is_some_and(|turn| turn.output.is_none());
        if runs {
            open.remove_all(&self.session, vec![self.rid.clone()]);
            open.restore(&self.session, replaced);
        } else {
            replaced.into_iter().for_each(|(_, turn)| open.forget(turn));
        }
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
