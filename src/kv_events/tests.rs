//! Tests of a publisher with real sockets, and peers that send and check raw ZMTP bytes.

#[path = "replica_tests.rs"]
mod replicas;
#[path = "../../tests/common/zmq_peer.rs"]
mod zmq_peer;

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use serde_json::{Value, json};

use zmq_peer::{Message, Peer};

use super::batch::KvEvent;
use super::{ChangeFeed, KvEventPublishers, KvEventsConfig, SubscribeError};
use souffleur_base::error::ConfigError;
use souffleur_base::ids::UnitId;
use souffleur_chaos::Chaos;
use souffleur_state::cache::changes::Observer;
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::radix_tree::{Insert, RadixTree};
use souffleur_state::pool::page_pool::PagePool;
use souffleur_state::pool::pages::{PageSize, PoolLedger};
use souffleur_state::supervision::Incarnation;

const PAGE: u32 = 16;

/// The publisher of an engine without replicas, and the tree that feeds it.
struct World {
    publishers: KvEventPublishers,
    feed: ChangeFeed,
    tree: RadixTree,
    pool: PagePool,
}

/// Starts the publishers of replicas.
fn start(config: &Value, replicas: u32) -> Result<KvEventPublishers, ConfigError> {
    let page_size = PageSize::new(PAGE).expect("positive");
    let config = KvEventsConfig::parse(&config.to_string(), page_size).expect("valid");
    let config = config.expect("KV events are on");
    KvEventPublishers::start(&Chaos::default(), &config, page_size, replicas)
}

/// A generation of a unit.
fn at(unit: u32, generation: u64) -> Incarnation {
    let unit = UnitId::new(unit);
    Incarnation { unit, generation }
}

/// Stores a prompt in a tree.
fn insert(tokens: &[u32], tree: &mut RadixTree, pool: &mut PagePool) {
    let pages = pool.alloc(tokens.len() / PAGE as usize);
    let inserted = tree.insert(Insert {
        namespace: &Namespace::default(),
        tokens,
        owner: None,
        pages: pages.expect("the pool is large"),
        priority: 0,
        inserted_tokens: 0,
    });
    pool.free(inserted.duplicates);
    pool.free(inserted.rest);
}

impl World {
    fn new(config: &Value) -> Self {
        let publishers = start(config, 1).expect("a port is free");
        let (tree, pool) = tree();
        Self {
            feed: publishers.feed(at(0, 1)),
            publishers,
            tree,
            pool,
        }
    }

    fn insert(&mut self, tokens: &[u32]) {
        insert(tokens, &mut self.tree, &mut self.pool);
        self.pass_on();
    }

    fn pass_on(&mut self) {
        assert!(!self.feed.pass_on(&mut self.tree), "the queue has capacity");
    }

    fn subscriber(&self, topic: &str) -> Peer {
        let mut peer = Peer::connect(self.publishers.info().endpoint_port_base, "SUB");
        peer.subscribe(topic);
        peer
    }

    fn replay_client(&self) -> Peer {
        let port = self.publishers.info().replay_endpoint_port_base;
        Peer::connect(port.expect("it is configured"), "REQ")
    }
}

fn tree() -> (RadixTree, PagePool) {
    let page_size = PageSize::new(PAGE).expect("positive");
    let ledger = Arc::new(PoolLedger::new(page_size));
    let policy = EvictionPolicy::from_name("lru").expect("lru exists");
    let mut tree = RadixTree::new(page_size, policy, ledger.clone());
    tree.restart_changes(Observer::Publisher);
    (tree, PagePool::new(400_000, page_size, ledger))
}

fn config() -> Value {
    json!({
        "publisher": "zmq",
        "endpoint": "tcp://*:0",
        "replay_endpoint": "tcp://*:0",
        "topic": "kv",
    })
}

fn tokens(first: u32, n: u32) -> Vec<u32> {
    (first..first + n).collect()
}

