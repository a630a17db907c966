//! Lists requests and pools, for the console and `/debug/requests`. The caller passes the time; no clock is read here.

use souffleur_base::ids::{IntakeId, RequestId, SeqId};

use super::Scheduler;
use super::sequence::{Phase, Sequence};

/// A request of a Scheduler or of the docket as hosts see it, without its prompt and output.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveRequest {
    pub intake: IntakeId,
    pub rid: RequestId,
    pub state: LiveState,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Prompt tokens that came from the cache or the KV store at the last admission.
    pub cached: usize,
    /// Prompt tokens computed since the last admission, including steps in flight.
    pub computed: usize,
    /// Tokens generated.
    pub output: usize,
    /// Prompt tokens that came from the KV store, in this generation of the unit.
    pub loaded: usize,
    /// KV pages that the request holds, including pages that it shares with the tree.
    pub pages: usize,
    pub retractions: u32,
    /// Lost steps that had the request.
    pub losses: u32,
    /// How often the request was continued after a death.
    pub resumptions: u32,
    /// Seconds from the submission to the first admission, or to now.
    pub queued_s: f64,
    /// Seconds since the first admission; 0 before it.
    pub running_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveState {
    Waiting,
    /// Waits for its prefix from the KV store.
    Loading,
    Prefill,
    Decode,
    /// Waits again, after a retraction or preemption.
    Retracted,
    /// No Scheduler has the request: it waits for a restart, or for the end of the trials of others.
    Held,
    /// Waits for the vectors of its images.
    Encoding,
}

impl LiveState {
    pub const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Loading,
        Self::Prefill,
        Self::Decode,
        Self::Retracted,
        Self::Held,
        Self::Encoding,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Loading => "loading",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Retracted => "retracted",
            Self::Held => "held",
            Self::Encoding => "encoding_images",
        }
    }
}

/// A pool as of the last plan. Each part is counted by its owner, so that the parts sum to the total unless the counts
/// are wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivePool {
    pub pool: &'static str,
    pub tier: &'static str,
    pub unit: &'static str,
    pub total: u64,
    pub parts: Vec<(&'static str, u64)>,
}

/// A node of the tree that a pin holds, with all nodes above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivePin {
    pub node: u32,
    pub is_soft: bool,
}

impl Scheduler {
    /// Notes the time of a first admission, on the clock of `submitted_s`.
    pub fn note_admitted(&mut self, seq: SeqId, now_s: f64) {
        if let Some(sequence) = self.requests.get_mut(seq) {
            sequence.admitted_s.get_or_insert(now_s);
        }
    }

    /// The request with this id, if there is one; and the number of all requests.
    pub fn live_request(&self, rid: &RequestId, now_s: f64) -> (Vec<LiveRequest>, usize) {
        let found = self.requests.find_by_rid(rid).into_iter();
        let found = found.map(|seq| live_request(&self.requests[seq], now_s));
        (found.collect(), self.batch.len() + self.queue.len())
    }

    /// The first `most` requests, running ones in order of admission, then waiting ones in order of the queue; and the
    /// number of all.
    pub fn live_requests(&self, now_s: f64, most: usize) -> (Vec<LiveRequest>, usize) {
        let running = self.batch.running().iter().copied();
        let running = running.chain(self.batch.chunked());
        let listed = running.chain(self.queue.all()).take(most);
        let listed = listed.map(|seq| live_request(&self.requests[seq], now_s));
        (listed.collect(), self.batch.len() + self.queue.len())
    }

    pub fn live_pools(&self) -> Vec<LivePool> {
        let (stats, census) = (self.stats(), self.memory.census());
        let in_memory = |pool, unit, total: usize, parts: &[(&'static str, usize)]| LivePool {
            pool,
            tier: "memory",
            unit,
            total: total as u64,
            parts: parts.iter().map(|part| (part.0, part.1 as u64)).collect(),
        };
        let kv = [
            ("free", stats.free_tokens),
            ("evictable", stats.evictable_tokens),
            ("protected", stats.protected_tokens),
            ("private", stats.private_tokens),
        ];
        let rows = [("free", stats.free_rows), ("used", census.rows)];
        let mut pools = vec![
            in_memory("kv", "tokens", stats.total_tokens, &kv),
            in_memory("rows", "rows", stats.total_rows, &rows),
        ];
        if stats.total_states > 0 {
            let states = [
                ("free", stats.free_states),
                ("cached", stats.cached_states),
                ("used", census.states),
            ];
            pools.push(in_memory("states", "states", stats.total_states, &states));
        }
        if stats.total_windows > 0 {
            let windows = [
                ("free", stats.free_windows),
                ("evictable", stats.evictable_windows),
                ("protected", stats.protected_windows),
                ("private", stats.private_windows),
            ];
            pools.push(in_memory("windows", "pages", stats.total_windows, &windows));
        }
        if let Some(store) = &stats.store {
            let buffers = [
                ("free", store.free_buffers),
                ("saving", store.saving_buffers),
                ("fetching", store.fetching_buffers),
                ("ready", store.ready_buffers),
            ];
            pools.push(LivePool {
                tier: "host",
                ..in_memory("store_buffers", "buffers", store.buffers, &buffers)
            });
        }
        pools
    }

    /// The nodes whose paths pins hold.
    pub fn live_pins(&self) -> Vec<LivePin> {
        let pins = self.hosts.pins();
        let hard = pins.locks().map(|lock| (lock, false));
        let soft = pins.soft().locks().map(|lock| (lock, true));
        let pinned = hard.chain(soft).filter_map(|(lock, is_soft)| {
            let node = lock.node()?;
            Some(LivePin { node, is_soft })
        });
        pinned.collect()
    }
}

fn live_request(sequence: &Sequence, now_s: f64) -> LiveRequest {
    let request = &sequence.request;
    let prompt = request.prompt.len();
    let kv = sequence.kv.as_ref();
    let cached = kv.map_or(0, |kv| kv.reused_tokens.min(prompt));
    let reached = kv.map_or(0, |kv| kv.committed.min(prompt));
    let output = if sequence.is_opening_sent {
        sequence.output.len()
    } else {
        0
    };
    let is_loading = |sequence: &Sequence| {
        let tier = sequence.tier.as_ref();
        tier.is_some_and(|tier| tier.is_loading())
    };
    let is_encoding = |sequence: &Sequence| {
        let vision = sequence.vision.as_ref();
        vision.is_some_and(|vision| vision.is_waiting())
    };
    let state = match sequence.phase {
        Phase::Waiting if sequence.cached_tokens.is_some() => LiveState::Retracted,
        Phase::Waiting if is_encoding(sequence) => LiveState::Encoding,
        Phase::Waiting if is_loading(sequence) => LiveState::Loading,
        Phase::Waiting => LiveState::Waiting,
        Phase::Chunked => LiveState::Prefill,
        Phase::Running if output == 0 => LiveState::Prefill,
        Phase::Running => LiveState::Decode,
    };
    let pages = kv.map_or(0, |kv| kv.protected_pages + kv.private.len());
    let admitted_s = sequence.admitted_s;
    LiveRequest {
        intake: request.intake,
        rid: request.rid.clone(),
        state,
        prompt,
        cached,
        computed: reached.saturating_sub(cached),
        output,
        loaded: sequence.loaded_tokens() as usize,
        pages,
        retractions: sequence.retractions,
        losses: sequence.losses,
        resumptions: sequence.resumptions,
        queued_s: (admitted_s.unwrap_or(now_s) - request.submitted_s).max(0.0),
        running_s: admitted_s.map_or(0.0, |admitted_s| (now_s - admitted_s).max(0.0)),
    }
}
