//! Tests of the session store and its bounds.

use super::*;
use souffleur_base::error::RequestError;

const BOS: u32 = 77;

fn store(max_bytes: usize) -> SessionStore {
    SessionStore::new(&ServerConfig {
        sessions_max_count: 2,
        sessions_max_bytes: max_bytes,
        ..ServerConfig::default()
    })
}

fn open(store: &SessionStore, capacity: usize) -> String {
    let new_session = NewSession {
        id: None,
        capacity,
        idle: None,
    };
    store.open(new_session).expect("the store is not full")
}

fn begin(
    store: &SessionStore,
    params: &SessionParams,
    name: &str,
    new: &[u32],
) -> Result<(Arc<[u32]>, SessionTurn), ApiError> {
    let new = NewTokens {
        tokens: new.to_vec(),
        bos: Some(BOS),
    };
    let rid = RequestId::new(name);
    store.begin(params, &rid, &new, |prompt| Ok((prompt, None)))
}

fn params(id: &str, rid: Option<&str>) -> SessionParams {
    SessionParams {
        id: id.to_owned(),
        rid: rid.map(RequestId::new),
        ..SessionParams::default()
    }
}

#[test]
fn requests_continue_each_other_and_free_their_memory() {
    let store = store(1 << 20);
    let id = open(&store, 100);
    let (prompt, turn) = begin(&store, &params(&id, None), "a", &[1, 2]).expect("the first");
    assert_eq!(*prompt, [1, 2]);
    let runs = begin(&store, &params(&id, Some("a")), "b", &[5]);
    assert!(runs.is_err(), "it has not ended");
    turn.ended(&[3, 4]);
    let named = |name: &str, params: &SessionParams| {
        let (prompt, turn) = begin(&store, params, name, &[9]).expect("it has ended");
        turn.ended(&[8]);
        prompt.to_vec()
    };
    let after = |params: &SessionParams| named("b", params);
    let plain = SessionParams {
        replace: true,
        ..params(&id, Some("a"))
    };
    assert_eq!(after(&plain), [1, 2, 3, 4, 9]);
    let offset = |offset| SessionParams {
        offset: Some(offset),
        ..plain.clone()
    };
    assert_eq!(after(&offset(1)), [1, 9]);
    assert_eq!(after(&offset(-1)), [1, 2, 3, 9]);
    assert_eq!(after(&offset(-50)), [9]);
    assert_eq!(after(&offset(i64::MAX)), [1, 2, 3, 4, 9]);
    let without = SessionParams {
        drop_previous_output: true,
        ..plain.clone()
    };
    assert_eq!(after(&without), [1, 2, 9]);
    // A refused request replaces nothing. The id of an existing request can only be reused to replace that request.
    let long = vec![1; 101];
    assert!(begin(&store, &plain, "b", &long).is_err());
    let again = begin(&store, &params(&id, Some("a")), "b", &[1]);
    assert!(again.is_err(), "the id is taken");
    assert_eq!(named("c", &params(&id, Some("b"))), [1, 2, 9, 8, 9]);
    // Replacing the first request deletes all others.
    let anew = SessionParams {
        replace: true,
        ..params(&id, None)
    };
    assert_eq!(named("d", &anew), [9]);
    assert!(begin(&store, &plain, "e", &[1]).is_err());
    assert!(store.close(&id) && !store.close(&id));
    assert_eq!(store.lock().bytes, 0);
}

#[test]
fn an_abandoned_request_is_removed_from_its_session() {
    let store = store(1 << 20);
    let id = open(&store, 100);
    let begun = begin(&store, &params(&id, None), "a", &[1]);
    drop(begun);
    assert!(begin(&store, &params(&id, Some("a")), "b", &[1]).is_err());
    let before = store.lock().bytes;
    let (_, turn) = begin(&store, &params(&id, None), "a", &[1]).expect("it is open");
    store.close(&id);
    turn.ended(&[1, 2, 3]);
    assert_eq!((before, store.lock().bytes), (SESSION_BYTES, 0));
}

