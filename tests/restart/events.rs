//! Tests of KV events after a restart: subscribers get the blocks that a request has loaded, under their former ids.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::get;
use crate::server::{Launch, Server};
use crate::zmq_peer::Peer;
use crate::{BLOCK_TOKENS, STORED_TOKENS, model, prompt};

/// The ids of the blocks that were stored since the server started, each with its tokens.
fn stored(server: &Server) -> Vec<(Value, Value)> {
    let info = get(server.addr, "/server_info").ok();
    let port = info["kv_events"]["replay_endpoint_port_base"].as_u64();
    let port = port.expect("the setting is a port") as u16;
    let batches = Peer::connect(port, "REQ").ask(0);
    let list = |value: &Value| value.as_array().expect("the value is a list").clone();
    let events = batches.iter().flat_map(|batch| list(&batch.payload[1]));
    let events = events.filter(|event| event["type"] == "BlockStored");
    let blocks = events.flat_map(|event| {
        let tokens = list(&event["token_ids"]);
        let tokens = tokens
            .chunks(BLOCK_TOKENS as usize)
            .map(|tokens| json!(tokens));
        let ids = list(&event["block_hashes"]);
        ids.into_iter().zip(tokens.collect::<Vec<Value>>())
    });
    blocks.collect()
}

#[test]
fn loaded_blocks_are_published_like_computed_ones() {
    let folder = TempDir::new().expect("a folder can be made");
    let events = json!({
        "publisher": "zmq",
        "endpoint": "tcp://127.0.0.1:0",
        "replay_endpoint": "tcp://127.0.0.1:0",
        "block_size": BLOCK_TOKENS,
    });
    let launch = Launch::new(&model("souffleur-tiny")).with_store(folder.path());
    let launch = launch.args(&["--kv-events-config", &events.to_string()]);
    let n_blocks = (STORED_TOKENS / BLOCK_TOKENS) as usize;

    let first = launch.start_serving();
    first.ask(&prompt(1));
    first.wait_until_written(STORED_TOKENS);
    first.wait_until("both blocks are published", || {
        stored(&first).len() >= n_blocks
    });
    let before = stored(&first);
    first.kill();

    let second = launch.start_serving();
    // Blocks on the disk are published once a request has loaded them.
    assert_eq!(stored(&second), []);
    assert_eq!(second.ask(&prompt(1)).stored, STORED_TOKENS);
    second.wait_until("both blocks are published", || {
        stored(&second).len() >= n_blocks
    });
    assert_eq!(stored(&second)[..n_blocks], before[..n_blocks]);
}
