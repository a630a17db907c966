//! Tests of message logs of requests with drafts.

use super::*;
use crate::digest::{Seq, StepDigest};
use souffleur_base::ids::{RowId, SeqId, StateSlot};
use souffleur_state::step::{RowWork, StateSave, StepRow};

/// The log of a busy engine, a part `accept` of whose drafts is right.
fn log_with_drafts(setup: &ControlSetup, accept: f64) -> Vec<u8> {
    log_with(setup, NO_LIMIT, |sink| {
        let engine = Engine::with_drafts(setup, Some(sink.recorder(1)), Some(accept));
        let engine = submit_rounds_to(engine, 120);
        let stats = engine.states.scheduler.stats();
        assert!(stats.cached_tokens > 0 && stats.integrity_failures == 0);
    })
}

/// Number of entries with a decode that has room for drafts.
fn n_roomy(entries: &[Entry]) -> usize {
    let steps = entries.iter().map(|entry| format!("{entry:?}"));
    steps.filter(|step| step.contains("RoomyDecode")).count()
}

fn setups() -> [ControlSetup; 3] {
    let (plain, mut states, mut windows) = (setup(), setup(), setup());
    states.limits.states = Some(StateLimits {
        total_slots: 10,
        grid_tokens: 16,
    });
    windows.limits.windows = Some(WindowLimits {
        tokens: 12,
        total_pages: 120,
    });
    [plain, states, windows]
}

#[test]
fn plans_with_room_for_drafts_are_replayed_to_the_same_pages() {
    for setup in setups() {
        for accept in [0.0, 0.5, 1.0] {
            let log = log_with_drafts(&setup, accept);
            assert!(n_roomy(&entries_of(&log)) > 10, "{accept}");
            let replayed = replay_of(&log).expect("it can be replayed");
            assert_eq!(replayed.difference, None, "{accept}");
            assert!(replayed.counts.steps > 30 && replayed.counts.requests > 120);
        }
    }
}

#[test]
fn a_replay_without_the_rooms_of_the_log_differs() {
    let mut entries = entries_of(&log_with_drafts(&setup(), 0.5));
    let mut n_changed = 0;
    for entry in &mut entries {
        if let Entry::Submit(request) = entry {
            let with_room = std::mem::take(&mut request.sampling_json);
            let mut params: SamplingParams =
                serde_json::from_str(&with_room).expect("it is the log's own");
            params.speculative_num_draft_tokens = None;
            request.sampling_json = serde_json::to_string(&params).expect("it is plain data");
            n_changed += usize::from(request.sampling_json != with_room);
        }
    }
    assert!(n_changed > 10);
    let replayed = replay_of(&forged(&setup(), &entries)).expect("it can be replayed");
    assert!(replayed.difference.is_some());
}

#[test]
fn logs_without_drafts_have_no_entry_of_theirs() {
    let entries = entries_of(&log_of(NO_LIMIT, busy));
    assert_eq!(n_roomy(&entries), 0);
    let submitted = entries.iter().find_map(|entry| match entry {
        Entry::Submit(request) => Some(request.sampling_json.clone()),
        _ => None,
    });
    let submitted = submitted.expect("some requests are plain");
    assert!(!submitted.contains("speculative"), "{submitted}");
}

/// The digest's bytes of a decode at position 300.
fn encoded(room: u32, saves: &[StateSave]) -> Vec<u8> {
    let plan = StepPlan {
        step: StepId::new(9),
        starts: Vec::new(),
        table: Vec::new(),
        rows: vec![StepRow {
            row: RowId::new(2),
            seq: SeqId::new(5 << 32),
            work: RowWork::Decode {
                position: 300,
                room,
            },
            sample: true,
            logprobs: None,
            saves: saves.into(),
        }],
        copies: None,
        vision: None,
    };
    postcard::to_extend(&StepDigest::from(&plan), Vec::new()).expect("it is plain data")
}

#[test]
fn a_decode_without_room_encodes_as_in_older_logs() {
    let seq = Seq::from(SeqId::new(5 << 32));
    let encoded_as = |work: &[u8]| {
        // The step, no starts, no edits, one row.
        let mut bytes: Vec<u8> = vec![9, 0, 0, 1, 2];
        bytes = postcard::to_extend(&seq, bytes).expect("it is plain data");
        bytes.extend(work);
        // It samples, and has no log probabilities.
        bytes.extend([1, 0]);
        bytes
    };
    let save = StateSave {
        position: 301,
        slot: StateSlot::new(7),
    };
    // Position 300 encodes as 172, 2.
    assert_eq!(encoded(1, &[]), encoded_as(&[1, 172, 2]));
    assert_eq!(encoded(1, &[save]), encoded_as(&[3, 172, 2, 7]));
    assert_eq!(encoded(8, &[]), encoded_as(&[4, 172, 2, 8, 0]));
    assert_eq!(encoded(8, &[save]), encoded_as(&[4, 172, 2, 8, 1, 7]));
}
