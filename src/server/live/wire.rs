//! Writes events as JSON, with bounded sizes.

use std::collections::BTreeMap;

use actix_web::web::Bytes;
use serde_json::{Value, json};

use super::sample::{Sample, Status};
use super::tree::mirror::{Sums, TreeEvent};
use super::tree::names::Names;
use super::tree::picture::{Delta, Picture, Row};
use crate::sse::write_named;
use crate::state::AppState;
use souffleur_actors::messages::EngineView;
use souffleur_actors::scheduler::steps::PastStep;
use souffleur_engine::ModelInfo;
use souffleur_state::scheduler::live::{LivePool, LiveRequest};

const MAX_FRAME_BYTES: usize = 16 << 10;
const MAX_TREE_BYTES: usize = 32 << 10;
const MAX_DEVICE_BYTES: usize = 64;
const MAX_RID_BYTES: usize = 40;
const MAX_NAME_BYTES: usize = 64;

const ACTORS: [&str; 6] = [
    "tokenizer",
    "scheduler",
    "radix_cache",
    "allocator",
    "executor",
    "kv_store",
];

pub(super) fn hello(state: &AppState, status: &Status, hz: u32, is_admin: bool) -> Bytes {
    let engine = state.slot().engine();
    let model = engine.map(|engine| engine.model());
    let has_store = engine.is_some_and(|engine| engine.store_bytes().is_some());
    let n_actors = ACTORS.len() - usize::from(!has_store);
    let died = status
        .died
        .as_ref()
        .map(|died| json!({"actor": died.actor, "generation": died.generation}));
    let limits = model.map(|model| {
        json!({
            "context_length": model.context_length,
            "max_total_tokens": model.max_total_tokens,
            "page_size": model.page_size,
            "max_running_requests": model.max_running_requests,
        })
    });
    let hello = json!({
        "protocol": 1,
        "version": state.build().version,
        "phase": status.phase,
        "reason": status.reason,
        "model": model.map(|model| &model.served_model_name),
        "device": model.map(device),
        "generation": status.generation,
        "died": died,
        "is_admin": is_admin,
        "hz": hz,
        "limits": limits,
        "actors": &ACTORS[..n_actors],
        "columns": columns(),
    });
    named("hello", &to_json(&hello))
}

fn columns() -> Value {
    json!({
        "mailboxes": ["actor", "message", "depth", "handled", "busy_us"],
        "steps": ["id", "start_us", "duration_us", "rows", "prefill_tokens", "decode_tokens"],
        "requests": [
            "id", "state", "prompt", "cached", "computed", "output", "queued_ms", "running_ms", "mark", "rid",
        ],
        "nodes": ["id", "parent", "tokens", "below", "locks", "pin", "ns", "folded", "folded_tokens"],
    })
}

/// The device, without the reason for its instruction set, which may name a file.
fn device(model: &ModelInfo) -> String {
    let path = model.kernel_path.as_deref();
    let isa = path.and_then(|path| path.split(',').next());
    let text = isa.map_or_else(|| "cuda".to_owned(), |isa| format!("cpu, {isa}"));
    cut(&text, MAX_DEVICE_BYTES).to_owned()
}

/// The steps of a frame: those after `newest_step`, or all known ones in the first frame.
struct FrameSteps<'a> {
    steps: &'a [PastStep],
    left_out: u64,
}

impl<'a> FrameSteps<'a> {
    fn of(view: &'a EngineView, newest_step: Option<u64>) -> Self {
        let after = newest_step.unwrap_or(0);
        let first = view.steps.partition_point(|step| step.id <= after);
        let steps = &view.steps[first..];
        let n_new = newest_step.map_or(0, |newest| view.newest_step.saturating_sub(newest));
        Self {
            steps,
            left_out: n_new.saturating_sub(steps.len() as u64),
        }
    }

    /// Leaves out the older half.
    fn halve(&mut self) {
        let n_dropped = self.steps.len().div_ceil(2);
        self.steps = &self.steps[n_dropped..];
        self.left_out += n_dropped as u64;
    }
}

pub(super) fn frame(sample: &Sample, newest_step: Option<u64>, is_admin: bool) -> Bytes {
    let mut frame = json!({
        "t_ms": sample.t_ms,
        "phase": sample.status.phase,
        "generation": sample.status.generation,
        "loading": sample.loading.map(|(done_bytes, total_bytes)| {
            json!({"done_bytes": done_bytes, "total_bytes": total_bytes})
        }),
        "mailboxes": mailboxes(sample),
        "counters": {},
        "steps": [],
        "steps_left_out": 0,
        "requests": [],
        "requests_total": 0,
        "pools": [],
    });
    let Some(view) = &sample.view else {
        return named("frame", &to_json(&frame));
    };
    frame["counters"] = counters(view);
    frame["requests_total"] = view.n_requests.into();
    let store = sample.store.map(|(total, stored)| disk_pool(total, stored));
    let pools = view.pools.iter().chain(&store).map(pool);
    frame["pools"] = pools.collect();
    let mut steps = FrameSteps::of(view, newest_step);
    let mut n_requests = view.requests.len();
    loop {
        let requests = view.requests[..n_requests].iter();
        frame["requests"] = requests.map(|row| request(row, is_admin)).collect();
        frame["steps"] = steps.steps.iter().map(step).collect();
        frame["steps_left_out"] = steps.left_out.into();
        let json = to_json(&frame);
        if json.len() <= MAX_FRAME_BYTES || n_requests == 0 && steps.steps.is_empty() {
            return named("frame", &json);
        }
        // Rids of control characters are six times as long in JSON.
        if n_requests > 0 {
            n_requests = n_requests * 3 / 4;
        } else {
            steps.halve();
        }
    }
}