#[test]
fn sessions_are_bounded_by_number_tokens_and_bytes() {
    let store = store(2 * SESSION_BYTES + TURN_BYTES + 40);
    let (first, second) = (open(&store, 4), open(&store, 100));
    let third = NewSession {
        id: None,
        capacity: 1,
        idle: None,
    };
    assert!(store.open(third).is_err());
    let begin = |id: &str, tokens: usize| {
        let tokens = vec![1; tokens];
        begin(&store, &params(id, None), "a", &tokens)
    };
    assert!(begin(&first, 5).is_err(), "too many tokens");
    assert!(begin(&second, 11).is_err(), "too many bytes");
    assert!(begin(&second, 10).is_ok());
}

#[test]
fn bos_is_kept_only_at_the_beginning() {
    let store = store(1 << 20);
    let id = open(&store, 100);
    let prompt_of = |params: &SessionParams, name: &str, new: &[u32]| {
        let (prompt, turn) = begin(&store, params, name, new).expect("it is open");
        turn.ended(&[3]);
        prompt.to_vec()
    };
    assert_eq!(prompt_of(&params(&id, None), "a", &[BOS, 1]), [BOS, 1]);
    let after = params(&id, Some("a"));
    assert_eq!(prompt_of(&after, "b", &[BOS, 2]), [BOS, 1, 3, 2]);
    // Only one BOS token is removed, as clients add at most one.
    assert_eq!(prompt_of(&after, "c", &[BOS, BOS, 2]), [BOS, 1, 3, BOS, 2]);
    assert_eq!(prompt_of(&after, "d", &[2, BOS]), [BOS, 1, 3, 2, BOS]);
    let nothing_kept = SessionParams {
        offset: Some(-50),
        ..after
    };
    assert_eq!(prompt_of(&nothing_kept, "e", &[BOS, 2]), [BOS, 2]);
}

#[test]
fn a_failed_request_replaces_nothing() {
    let store = store(1 << 20);
    let id = open(&store, 100);
    let replacing = SessionParams {
        replace: true,
        ..params(&id, Some("a"))
    };
    for (rid, name) in [(None, "a"), (Some("a"), "b"), (Some("b"), "c")] {
        let (_, turn) = begin(&store, &params(&id, rid), name, &[1]).expect("it is open");
        turn.ended(&[2]);
    }
    let before = store.lock().bytes;
    let continues = |rid: &str| {
        let begun = begin(&store, &params(&id, Some(rid)), "next", &[9]);
        begun.map(|(prompt, _)| prompt.to_vec())
    };
    // The engine refuses the request.
    let new = NewTokens {
        tokens: vec![1],
        bos: None,
    };
    let full = |_| -> Result<((), Option<Canceller>), ApiError> {
        Err(RequestError::EngineDown("full".to_owned()).into())
    };
    let refused = store.begin(&replacing, &RequestId::new("b"), &new, full);
    assert!(refused.is_err() && continues("c").is_ok());
    // The request fails later, or its client disconnects.
    let failing = begin(&store, &replacing, "d", &[1]);
    assert!(continues("c").is_err(), "the request is replaced for now");
    drop(failing);
    assert_eq!(continues("c").ok(), Some(vec![1, 2, 1, 2, 1, 2, 9]));
    assert_eq!(store.lock().bytes, before);
    // Another request has taken one of the ids: the replaced requests are dropped.
    let failing = begin(&store, &replacing, "d", &[1]);
    let (_, turn) = begin(&store, &params(&id, Some("a")), "b", &[5]).expect("the name is free");
    turn.ended(&[]);
    drop(failing);
    assert!(continues("c").is_err() && continues("b").is_ok());
    // The session is closed before the request fails.
    let failing = begin(&store, &replacing, "d", &[1]);
    store.close(&id);
    drop(failing);
    assert_eq!(store.lock().bytes, 0);
}
