//! The drawn tree equals the engine's, after anything that can happen to it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;

use futures_util::future::join_all;
use serde_json::{Value, json};
use souffleur::engine::Generation;
use souffleur::request::{Event, GenerateRequest, Prompt};

use crate::cdp::browser;
use crate::http::{connect, post};
use crate::page::{Page, View};
use crate::stage::{Stage, staged};
use crate::world::{World, block_on, wait_until};

const ROUNDS: u64 = 10;
const REQUESTS_PER_ROUND: usize = 100;
/// Requests that run at once.
const BATCH: usize = 10;
/// Few enough for evictions, and enough for more nodes than the stream has rows.
const POOL_TOKENS: usize = 8192;
const MAX_ROWS: usize = 400;
/// The nodes of a tree by their ids, each as its row.
type Rows = BTreeMap<u64, Value>;

/// Checks the sums in every frame and tree event, and counts the events.
const WATCH: &str = "(() => {
    const seen = (globalThis.seen = { faults: [], frames: 0, trees: 0, folded: 0, generations: [], events: {} });
    const sum = (list) => list.reduce((all, one) => all + one, 0);
    souffleur.live.on((kind, value) => {
        const { live, engine } = souffleur;
        if (kind === 'hello') seen.generations.push(live.hello.generation);
        if (kind === 'frame') {
            seen.frames += 1;
            for (const pool of live.frame.pools) {
                if (sum(Object.values(pool.parts)) !== pool.total) seen.faults.push(JSON.stringify(pool));
            }
        }
        if (kind !== 'tree') return;
        seen.trees += 1;
        for (const [name] of value.events ?? []) seen.events[name] = (seen.events[name] ?? 0) + 1;
        const nodes = [...live.nodes.values()];
        const { icicle } = engine.pictures.tree;
        const below = new Map();
        for (const { parent, tokens, below: more } of nodes) {
            if (parent !== null && !live.nodes.has(parent)) seen.faults.push(`no parent ${parent}`);
            below.set(parent, (below.get(parent) ?? 0) + tokens + more);
        }
        for (const node of nodes) {
            if (node.below !== (below.get(node.id) ?? 0) + node.folded_tokens) {
                seen.faults.push(`below ${JSON.stringify(node)}`);
            }
        }
        const { tokens, nodes: count } = live.treeTotals;
        const folded = sum(nodes.map((node) => node.folded)) + value.rest.nodes;
        if (folded > 0) seen.folded += 1;
        if (nodes.length + folded !== count) seen.faults.push(`${nodes.length} + ${folded} of ${count} nodes`);
        const shown = sum(nodes.map((node) => node.tokens + node.folded_tokens)) + value.rest.tokens;
        if (shown !== tokens) seen.faults.push(`${shown} of ${tokens} tokens`);
        if (icicle.width !== tokens) seen.faults.push(`${icicle.width} wide for ${tokens}`);
        for (const { to, node } of icicle.items.values()) {
            const over = icicle.items.get(node.parent)?.to ?? { x: 0, w: icicle.width, depth: -1 };
            const isInside = to.x >= over.x && to.x + to.w <= over.x + over.w && to.depth === over.depth + 1;
            if (!isInside) seen.faults.push(`place of ${node.id}`);
        }
    });
})()";

/// The drawn nodes as rows of the stream, by their ids.
const DRAWN: &str = "[...souffleur.engine.pictures.tree.icicle.items.values()]
    .map(({ node: n }) => [n.id, n.parent, n.tokens, n.below, n.locks, n.pin, n.ns, n.folded, n.folded_tokens])
    .sort((one, other) => one[0] - other[0])";