fn kinds(messages: &[Message]) -> Vec<(i64, String)> {
    let kind = |message: &Message| {
        assert_eq!(message.topic, "kv");
        let events = message.payload[1].as_array().expect("a list");
        let kinds: Vec<&str> = events
            .iter()
            .map(|event| event["type"].as_str().expect("a name"))
            .collect();
        (message.seq, kinds.join(" "))
    };
    messages.iter().map(kind).collect()
}

fn owned(rows: &[(i64, &str)]) -> Vec<(i64, String)> {
    rows.iter()
        .map(|(seq, kind)| (*seq, (*kind).to_owned()))
        .collect()
}

#[test]
fn subscribers_get_new_events_and_can_request_missed_ones() {
    let mut world = World::new(&config());
    let mut early = world.subscriber("");
    let mut other = world.subscriber("other");
    world.pass_on();
    world.insert(&tokens(1, 40));
    world.insert(&tokens(1, 64));
    let received: Vec<Message> = (0..3).map(|_| early.read_message()).collect();
    let all = [
        (0, "AllBlocksCleared"),
        (1, "BlockStored"),
        (2, "BlockStored"),
        (3, "BlockRemoved"),
    ];
    assert_eq!(kinds(&received), owned(&all[..3]));
    let [first, second] = [1, 2].map(|at: usize| &received[at].payload[1][0]);
    assert_eq!(first["parent_block_hash"], Value::Null);
    assert_eq!(first["token_ids"], json!(tokens(1, 32)));
    assert_eq!(second["parent_block_hash"], first["block_hashes"][1]);
    assert_eq!(second["token_ids"], json!(tokens(33, 32)));
    assert_eq!(second["block_size"], 16);
    assert_eq!(received[0].payload[2], 0);

    let mut late = world.subscriber("k");
    let evicted = world.tree.evict(1);
    world.pool.free_evicted(evicted);
    world.pass_on();
    for peer in [&mut early, &mut late] {
        let gone = [peer.read_message()];
        assert_eq!(kinds(&gone), owned(&all[3..]));
        let ids = &gone[0].payload[1][0]["block_hashes"];
        assert_eq!(ids, &second["block_hashes"]);
    }
    let mut client = world.replay_client();
    assert_eq!(kinds(&client.ask(0)), owned(&all));
    assert_eq!(kinds(&client.ask(2)), owned(&all[2..]));
    assert!(client.ask(4).is_empty());
    assert!(client.ask(u64::MAX).is_empty());
    // Until here `other` got no event. Its second topic matches.
    other.subscribe("kv");
    world.insert(&tokens(500, 16));
    let next = [other.read_message()];
    assert_eq!(kinds(&next), owned(&[(4, "BlockStored")]));
}

#[tokio::test]
async fn a_reader_in_this_process_gets_the_same_events() {
    let mut world = World::new(&config());
    let subscriptions = world.publishers.outlet().clone();
    let mut early = subscriptions.subscribe(0).expect("a slot is free");
    world.pass_on();
    world.insert(&tokens(1, 40));
    let clear = early.next().await.expect("it publishes");
    assert_eq!(clear.events, [KvEvent::Cleared]);
    let stored = early.next().await.expect("it publishes");
    assert_eq!(stored.number, clear.number + 1);
    let [KvEvent::Stored(blocks)] = &stored.events[..] else {
        panic!("{stored:?}");
    };
    assert_eq!((&blocks.tokens, blocks.ids.len()), (&tokens(1, 32), 2));
    // A second subscription, which resumes after the first batch.
    let mut again = subscriptions
        .subscribe(clear.number)
        .expect("a slot is free");
    assert_eq!(again.next().await, Some(stored));
    drop(world.publishers);
    assert_eq!(early.next().await, None);
    assert_eq!(
        subscriptions.subscribe(0).err(),
        Some(SubscribeError::Stopped)
    );
}