fn mailboxes(sample: &Sample) -> Value {
    let rows = sample.mailboxes.iter().map(|counts| {
        json!([
            counts.actor,
            counts.message,
            counts.depth,
            counts.handled,
            counts.busy_us
        ])
    });
    rows.collect()
}

fn counters(view: &EngineView) -> Value {
    let stats = &view.stats;
    json!({
        "running_requests": stats.running_requests,
        "waiting_requests": stats.waiting_requests,
        "steps": stats.steps,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "output_tokens": view.output_tokens,
        "evicted_tokens": stats.evicted_tokens,
        "retractions": stats.retractions,
        "preemptions": stats.preemptions,
        "integrity_failures": stats.integrity_failures,
        "lost_pages": stats.lost_pages,
        "pins": stats.pins,
        "soft_pins": stats.soft_pins,
    })
}

fn step(step: &PastStep) -> Value {
    json!([
        step.id,
        step.start_us,
        step.duration_us,
        step.rows,
        step.prefill_tokens,
        step.decode_tokens
    ])
}

fn request(request: &LiveRequest, is_admin: bool) -> Value {
    let ms = |seconds: f64| (seconds * 1000.0) as u64;
    let rid = request.rid.as_str();
    json!([
        request.intake.get(),
        request.state.name(),
        request.prompt,
        request.cached,
        request.computed,
        request.output,
        ms(request.queued_s),
        ms(request.running_s),
        mark(rid),
        is_admin.then(|| cut(rid, MAX_RID_BYTES)),
    ])
}

fn pool(pool: &LivePool) -> Value {
    let parts = pool.parts.iter();
    let parts: BTreeMap<&str, u64> = parts.copied().collect();
    json!({
        "pool": pool.pool,
        "tier": pool.tier,
        "unit": pool.unit,
        "total": pool.total,
        "parts": parts,
    })
}

fn disk_pool(total: u64, stored: u64) -> LivePool {
    LivePool {
        pool: "store_disk",
        tier: "disk",
        unit: "bytes",
        total,
        parts: vec![("free", total.saturating_sub(stored)), ("stored", stored)],
    }
}

/// A change of the tree, or its whole state.
pub(super) struct TreeMessage {
    pub(super) kind: &'static str,
    pub(super) delta: Delta,
    pub(super) events: Vec<TreeEvent>,
    pub(super) left_out: u64,
}

/// `names`: for admins, the names of namespaces. If the message would be too large, it has fewer events and names.
pub(super) fn tree(message: TreeMessage, picture: &Picture, names: Option<&Names>) -> Bytes {
    let TreeMessage {
        kind,
        delta,
        events,
        left_out,
    } = message;
    let set = delta.set.iter().map(Row::columns);
    let mut tree = json!({
        "kind": kind,
        "gone": delta.gone,
        "set": set.collect::<Vec<_>>(),
        "total": sums(picture.total),
        "rest": sums(picture.rest),
    });
    let names: Option<Vec<_>> = names.map(|names| names_of(picture, names));
    let mut n_names = names.as_ref().map_or(0, Vec::len);
    let mut events = &events[..];
    let mut left_out = left_out;
    loop {
        tree["events"] = events.iter().map(event).collect();
        tree["events_left_out"] = left_out.into();
        if let Some(names) = &names {
            let sent: BTreeMap<_, _> = names[..n_names].iter().cloned().collect();
            tree["namespaces"] = json!(sent);
        }
        let json = to_json(&tree);
        if json.len() <= MAX_TREE_BYTES || events.is_empty() && n_names == 0 {
            return named("tree", &json);
        }
        if events.is_empty() {
            n_names /= 2;
        } else {
            let n_dropped = events.len().div_ceil(2);
            events = &events[n_dropped..];
            left_out += n_dropped as u64;
        }
    }
}

/// The names of the namespaces in a picture, those of the largest nodes first.
fn names_of(picture: &Picture, names: &Names) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for row in &picture.rows {
        let number = row.namespace.to_string();
        let is_known = found.iter().any(|(known, _)| *known == number);
        if let Some(name) = names.get(row.namespace)
            && !is_known
        {
            found.push((number, cut(name, MAX_NAME_BYTES).to_owned()));
        }
    }
    found
}

fn sums(sums: Sums) -> Value {
    json!({"nodes": sums.nodes, "tokens": sums.tokens})
}

fn event(event: &TreeEvent) -> Value {
    match event {
        TreeEvent::Stored { node, tokens } => json!(["stored", node, tokens]),
        TreeEvent::Split { upper, lower, at } => json!(["split", upper, lower, at]),
        TreeEvent::Removed { node, tokens } => json!(["removed", node, tokens]),
        TreeEvent::Cleared => json!(["cleared"]),
    }
}

/// FNV-1a of 32 bits.
fn mark(rid: &str) -> u32 {
    let fold = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    rid.bytes().fold(2_166_136_261, fold)
}

/// The first bytes of a text, at most `most` of them, cut at a character's boundary.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

fn to_json(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn named(name: &str, json: &[u8]) -> Bytes {
    let mut out = Vec::new();
    write_named(&mut out, name, json);
    out.into()
}

#[cfg(test)]
mod tests;