/// The first snapshot that a new viewer gets: the server walks the tree for it.
fn snapshot(addr: SocketAddr) -> Value {
    let mut stream = connect(addr);
    let request = format!("GET /console/live?hz=10 HTTP/1.1\r\nHost: {addr}\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .expect("the server reads");
    let mut is_tree = false;
    for line in BufReader::new(stream).lines() {
        let line = line.expect("the stream goes on");
        is_tree |= line == "event: tree";
        if let Some(data) = line.strip_prefix("data: ").filter(|_| is_tree) {
            let tree: Value = serde_json::from_str(data).expect("data is JSON");
            assert_eq!(tree["kind"], "snapshot");
            return tree;
        }
    }
    panic!("the stream ended without a tree");
}

fn rows(tree: &Value) -> Rows {
    let rows = tree["set"].as_array().expect("a list").iter();
    rows.map(|row| (row[0].as_u64().expect("a number"), row.clone()))
        .collect()
}

/// A prompt that begins as others do, and diverges somewhere.
fn prompt(random: &mut fastrand::Rng) -> Vec<u32> {
    let mut start = fastrand::Rng::with_seed(random.u64(..24));
    let length = random.usize(4..60);
    let mut tokens: Vec<u32> = (0..length).map(|_| start.u32(5..600)).collect();
    tokens.extend((0..random.usize(1..40)).map(|_| random.u32(5..15)));
    tokens
}

async fn finish(mut generation: Generation) -> bool {
    while let Some(event) = generation.next().await {
        if let Event::Finished(_) = event {
            return true;
        }
    }
    false
}

/// Runs random requests, some at once. Returns how many finished.
fn run(world: &World, random: &mut fastrand::Rng, requests: usize) -> usize {
    let engine = world.engine();
    let mut finished = 0;
    for _ in 0..requests / BATCH {
        let batch = (0..BATCH).map(|_| {
            let mut request = GenerateRequest::new(Prompt::Tokens(prompt(random).into()));
            request.sampling.max_new_tokens = random.u32(1..4);
            request
        });
        let batch: Vec<Generation> = batch
            .filter_map(|request| engine.generate(request).ok())
            .collect();
        let ended = block_on(join_all(batch.into_iter().map(finish)));
        finished += ended.into_iter().filter(|&is_finished| is_finished).count();
    }
    finished
}

/// Has an actor die in a step. The request goes on in the next generation.
fn kill(world: &World, stage: &Stage) {
    stage.die();
    let call = json!({"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3}});
    assert_eq!(post(world.addr, "/generate", &call).status, 200);
    let engine = world.engine();
    wait_until("the next engine", || {
        engine.is_alive() && block_on(engine.stats()).is_ok()
    });
}

/// Waits until the page draws what a new viewer sees, and checks the sums.
fn check_drawn(page: &Page, world: &World) -> Value {
    world.wait_until_idle();
    let tree = snapshot(world.addr);
    let expected: Vec<Value> = rows(&tree).into_values().collect();
    page.until(&format!(
        "JSON.stringify({DRAWN}) === {} && souffleur.live.treeTotals.nodes === {} && \
            souffleur.live.treeTotals.tokens === {}",
        json!(json!(expected).to_string()),
        tree["total"]["nodes"],
        tree["total"]["tokens"]
    ));
    let stats = world.stats();
    assert_eq!(
        tree["total"]["tokens"],
        json!(stats.evictable_tokens + stats.protected_tokens)
    );
    assert_eq!(page.eval("seen.faults"), json!([]));
    tree
}

#[test]
fn the_drawn_tree_equals_the_engines_after_evictions_splits_a_flush_and_a_death() {
    let Some(browser) = browser() else { return };
    let (world, stage) = staged(&[("", "A line.")], |engine, _| {
        engine.max_total_tokens = Some(POOL_TOKENS);
    });
    let page = Page::console(browser, format!("http://{}", world.addr), View::default());
    page.eval(WATCH);
    let mut random = fastrand::Rng::with_seed(52);
    let mut largest = 0;
    for round in 0..ROUNDS {
        let finished = run(&world, &mut random, REQUESTS_PER_ROUND);
        assert_eq!(finished, REQUESTS_PER_ROUND, "in round {round}");
        let tree = check_drawn(&page, &world);
        assert!(
            tree["set"]
                .as_array()
                .is_some_and(|rows| rows.len() <= MAX_ROWS)
        );
        largest = largest.max(tree["total"]["nodes"].as_u64().unwrap_or(0));
        if round == 4 {
            assert!(world.stats().evicted_tokens > 0);
            post(world.addr, "/flush_cache", &json!({})).ok();
            page.until("souffleur.live.nodes.size === 0");
        }
        if round == 6 {
            kill(&world, &stage);
            page.until(
                "souffleur.live.hello.generation === 2 && souffleur.server.phase === 'ready'",
            );
            page.until("document.getElementById('notice-died')");
        }
    }
    assert!(largest > MAX_ROWS as u64, "{largest} nodes are not folded");
    let seen = page.eval("seen");
    for name in ["stored", "split", "removed", "cleared"] {
        assert!(seen["events"][name].as_u64() > Some(0), "no {name}: {seen}");
    }
    assert!(seen["folded"].as_u64() > Some(0), "{seen}");
    assert!(seen["generations"].to_string().contains('2'), "{seen}");
    page.check_quiet(&[]);
}