#[test]
fn buffer_steps_limits_the_replayed_batches() {
    let mut config = config();
    config["buffer_steps"] = json!(3);
    let mut world = World::new(&config);
    let mut subscriber = world.subscriber("kv");
    world.pass_on();
    for number in 0..6 {
        world.insert(&tokens(1000 * number, 16));
    }
    for seq in 0..7 {
        assert_eq!(subscriber.read_message().seq, seq);
    }
    let repeated = world.replay_client().ask(0);
    let seqs: Vec<i64> = repeated.iter().map(|message| message.seq).collect();
    assert_eq!(seqs, [4, 5, 6]);
}

/// The subscriber reads nothing until all batches are published. Together they exceed the sockets' buffers.
#[test]
fn a_slow_subscriber_loses_the_oldest_batches() {
    const BATCHES: u32 = 120;
    let mut config = config();
    config["hwm"] = json!(4);
    config["buffer_steps"] = json!(8);
    let mut world = World::new(&config);
    let mut slow = world.subscriber("kv");
    let mut client = world.replay_client();
    world.pass_on();
    for number in 0..BATCHES {
        // Each encoded token takes five bytes.
        world.insert(&tokens(100_000 + 50_000 * number, 40_000));
        // Waits until the batch is published, so that the feed drops no changes.
        while client.ask(u64::from(number) + 1).is_empty() {}
    }
    let last = i64::from(BATCHES);
    let mut received = vec![slow.read_message().seq];
    while received.last() != Some(&last) {
        received.push(slow.read_message().seq);
    }
    assert!(received.is_sorted_by(|a, b| a < b), "{received:?}");
    assert!(received.len() < BATCHES as usize, "{received:?}");
    assert_eq!(received[0], 0);
    let tail: Vec<i64> = (last - 3..=last).collect();
    assert!(received.ends_with(&tail), "{received:?}");
}

#[test]
fn the_publisher_connects_to_a_bound_subscriber() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    let mut world = World::new(&json!({
        "publisher": "zmq",
        "endpoint": format!("tcp://127.0.0.1:{port}"),
        "topic": "kv",
        "encoding": "array",
    }));
    assert_eq!(world.publishers.info().endpoint_port_base, port);
    assert_eq!(world.publishers.info().replay_endpoint_port_base, None);
    let connect = || listener.accept().map(|(stream, _)| stream);
    let mut first = Peer::shake(connect(), "SUB");
    first.subscribe("kv");
    world.pass_on();
    assert_eq!(
        first.read_message().payload[1],
        json!([["AllBlocksCleared"]])
    );
    drop(first);
    let mut second = Peer::shake(connect(), "XSUB");
    second.subscribe("");
    world.insert(&tokens(1, 16));
    let message = second.read_message();
    let event = &message.payload[1][0];
    assert_eq!((message.seq, &event[0]), (1, &json!("BlockStored")));
    assert_eq!(
        (&event[2], &event[4], &event[6]),
        (&Value::Null, &json!(16), &json!("GPU"))
    );
}

#[test]
fn events_of_the_old_generation_are_dropped_after_a_restart() {
    let mut world = World::new(&config());
    let mut subscriber = world.subscriber("kv");
    world.pass_on();
    world.insert(&tokens(1, 16));
    let mut old_feed = std::mem::replace(&mut world.feed, world.publishers.feed(at(0, 2)));
    let (new_tree, new_pool) = tree();
    let mut old_tree = std::mem::replace(&mut world.tree, new_tree);
    let mut old_pool = std::mem::replace(&mut world.pool, new_pool);
    world.pass_on();
    let evicted = old_tree.evict(1);
    let _ = old_feed.pass_on(&mut old_tree);
    world.insert(&tokens(1, 16));
    let received: Vec<Message> = (0..4).map(|_| subscriber.read_message()).collect();
    let expected = [
        (0, "AllBlocksCleared"),
        (1, "BlockStored"),
        (2, "AllBlocksCleared"),
        (3, "BlockStored"),
    ];
    assert_eq!(kinds(&received), owned(&expected));
    old_pool.free_evicted(evicted);
}

