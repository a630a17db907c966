//! Tests of the publishers of several replicas.

use serde_json::{Value, json};

use super::super::batch::KvEvent;
use super::super::{ChangeFeed, KvEventPublishers, SubscribeError};
use super::zmq_peer::{Message, Peer};
use super::{at, config, insert, kinds, owned, start, tokens, tree};
use souffleur_state::cache::radix_tree::RadixTree;
use souffleur_state::pool::page_pool::PagePool;

/// A generation of a replica.
struct Replica {
    feed: ChangeFeed,
    tree: RadixTree,
    pool: PagePool,
}

impl Replica {
    /// Starts a generation, whose first event clears all blocks.
    fn start(publishers: &KvEventPublishers, rank: u32, generation: u64) -> Self {
        let (tree, pool) = tree();
        let mut replica = Self {
            feed: publishers.feed(at(rank, generation)),
            tree,
            pool,
        };
        replica.pass_on();
        replica
    }

    fn pass_on(&mut self) {
        assert!(!self.feed.pass_on(&mut self.tree), "the queue has capacity");
    }

    fn insert(&mut self, tokens: &[u32]) {
        insert(tokens, &mut self.tree, &mut self.pool);
        self.pass_on();
    }
}

/// Publishers of replicas, and a subscriber of each.
fn world(replicas: u32) -> (KvEventPublishers, Vec<Peer>) {
    let publishers = start(&config(), replicas).expect("ports are free");
    let first = publishers.info().endpoint_port_base;
    let peers = (0..replicas).map(|rank| {
        let mut peer = Peer::connect(first + rank as u16, "SUB");
        peer.subscribe("kv");
        peer
    });
    let peers = peers.collect();
    (publishers, peers)
}

fn read(peer: &mut Peer, n: usize) -> Vec<Message> {
    (0..n).map(|_| peer.read_message()).collect()
}

/// The ranks of the batches, and the tokens of all their blocks.
fn ranks_and_tokens(messages: &[Message]) -> (Vec<Value>, Vec<Value>) {
    let ranks = messages.iter().map(|message| message.payload[2].clone());
    let events = messages
        .iter()
        .filter_map(|message| message.payload[1].as_array());
    let tokens = events
        .flatten()
        .filter_map(|event| event["token_ids"].as_array());
    (ranks.collect(), tokens.flatten().cloned().collect())
}

#[test]
fn a_replica_publishes_only_its_blocks_with_its_rank_and_its_numbers() {
    let (publishers, mut peers) = world(3);
    assert_eq!(publishers.info().dp_size, 3);
    let mut replicas = [0, 1, 2].map(|rank| Replica::start(&publishers, rank, 1));
    let prompts = [tokens(1, 16), tokens(100, 32), tokens(200, 48)];
    for rank in [2, 0, 1] {
        replicas[rank].insert(&prompts[rank]);
    }
    let replay = publishers.info().replay_endpoint_port_base;
    let replay = replay.expect("it is configured");
    for (rank, prompt) in (0_u16..).zip(&prompts) {
        let received = read(&mut peers[usize::from(rank)], 2);
        let expected = [(0, "AllBlocksCleared"), (1, "BlockStored")];
        assert_eq!(kinds(&received), owned(&expected));
        let tokens: Vec<Value> = prompt.iter().map(|token| json!(token)).collect();
        let own = (vec![json!(rank); 2], tokens);
        assert_eq!(ranks_and_tokens(&received), own);
        let replayed = Peer::connect(replay + rank, "REQ").ask(0);
        assert_eq!(ranks_and_tokens(&replayed), own);
    }
}

