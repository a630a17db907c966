//! Tests that the drawn tree is the engine's.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, TreeReader};
use souffleur::error::StepError;
use souffleur::executor::{DeviceLost, Executor};
use souffleur::server::ServerConfig;
use souffleur::state::cache::changes::{Above, TreeNote};
use souffleur::state::step::{StepOutput, StepPlan};

use super::Viewer;
use super::drawing::Row;
use crate::http::post;
use crate::scripted;
use crate::world::{World, block_on, wait_until};

const N_REQUESTS: usize = 1000;
const ROWS: usize = 400;
/// A prompt with these tokens kills the executor.
const DEADLY: &str = "now the executor dies";

/// A random number generator: xorshift, since its values must be the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

struct Node {
    parent: Option<u64>,
    tokens: u64,
}

/// All nodes of an idle engine's tree, walked by the engine for this call.
fn walk(world: &World) -> BTreeMap<u64, Node> {
    let engine = world.engine();
    let reader = Arc::new(TreeReader);
    let mut nodes = BTreeMap::new();
    loop {
        let taken = block_on(engine.tree_notes(&reader));
        let taken = taken.unwrap_or_else(|error| panic!("{error}"));
        for note in taken.notes {
            match note {
                TreeNote::Stored {
                    node,
                    above,
                    tokens,
                } => {
                    let parent = match above {
                        Above::Node(parent) => Some(parent.into()),
                        Above::Root(_) => None,
                    };
                    let tokens = tokens as u64;
                    nodes.insert(node.into(), Node { parent, tokens });
                }
                // Another reader, of a viewer, may begin anew between two answers.
                TreeNote::Cleared => nodes.clear(),
                other => panic!("the engine is idle, but there is {other:?}"),
            }
        }
        if taken.is_whole {
            return nodes;
        }
    }
}

fn path(nodes: &BTreeMap<u64, Node>, id: u64) -> Vec<u64> {
    let parent_of = |id: &u64| nodes[id].parent;
    std::iter::successors(Some(id), parent_of).collect()
}

/// The rows of a tree, by the definition of the protocol, and the rest.
fn fold(nodes: &BTreeMap<u64, Node>) -> (BTreeMap<u64, Row>, (u64, u64)) {
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    for (id, node) in nodes {
        for above in path(nodes, *id) {
            *sizes.entry(above).or_default() += node.tokens;
        }
    }
    let mut order: Vec<u64> = nodes.keys().copied().collect();
    order.sort_by_key(|id| (Reverse(sizes[id]), path(nodes, *id).len(), *id));
    let chosen: BTreeSet<u64> = order.into_iter().take(ROWS).collect();
    let row = |id: &u64| Row {
        parent: nodes[id].parent,
        tokens: nodes[id].tokens,
        below: sizes[id] - nodes[id].tokens,
        locks: 0,
        pin: 0,
        namespace: 0,
        folded: 0,
        folded_tokens: 0,
    };
    let mut rows: BTreeMap<u64, Row> = chosen.iter().map(|id| (*id, row(id))).collect();
    let mut rest = (0, 0);
    for (id, node) in nodes.iter().filter(|(id, _)| !chosen.contains(id)) {
        let owner = path(nodes, *id).into_iter().find(|id| chosen.contains(id));
        match owner.and_then(|owner| rows.get_mut(&owner)) {
            Some(row) => {
                row.folded += 1;
                row.folded_tokens += node.tokens;
            }
            None => rest = (rest.0 + 1, rest.1 + node.tokens),
        }
    }
    (rows, rest)
}

/// Compares the drawing with the tree of the idle engine.
#[track_caller]
fn compare(world: &World, viewer: &mut Viewer) {
    viewer.catch_up(world);
    let nodes = walk(world);
    let (rows, rest) = fold(&nodes);
    let drawn = viewer.drawing.rows.iter();
    // The walk does not tell namespaces.
    let drawn = drawn.map(|(id, row)| {
        (
            *id,
            Row {
                namespace: 0,
                ..*row
            },
        )
    });
    assert_eq!(drawn.collect::<BTreeMap<_, _>>(), rows);
    assert_eq!(viewer.drawing.rest, rest);
    let stats = world.stats();
    let tokens = (stats.evictable_tokens + stats.protected_tokens) as u64;
    assert_eq!(viewer.drawing.total, (nodes.len() as u64, tokens));
}

/// An executor that cannot be used after a panic.
struct MortalExecutor {
    inner: Box<dyn Executor>,
    is_lost: bool,
}

impl Executor for MortalExecutor {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.is_lost = true;
        let output = self.inner.run(plan);
        self.is_lost = false;
        output
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        if self.is_lost {
            return Err(DeviceLost("there is no device".to_owned()));
        }
        self.inner.reset()
    }
}

/// A server with a small pool, whose executor dies at the first [`DEADLY`] prompt.
fn mortal_world(max_total_tokens: usize) -> World {
    let world = World::without_engine(ServerConfig::default());
    let config = EngineConfig {
        model_path: scripted::checkpoint(),
        served_model_name: Some("scripted".to_owned()),
        max_total_tokens: Some(max_total_tokens),
        max_running_requests: Some(32),
        ..EngineConfig::default()
    };
    let lives = AtomicBool::new(true);
    let mut parts = scripted::parts_replying(&config, move |prompt| {
        let dies = prompt.contains(DEADLY) && lives.swap(false, Ordering::SeqCst);
        assert!(!dies, "the executor dies");
        "One two three four five six seven eight nine ten.".to_owned()
    });
    let make = parts.executor.clone();
    parts.executor = Arc::new(move || {
        Ok(Box::new(MortalExecutor {
            inner: make()?,
            is_lost: false,
        }))
    });
    let engine = Engine::start_with(config, parts).unwrap_or_else(|error| panic!("{error}"));
    world.state.slot().fill(engine);
    world
}

