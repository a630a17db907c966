//! Tests of the sizes and forms of events.

use serde_json::Value;

use super::super::sample::Status;
use super::super::tree::mirror::Mirror;
use super::*;
use souffleur_base::ids::{IntakeId, RequestId};
use souffleur_state::cache::changes::{Above, TreeNote};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::scheduler::live::LiveState;
use souffleur_state::scheduler::stats::EngineStats;

fn step_of(id: u64) -> PastStep {
    PastStep {
        id,
        start_us: u64::MAX >> 10,
        duration_us: u32::MAX,
        rows: 4096,
        prefill_tokens: 131_072,
        decode_tokens: 4096,
    }
}

fn request_of(rid: &str) -> LiveRequest {
    LiveRequest {
        intake: IntakeId::new(1 << 40),
        rid: RequestId::new(rid),
        state: LiveState::Retracted,
        prompt: 1_000_000,
        cached: 1_000_000,
        computed: 1_000_000,
        output: 1_000_000,
        loaded: 1_000_000,
        pages: 1_000_000,
        retractions: 9,
        losses: 9,
        resumptions: 9,
        queued_s: 1e6,
        running_s: 1e6,
    }
}

fn sample_of(rid: &str) -> Sample {
    let view = EngineView {
        stats: EngineStats::default(),
        output_tokens: 7,
        steps: (1001..=1128).map(step_of).collect(),
        newest_step: 1128,
        requests: vec![request_of(rid); 64],
        n_requests: 300,
        pools: Vec::new(),
        pins: Vec::new(),
    };
    Sample {
        t_ms: 61_250.4,
        status: Status {
            phase: "ready",
            reason: None,
            generation: 2,
            died: None,
        },
        view: Some(Box::new(view)),
        mailboxes: Vec::new(),
        store: Some((1000, 10)),
        loading: None,
    }
}

#[track_caller]
fn data(event: &Bytes, name: &str) -> Value {
    let text = std::str::from_utf8(event).expect("events are text");
    let text = text.strip_prefix(&format!("event: {name}\ndata: "));
    let text = text.and_then(|text| text.strip_suffix("\n\n"));
    serde_json::from_str(text.expect("one event")).expect("its data is JSON")
}

fn len(list: &Value) -> usize {
    list.as_array().expect("a list").len()
}

#[test]
fn a_frame_has_the_steps_after_the_last_frame() {
    let sample = sample_of("of-a-client");
    let first = data(&frame(&sample, None, true), "frame");
    assert_eq!(
        (len(&first["steps"]), &first["steps_left_out"]),
        (128, &json!(0))
    );
    assert_eq!(first["requests_total"], 300);
    assert_eq!(
        first["pools"][0]["parts"],
        json!({"free": 990, "stored": 10})
    );
    let next = data(&frame(&sample, Some(1125), true), "frame");
    let ids: Vec<_> = next["steps"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| &row[0])
        .collect();
    assert_eq!(ids, [1126, 1127, 1128]);
    assert_eq!(len(&next["steps"][0]), 6);
    let late = data(&frame(&sample, Some(100), false), "frame");
    assert_eq!(
        (len(&late["steps"]), &late["steps_left_out"]),
        (128, &json!(900))
    );
    assert_eq!(late["requests"][0][9], Value::Null);
    assert_eq!(next["requests"][0][9], "of-a-client");
    assert_eq!(next["requests"][0][8], json!(mark("of-a-client")));
}

#[test]
fn the_mark_is_the_hash_of_the_protocol() {
    // Test vectors of FNV-1a.
    assert_eq!(mark(""), 0x811c_9dc5);
    assert_eq!(mark("a"), 0xe40c_292c);
    assert_eq!(mark("foobar"), 0xbf9c_f968);
}

#[test]
fn a_frame_of_hostile_ids_stays_within_its_size() {
    let sample = sample_of(&"\u{1}".repeat(1000));
    let event = frame(&sample, Some(0), true);
    assert!(event.len() <= MAX_FRAME_BYTES + 32, "{} bytes", event.len());
    let frame = data(&event, "frame");
    assert!(len(&frame["requests"]) > 8);
    assert_eq!(frame["requests_total"], 300);
    let rid = frame["requests"][0][9].as_str().expect("a text");
    assert_eq!(rid.len(), MAX_RID_BYTES);
    assert_eq!(cut("aé", 2), "a");
}

#[test]
fn a_tree_of_hostile_names_stays_within_its_size() {
    let mut mirror = Mirror::default();
    let mut events = Vec::new();
    for node in 0..400 {
        let name = format!("{node}{}", "\u{1}".repeat(100));
        let event = mirror.apply(&TreeNote::Stored {
            node,
            above: Above::Root(Namespace::new(Some(&name), None)),
            tokens: 1_000_000 - node as usize,
        });
        events.extend(event);
    }
    let picture = Picture::of(&mirror);
    let message = || TreeMessage {
        kind: "snapshot",
        delta: picture.since(&Picture::default()),
        events: events.clone(),
        left_out: 3,
    };
    let event = tree(message(), &picture, Some(mirror.names()));
    assert!(event.len() <= MAX_TREE_BYTES + 32, "{} bytes", event.len());
    let sent = data(&event, "tree");
    assert_eq!(len(&sent["set"]), 400);
    let left_out = sent["events_left_out"].as_u64().expect("a number");
    assert_eq!(len(&sent["events"]) as u64 + left_out, 403);
    assert_eq!(sent["total"]["nodes"], 400);
    let sent = data(&tree(message(), &picture, None), "tree");
    assert!(sent.get("namespaces").is_none());
}