#[test]
fn only_peers_that_violate_the_protocol_are_disconnected() {
    let mut world = World::new(&config());
    let mut subscriber = world.subscriber("kv");
    let info = world.publishers.info().clone();
    let replays = info.replay_endpoint_port_base.expect("it is configured");
    let mut http = TcpStream::connect(("127.0.0.1", info.endpoint_port_base)).expect("it listens");
    let request = [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], &[b' '; 64]].concat();
    http.write_all(&request).expect("it is sent");
    assert!(Peer { stream: http }.is_closed());
    for (port, socket, bytes) in [
        (
            info.endpoint_port_base,
            "SUB",
            &b"\x02\0\0\0\0\x40\0\0\0"[..], // a frame of 1 GiB
        ),
        (info.endpoint_port_base, "SUB", b"\x40\0"), // an unknown flag
        (replays, "REQ", b"\x01\0\0\x07seven b"),    // a number of 7 bytes
        (
            replays,
            "DEALER",
            b"\x01\0\x01\0\x01\0\x01\0\x01\0\x01\0\x01\0\x01\0\x01\0", // nine frames before the number
        ),
    ] {
        let mut peer = Peer::connect(port, socket);
        peer.write(bytes);
        assert!(peer.is_closed(), "{socket} sends {bytes:?}");
    }
    world.pass_on();
    assert_eq!(subscriber.read_message().seq, 0);
}

#[test]
fn the_error_for_a_port_in_use_names_the_port() {
    let world = World::new(&config());
    let port = world.publishers.info().endpoint_port_base;
    let json = json!({"publisher": "zmq", "endpoint": format!("tcp://*:{port}")});
    let refused = start(&json, 1).err();
    let refused = refused.expect("the port is taken").to_string();
    for part in [
        "kv_events_config",
        "endpoint",
        &port.to_string(),
        "another port",
    ] {
        assert!(refused.contains(part), "{refused} lacks {part}");
    }
    // Dropping the publisher frees both ports.
    drop(world);
    assert!(TcpListener::bind(("0.0.0.0", port)).is_ok());
}

#[cfg(unix)]
#[test]
fn unix_sockets_are_served_and_removed() {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    let folder = tempfile::tempdir().expect("a folder");
    let [events, replays] = ["events", "replays"].map(|name| folder.path().join(name));
    let mut world = World::new(&json!({
        "publisher": "zmq",
        "endpoint": format!("ipc://{}", events.display()),
        "replay_endpoint": format!("ipc://{}", replays.display()),
        "topic": "kv",
    }));
    let info = world.publishers.info();
    assert_eq!(info.endpoint_host, format!("ipc://{}", events.display()));
    assert_eq!(
        (info.endpoint_port_base, info.replay_endpoint_port_base),
        (0, None)
    );
    assert_eq!(
        info.replay_endpoint,
        Some(format!("ipc://{}", replays.display()))
    );
    let mut hello = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL".to_vec();
    hello.resize(64, 0);
    hello.extend(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB");
    hello.extend(b"\0\x03\x01kv\x04\x07\x04PING\0\x0a");
    let mut peer = UnixStream::connect(&events).expect("it listens");
    peer.write_all(&hello).expect("it reads");
    // The greeting, READY and PONG; after the PONG the subscription is active.
    let mut received = Vec::new();
    while !received.ends_with(b"\x04\x05\x04PONG") {
        let mut byte = [0];
        peer.read_exact(&mut byte).expect("it answers");
        received.push(byte[0]);
    }
    world.pass_on();
    let mut frame = [0; 4];
    peer.read_exact(&mut frame).expect("a batch");
    assert_eq!(&frame, b"\x01\x02kv");
    assert!(UnixStream::connect(&replays).is_ok());
    drop(world);
    assert!(!events.exists() && !replays.exists());
}