/// A random request, whose prompt often shares a prefix with others.
fn request(random: &mut Random) -> Value {
    let length = 1 + random.below(24);
    let prompt: Vec<u64> = (0..length).map(|_| 40 + random.below(2)).collect();
    let mut call = json!({
        "input_ids": prompt,
        "sampling_params": {"max_new_tokens": 1 + random.below(8), "temperature": 0, "ignore_eos": true},
    });
    match random.below(10) {
        0 => call["extra_key"] = json!(format!("tenant {}", random.below(3))),
        1 => call["cache_salt"] = json!(format!("salt {}", random.below(3))),
        _ => {}
    }
    call
}

#[test]
fn the_drawn_tree_equals_a_walk_of_the_engines() {
    let world = mortal_world(3500);
    let mut viewer = Viewer::open(&world);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut n_folded = 0;
    for n in 1..=N_REQUESTS {
        post(world.addr, "/generate", &request(&mut random)).ok();
        if n % 100 == 0 {
            compare(&world, &mut viewer);
            let drawing = &viewer.drawing;
            n_folded += drawing.total.0 as usize - drawing.rows.len();
        }
        if n == 900 {
            post(world.addr, "/flush_cache", &json!({})).ok();
            compare(&world, &mut viewer);
            assert!(viewer.drawing.rows.is_empty());
        }
        if n == 600 {
            assert!(world.stats().evicted_tokens > 0, "the pool is small");
            let deadly = json!({"text": DEADLY, "sampling_params": {"max_new_tokens": 2}});
            assert_eq!(post(world.addr, "/generate", &deadly).status, 200);
            wait_until("the engine is rebuilt", || world.engine().is_alive());
            viewer.wait("the death", |viewer| {
                viewer.hello["died"]["generation"] == 1
            });
            viewer.wait("the next unit", |viewer| viewer.hello["generation"] == 2);
            viewer.wait_for_phase("ready");
            let died = viewer.hello["died"]["actor"].as_str().expect("a name");
            assert!(["executor", "executor_thread"].contains(&died), "{died}");
        }
    }
    let drawing = &viewer.drawing;
    assert!(n_folded > 0, "the tree is large");
    for kind in ["stored", "split", "removed"] {
        assert!(drawing.kinds.contains_key(kind), "{:?}", drawing.kinds);
    }
    assert!(drawing.deltas > 0 && drawing.snapshots > 0, "{drawing:?}");
}

#[test]
fn a_viewer_that_comes_later_gets_the_whole_tree() {
    let world = mortal_world(3000);
    let mut random = Random(7);
    for _ in 0..50 {
        post(world.addr, "/generate", &request(&mut random)).ok();
    }
    let mut first = Viewer::open(&world);
    compare(&world, &mut first);
    let mut second = Viewer::open(&world);
    compare(&world, &mut second);
    drop(first);
    post(world.addr, "/generate", &request(&mut random)).ok();
    compare(&world, &mut second);
    let namespaces: BTreeSet<i64> = second
        .drawing
        .rows
        .values()
        .map(|row| row.namespace)
        .collect();
    assert!(
        namespaces.contains(&-1) && namespaces.contains(&0),
        "{namespaces:?}"
    );
    assert!(
        namespaces.iter().any(|number| *number > 0),
        "{namespaces:?}"
    );
}

#[test]
fn pins_mark_their_nodes_and_those_above() {
    let world = mortal_world(3000);
    let tokens: Arc<[u32]> = (40..60).collect();
    let call = |tokens: &[u32]| json!({"input_ids": tokens, "sampling_params": {"max_new_tokens": 1, "temperature": 0}});
    post(world.addr, "/generate", &call(&tokens)).ok();
    post(
        world.addr,
        "/generate",
        &call(&[&tokens[..10], &[39, 39][..]].concat()),
    )
    .ok();
    world.wait_until_idle();
    let mut viewer = Viewer::open(&world);
    let engine = world.engine();
    let pinned = block_on(engine.pin_prefix(
        Default::default(),
        tokens,
        std::time::Duration::from_secs(3600),
    ));
    let pin = pinned.unwrap_or_else(|error| panic!("{error}")).pin;
    let marks = |viewer: &Viewer| -> Vec<u64> {
        let rows = viewer.drawing.rows.values();
        rows.filter(|row| row.pin == 2)
            .map(|row| row.tokens)
            .collect()
    };
    viewer.wait("the pin", |viewer| marks(viewer).iter().sum::<u64>() == 20);
    let rows = viewer.drawing.rows.values();
    assert!(rows.filter(|row| row.pin == 2).all(|row| row.locks > 0));
    assert!(block_on(engine.unpin_prefix(pin)).is_ok());
    viewer.wait("no pin", |viewer| marks(viewer).is_empty());
}
