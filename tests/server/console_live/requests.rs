//! Tests of the rows of requests.

use std::io::Write;

use serde_json::{Value, json};

use super::Viewer;
use crate::http::{connect, post};
use crate::world::World;

/// FNV-1a, as the page computes it.
fn mark(rid: &str) -> u32 {
    rid.bytes().fold(2_166_136_261, |hash: u32, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
    })
}

/// Runs a long request, and checks its row while it decodes. `shown` is the rid that the viewer may see; `key` is a
/// header line.
#[track_caller]
pub fn check_rids(world: &World, viewer: &mut Viewer, shown: Option<&str>, key: &str) {
    let body = json!({
        "rid": "of-the-test", "input_ids": [5, 6, 7, 8, 9], "stream": true,
        "sampling_params": {"max_new_tokens": 60_000, "temperature": 0, "ignore_eos": true},
    });
    let body = body.to_string();
    let (addr, length) = (world.addr, body.len());
    let mut client = connect(addr);
    let head = format!(
        "POST /generate HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n{key}\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    client.write_all(head.as_bytes()).expect("the server reads");
    let row = |viewer: &Viewer| viewer.frame["requests"][0].clone();
    viewer.wait("a request decodes", |viewer| row(viewer)[1] == "decode");
    let request = row(&*viewer);
    assert_eq!(request[2], 5, "{request}");
    assert_eq!((&request[3], &request[4]), (&json!(0), &json!(5)));
    assert_eq!(request[8], mark("of-the-test"));
    assert_eq!(request[9], shown.map_or(Value::Null, Value::from));
    assert_eq!(viewer.frame["requests_total"], 1);
    drop(client);
    viewer.wait("no request", |viewer| viewer.frame["requests_total"] == 0);
}

#[test]
fn waiting_requests_follow_the_running_ones() {
    let world = World::with(|engine, _| engine.max_running_requests = Some(1));
    let mut viewer = Viewer::open(&world);
    let call = |rid: &str| {
        let sampling = json!({"max_new_tokens": 60_000, "temperature": 0, "ignore_eos": true});
        json!({"rid": rid, "input_ids": [5, 6, 7], "stream": true, "sampling_params": sampling})
    };
    let mut first = crate::http::stream(world.addr, "/generate", &call("first"));
    first.next_json();
    let second = crate::http::open(world.addr, "/generate", &call("second"));
    viewer.wait("two requests", |viewer| viewer.frame["requests_total"] == 2);
    viewer.wait("one waits", |viewer| {
        viewer.frame["counters"]["waiting_requests"] == 1
    });
    let rows = viewer.frame["requests"].as_array().expect("rows");
    let marks: Vec<&Value> = rows.iter().map(|row| &row[8]).collect();
    assert_eq!(marks, [&json!(mark("first")), &json!(mark("second"))]);
    assert_eq!(
        (&rows[0][1], &rows[1][1]),
        (&json!("decode"), &json!("waiting"))
    );
    assert_eq!((&rows[1][3], &rows[1][7]), (&json!(0), &json!(0)));
    drop((first, second));
    world.wait_until_idle();
    post(world.addr, "/flush_cache", &json!({})).ok();
}
