//! Tests of starting and stopping a store, and of refused requests.

use std::collections::HashSet;

use super::*;

#[test]
fn requests_are_refused_before_the_fingerprint_is_known() {
    let mut world = World::dense(4);
    let place = world.path(0, 1)[0];
    assert!(world.store.take().is_some_and(Store::shut_down));
    let (sender, receiver) = unbounded::<Result<FingerprintParts, String>>();
    world.start_with(Box::new(move |_| receiver.recv().expect("the test sends")));
    let identifying = world.answer();
    assert!(matches!(identifying, Answer::State(TierState::Identifying)));
    let commit = Commit {
        ticket: Ticket::new(1),
        place,
        block: world.take(BlockKind::Kv),
    };
    assert_eq!(world.store().commit(commit), Err(Refusal::NotServing));
    assert_eq!(world.store().touch(place.key), Err(Refusal::NotServing));
    assert_eq!(world.store().stats().refused_not_serving, 2);
    assert_eq!(world.counts(BlockKind::Kv).free, 4);
    sender
        .send(Err("the weights are gone".to_owned()))
        .expect("the store thread waits");
    match world.answer() {
        Answer::State(TierState::Off { reason, .. }) => assert_eq!(reason, "the weights are gone"),
        other => panic!("{other:?}"),
    }
    assert!(world.store.take().is_some_and(Store::shut_down));
}

#[test]
fn a_stop_interrupts_the_identification() {
    let mut world = World::dense(4);
    assert!(world.store.take().is_some_and(Store::shut_down));
    let (begun, identifying) = unbounded();
    world.start_with(Box::new(move |stop| {
        begun.send(()).expect("the test waits");
        while !stop.is_set() {
            std::thread::yield_now();
        }
        Err("stopped".to_owned())
    }));
    identifying.recv_timeout(TIMEOUT).expect("identify begins");
    assert!(world.store.take().is_some_and(Store::shut_down));
}

#[test]
fn a_stopping_store_answers_everything() {
    let mut world = World::dense(64);
    let path = world.path(0, 40);
    let mut tickets = HashSet::new();
    for (at, place) in path.iter().enumerate() {
        let mut block = world.take(BlockKind::Kv);
        block.bytes_mut().fill(byte(place, BlockKind::Kv));
        let ticket = Ticket::new(at as u64);
        let commit = Commit {
            ticket,
            place: *place,
            block,
        };
        world.store().commit(commit).expect("the queue has space");
        tickets.insert(ticket);
    }
    let store = world.store.take().expect("the store runs");
    let pools = store.pools().clone();
    assert!(store.shut_down());
    while let Ok(answer) = world.answers.try_recv() {
        match answer {
            Answer::Committed { ticket, outcome } => {
                assert_eq!(outcome, Outcome::Written);
                assert!(tickets.remove(&ticket));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(tickets.is_empty(), "{tickets:?}");
    let counts = pools.of(BlockKind::Kv).map(BlockPool::counts);
    assert_eq!(counts.map(|counts| counts.free), Some(64));
    world.start();
    assert_eq!(world.find(0, 40, None).1, 40);
}

#[test]
fn bounds_too_small_for_a_block_are_errors() {
    let start = |host_bytes, disk_bytes| {
        let config = StoreConfig {
            path: PathBuf::from("/kv"),
            disk_bytes,
            host_bytes,
            prefetch_timeout: PrefetchTimeout::default(),
            drop_behind: false,
            write_share: 1.0,
        };
        let files = Box::new(MemoryFiles::new());
        let identify: Identify = Box::new(|_| Err("not asked".to_owned()));
        let sink: Sink = Box::new(|_| ());
        let started = Store::start_on(files, config, geometry(true, 0), identify, sink);
        started.err().expect("the block does not fit").to_string()
    };
    // Two buffers of each kind, of a page each.
    let few = start(4 * PAGE_BYTES - 1, 1 << 30);
    assert!(few.contains("raise kv_host_bytes to 16384"), "{few}");
    let small = start(1 << 20, 4096);
    assert!(
        small.contains("kv_disk_bytes is 4096, but one kv record takes 8192"),
        "{small}"
    );
}

#[test]
fn timeouts_grow_with_tokens_and_are_bounded() {
    let timeout = PrefetchTimeout::default();
    assert_eq!(timeout.of(0), Duration::from_secs(1));
    assert_eq!(timeout.of(8192), Duration::from_secs(3));
    assert_eq!(timeout.of(usize::MAX), PrefetchTimeout::MAX);
}