#[test]
fn a_restart_of_a_replica_clears_only_its_own_blocks() {
    let (publishers, mut peers) = world(2);
    let mut first = Replica::start(&publishers, 0, 1);
    let mut second = Replica::start(&publishers, 1, 1);
    first.insert(&tokens(1, 16));
    second.insert(&tokens(100, 16));
    let mut next = Replica::start(&publishers, 1, 2);
    // The old generation of the second replica is late, and the first replica runs on in its first generation.
    second.insert(&tokens(300, 16));
    next.insert(&tokens(400, 16));
    first.insert(&tokens(500, 16));
    let received = read(&mut peers[0], 3);
    let expected = [
        (0, "AllBlocksCleared"),
        (1, "BlockStored"),
        (2, "BlockStored"),
    ];
    assert_eq!(kinds(&received), owned(&expected));
    let received = read(&mut peers[1], 4);
    let expected = [
        (0, "AllBlocksCleared"),
        (1, "BlockStored"),
        (2, "AllBlocksCleared"),
        (3, "BlockStored"),
    ];
    assert_eq!(kinds(&received), owned(&expected));
    let (_, stored) = ranks_and_tokens(&received[3..]);
    assert_eq!(stored[0], json!(400));
}

#[test]
fn a_replica_that_stays_down_is_cleared_and_publishes_nothing_more() {
    let (publishers, mut peers) = world(2);
    let mut replicas = [0, 1].map(|rank| Replica::start(&publishers, rank, 1));
    for (replica, first) in replicas.iter_mut().zip([1, 100]) {
        replica.insert(&tokens(first, 16));
    }
    let unit = at(1, 1).unit;
    publishers.retire(unit);
    for replica in &mut replicas {
        replica.insert(&tokens(500, 16));
    }
    // The publisher handles this after the changes that it ignores.
    publishers.retire(unit);
    for (rank, ends) in [
        (0, &[(2, "BlockStored")][..]),
        (1, &[(2, "AllBlocksCleared"), (3, "AllBlocksCleared")]),
    ] {
        let all = [&[(0, "AllBlocksCleared"), (1, "BlockStored")][..], ends].concat();
        let received = read(&mut peers[rank], all.len());
        assert_eq!(kinds(&received), owned(&all), "{rank}");
    }
}

#[tokio::test]
async fn a_reader_in_this_process_subscribes_to_one_replica() {
    let (publishers, _peers) = world(2);
    let outlet = publishers.outlet();
    assert_eq!(outlet.subscribe(0).err(), Some(SubscribeError::Replicas(2)));
    assert_eq!(
        outlet.subscribe_to(2, 0).err(),
        Some(SubscribeError::NoReplica(2))
    );
    let mut subscription = outlet.subscribe_to(1, 0).expect("a slot is free");
    Replica::start(&publishers, 0, 1).insert(&tokens(1, 16));
    Replica::start(&publishers, 1, 1).insert(&tokens(100, 16));
    let clear = subscription.next().await.expect("it publishes");
    assert_eq!(clear.events, [KvEvent::Cleared]);
    let batch = subscription.next().await.expect("it publishes");
    let [KvEvent::Stored(blocks)] = &batch.events[..] else {
        panic!("{batch:?}");
    };
    assert_eq!(blocks.tokens, tokens(100, 16));
}

#[test]
fn the_error_for_a_port_in_use_names_the_port_of_the_replica() {
    let (publishers, _peers) = world(2);
    let second = publishers.info().endpoint_port_base + 1;
    let taken = json!({"publisher": "zmq", "endpoint": format!("tcp://*:{second}")});
    let refused = start(&taken, 1).err().expect("the port is taken");
    let refused = refused.to_string();
    assert!(refused.contains(&format!("tcp://*:{second}")), "{refused}");
}

#[cfg(unix)]
#[test]
fn the_unix_sockets_of_replicas_have_their_numbers() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let config = json!({
        "publisher": "zmq",
        "endpoint": format!("ipc://{}", path("events").display()),
        "replay_endpoint": format!("ipc://{}", path("replays").display()),
    });
    let publishers = start(&config, 2).expect("the paths are free");
    let files = ["events", "events_dp1", "replays", "replays_dp1"];
    for file in files {
        std::os::unix::net::UnixStream::connect(path(file)).expect("it listens");
    }
    let info = publishers.info();
    let endpoint = format!("ipc://{}", path("events").display());
    assert_eq!((&info.endpoint_host, info.dp_size), (&endpoint, 2));
    drop(publishers);
    for file in files {
        assert!(!path(file).exists(), "{file}");
    }
}
