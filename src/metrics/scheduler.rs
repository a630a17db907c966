//! Metrics of queues, the KV pool and steps, recorded by the Scheduler.

use std::cell::Cell;

use metrics::{Counter, Gauge, Histogram, Label, counter, gauge, histogram};

use super::drafts::DraftMetrics;
use super::{EngineLoad, VisionMetrics, scheduler_labels, with_label};
use souffleur_state::scheduler::draft_counts::DraftCounts;
use souffleur_state::scheduler::pending::PendingTokens;
use souffleur_state::scheduler::stats::EngineStats;

/// `gen_throughput` is updated after this many seconds of work.
const THROUGHPUT_WINDOW_SECONDS: f64 = 1.0;
const BYTES_PER_GB: f64 = (1_u64 << 30) as f64;

pub struct SchedulerMetrics {
    requests: RequestGauges,
    pool: PoolGauges,
    counted: PlanCounters,
    steps: StepMetrics,
    drafts: DraftMetrics,
    queue_seconds: Histogram,
    vision: VisionMetrics,
    last_stats: Cell<EngineStats>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTokens {
    pub prefilled: u64,
    pub decoded: u64,
    /// Output tokens that requests got. Includes first tokens, which prefills compute; excludes tokens after an end.
    pub delivered: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Capacity {
    pub context_tokens: usize,
    pub weights_bytes: u64,
    pub kv_bytes: u64,
    pub start_seconds: f64,
}

impl Capacity {
    pub fn record(&self, model_name: &str) {
        let labels = || scheduler_labels(model_name);
        let gb = |bytes: u64| bytes as f64 / BYTES_PER_GB;
        gauge!("sglang:context_len", labels()).set(self.context_tokens as f64);
        gauge!("sglang:weight_memory_usage_gb", labels()).set(gb(self.weights_bytes));
        gauge!("sglang:kv_cache_memory_usage_gb", labels()).set(gb(self.kv_bytes));
        let phase = with_label(&labels(), "phase", "e2e");
        gauge!("sglang:startup_time_seconds", phase).set(self.start_seconds);
    }
}

impl SchedulerMetrics {
    pub fn register(model_name: &str) -> Self {
        Self::with_labels(scheduler_labels(model_name), &[])
    }

    /// The metrics of one replica's Scheduler: each has its own series, told apart by SGLang's label.
    pub fn register_replica(model_name: &str, rank: u32) -> Self {
        let rank = [Label::new("dp_rank", rank.to_string())];
        let mut labels = scheduler_labels(model_name);
        labels.extend_from_slice(&rank);
        Self::with_labels(labels, &rank)
    }

    /// `own` are the labels of metrics that SGLang does not have.
    fn with_labels(labels: Vec<Label>, own: &[Label]) -> Self {
        // SGLang's dashboards query queues that this engine does not have.
        gauge!("sglang:num_paused_reqs", labels.clone()).set(0.0);
        Self {
            requests: RequestGauges::register(&labels, own),
            pool: PoolGauges::register(&labels, own),
            counted: PlanCounters::register(&labels),
            steps: StepMetrics::register(&labels),
            drafts: DraftMetrics::register(&labels),
            queue_seconds: histogram!("sglang:queue_time_seconds", labels),
            vision: VisionMetrics::register(),
            last_stats: Cell::default(),
        }
    }

    /// Records the state after a plan. Counters grow by differences, so that they survive a rebuild of the actors.
    pub fn record_plan(&self, stats: &EngineStats) {
        let before = self.last_stats.replace(*stats);
        self.requests.set(stats, &before);
        self.pool.set(stats);
        self.counted.add(stats, &before);
        if stats.running_requests + stats.waiting_requests == 0 {
            self.steps.went_idle();
            self.drafts.went_idle();
        }
    }

    /// Records the most query tokens of a row in a step; 0 without speculation.
    pub fn record_room(&self, room: u32) {
        self.drafts.record_room(room);
    }

    /// Clears the gauges of the drafts' yield, which the plan of an empty engine keeps.
    pub fn clear_drafts(&self) {
        self.drafts.clear();
    }

    /// Records the drafts that all steps so far have verified. Without drafts it does nothing.
    pub fn record_drafts(&self, counts: &DraftCounts) {
        self.drafts.record(counts);
    }

    /// Records a finished step that delivered as many output tokens as it decoded: see [`Self::record_work`].
    pub fn record_step(
        &self,
        run_seconds: f64,
        idle_seconds: f64,
        prefill_tokens: usize,
        decode_tokens: usize,
    ) {
        let work = StepTokens {
            prefilled: prefill_tokens as u64,
            decoded: decode_tokens as u64,
            delivered: decode_tokens as u64,
        };
        self.record_work(run_seconds, idle_seconds, work);
    }

    /// Records a finished step: seconds that the executor worked on it and waited for it, and its tokens. A wait while
    /// the engine had no request is not counted as overhead. Not called for steps whose rows were all skipped.
    pub fn record_work(&self, run_seconds: f64, idle_seconds: f64, work: StepTokens) {
        self.steps.record(run_seconds, idle_seconds, work);
    }

    /// Records a step with a slice of an image, in addition to [`Self::record_work`].
    pub fn record_encoding(&self, run_seconds: f64) {
        self.vision.worked(run_seconds);
    }

    /// The load of the engine, with the last recorded rates.
    pub fn load(&self, stats: EngineStats, pending: PendingTokens) -> EngineLoad {
        EngineLoad {
            stats,
            pending,
            gen_throughput: self.steps.last_throughput.get(),
            cache_hit_rate: self.requests.last_hit_rate.get(),
            drafts: self.drafts.last(),
        }
    }

    pub fn queue_time(&self, seconds: f64) {
        self.queue_seconds.record(seconds);
    }
}

struct RequestGauges {
    running: Gauge,
    queued: Gauge,
    retracted: Gauge,
    decode_tokens: Gauge,
    cache_hit_rate: Gauge,
    new_token_ratio: Gauge,
    utilization: Gauge,
    pins: Gauge,
    soft_pins: Gauge,
    last_hit_rate: Cell<f64>,
}

impl RequestGauges {
    fn register(labels: &[Label], own: &[Label]) -> Self {
        Self {
            running: gauge!("sglang:num_running_reqs", labels.to_vec()),
            queued: gauge!("sglang:num_queue_reqs", labels.to_vec()),
            retracted: gauge!("sglang:num_retracted_reqs", labels.to_vec()),
            decode_tokens: gauge!("sglang:decode_sum_seq_lens", labels.to_vec()),
            cache_hit_rate: gauge!("sglang:cache_hit_rate", labels.to_vec()),
            new_token_ratio: gauge!("sglang:new_token_ratio", labels.to_vec()),
            utilization: gauge!("sglang:utilization", labels.to_vec()),
            pins: gauge!("souffleur_prefix_pins", own.to_vec()),
            soft_pins: gauge!("souffleur_soft_prefix_pins", own.to_vec()),
            last_hit_rate: Cell::default(),
        }
    }

    fn set(&self, stats: &EngineStats, before: &EngineStats) {
        self.running.set(stats.running_requests as f64);
        self.queued.set(stats.waiting_requests as f64);
        self.retracted.set(stats.retracted_requests as f64);
        self.decode_tokens.set(stats.decode_tokens as f64);
        self.new_token_ratio.set(stats.new_token_ratio);
        self.utilization.set(stats.utilization());
        self.pins.set(stats.pins as f64);
        self.soft_pins.set(stats.soft_pins as f64);
        let admitted = stats.prompt_tokens.saturating_sub(before.prompt_tokens);
        if admitted > 0 {
            let cached = stats.cached_tokens.saturating_sub(before.cached_tokens);
            let rate = cached as f64 / admitted as f64;
            self.cache_hit_rate.set(rate);
            self.last_hit_rate.set(rate);
        }
    }
}

struct PoolGauges {
    token_usage: Gauge,
    full_token_usage: Gauge,
    num_used: Gauge,
    used: Gauge,
    available: Gauge,
    evictable: Gauge,
    max_total: Gauge,
    page_size: Gauge,
    num_pages: Gauge,
    used_states: Gauge,
    cached_states: Gauge,
    max_states: Gauge,
    used_windows: Gauge,
    cached_windows: Gauge,
    max_windows: Gauge,
}

impl PoolGauges {
    fn register(labels: &[Label], own: &[Label]) -> Self {
        Self {
            token_usage: gauge!("sglang:token_usage", labels.to_vec()),
            full_token_usage: gauge!("sglang:full_token_usage", labels.to_vec()),
            num_used: gauge!("sglang:num_used_tokens", labels.to_vec()),
            used: gauge!("sglang:kv_used_tokens", labels.to_vec()),
            available: gauge!("sglang:kv_available_tokens", labels.to_vec()),
            evictable: gauge!("sglang:kv_evictable_tokens", labels.to_vec()),
            max_total: gauge!("sglang:max_total_num_tokens", labels.to_vec()),
            page_size: gauge!("sglang:page_size", labels.to_vec()),
            num_pages: gauge!("sglang:num_pages", labels.to_vec()),
            used_states: gauge!("souffleur_states_used", own.to_vec()),
            cached_states: gauge!("souffleur_states_cached", own.to_vec()),
            max_states: gauge!("souffleur_states_max", own.to_vec()),
            used_windows: gauge!("souffleur_window_pages_used", own.to_vec()),
            cached_windows: gauge!("souffleur_window_pages_cached", own.to_vec()),
            max_windows: gauge!("souffleur_window_pages_max", own.to_vec()),
        }
    }

    fn set(&self, stats: &EngineStats) {
        let used = stats.used_tokens() as f64;
        self.token_usage.set(stats.token_usage());
        self.full_token_usage.set(stats.token_usage());
        self.num_used.set(used);
        self.used.set(used);
        self.available.set(stats.free_tokens as f64);
        self.evictable.set(stats.evictable_tokens as f64);
        self.max_total.set(stats.total_tokens as f64);
        self.page_size.set(stats.page_size as f64);
        self.num_pages
            .set((stats.total_tokens / stats.page_size.max(1)) as f64);
        let idle = stats.free_states + stats.cached_states;
        self.used_states
            .set(stats.total_states.saturating_sub(idle) as f64);
        self.cached_states.set(stats.cached_states as f64);
        self.max_states.set(stats.total_states as f64);
        let windows = stats.private_windows + stats.protected_windows;
        self.used_windows.set(windows as f64);
        self.cached_windows.set(stats.evictable_windows as f64);
        self.max_windows.set(stats.total_windows as f64);
    }
}

struct PlanCounters {
    retractions: Counter,
    preemptions: Counter,
    retracted_input_tokens: Counter,
    retracted_output_tokens: Counter,
    prefill_cache_tokens: Counter,
    steps: Counter,
    pages_lost: Counter,
    stale_messages: Counter,
    integrity_failures: Counter,
}

impl PlanCounters {
    fn register(labels: &[Label]) -> Self {
        Self {
            retractions: counter!("sglang:num_retracted_requests_total", labels.to_vec()),
            preemptions: counter!("souffleur_preemptions_total"),
            retracted_input_tokens: counter!(
                "sglang:num_retracted_input_tokens_total",
                labels.to_vec()
            ),
            retracted_output_tokens: counter!(
                "sglang:num_retracted_output_tokens_total",
                labels.to_vec()
            ),
            prefill_cache_tokens: realtime_tokens(labels, "prefill_cache"),
            steps: counter!("souffleur_steps_planned_total"),
            pages_lost: counter!("souffleur_pages_lost_total"),
            stale_messages: counter!("souffleur_stale_messages_total"),
            integrity_failures: counter!("souffleur_integrity_failures_total"),
        }
    }

    fn add(&self, stats: &EngineStats, before: &EngineStats) {
        let counters = [
            (&self.retractions, stats.retractions, before.retractions),
            (&self.preemptions, stats.preemptions, before.preemptions),
            (
                &self.retracted_input_tokens,
                stats.retracted_input_tokens,
                before.retracted_input_tokens,
            ),
            (
                &self.retracted_output_tokens,
                stats.retracted_output_tokens,
                before.retracted_output_tokens,
            ),
            (
                &self.prefill_cache_tokens,
                stats.cached_tokens,
                before.cached_tokens,
            ),
            (&self.steps, stats.steps, before.steps),
            (&self.pages_lost, stats.lost_pages, before.lost_pages),
            (
                &self.stale_messages,
                stats.stale_messages,
                before.stale_messages,
            ),
            (
                &self.integrity_failures,
                stats.integrity_failures,
                before.integrity_failures,
            ),
        ];
        for (counter, now, before) in counters {
            counter.increment(now.saturating_sub(before));
        }
    }
}

fn realtime_tokens(labels: &[Label], mode: &'static str) -> Counter {
    counter!(
        "sglang:realtime_tokens_total",
        with_label(labels, "mode", mode)
    )
}

struct StepMetrics {
    prefill_tokens: Counter,
    decode_tokens: Counter,
    extend_seconds: Gauge,
    decode_seconds: Gauge,
    mixed_seconds: Gauge,
    idle_seconds: Gauge,
    step_seconds: Histogram,
    overhead_seconds: Histogram,
    throughput: Gauge,
    last_throughput: Cell<f64>,
    /// True if the engine had no request after the last plan: then the executor's wait is no overhead.
    is_idle: Cell<bool>,
    window_seconds: Cell<f64>,
    window_tokens: Cell<u64>,
}

impl StepMetrics {
    fn register(labels: &[Label]) -> Self {
        let forward = |category| {
            let labels = with_label(labels, "category", category);
            gauge!("sglang:forward_execution_seconds_total", labels)
        };
        Self {
            prefill_tokens: realtime_tokens(labels, "prefill_compute"),
            decode_tokens: realtime_tokens(labels, "decode"),
            extend_seconds: forward("extend"),
            decode_seconds: forward("decode"),
            mixed_seconds: forward("mixed"),
            idle_seconds: gauge!("sglang:scheduler_idle_seconds_total", labels.to_vec()),
            step_seconds: histogram!("souffleur_step_seconds"),
            overhead_seconds: histogram!("souffleur_step_overhead_seconds"),
            throughput: gauge!("sglang:gen_throughput", labels.to_vec()),
            last_throughput: Cell::default(),
            is_idle: Cell::new(true),
            window_seconds: Cell::default(),
            window_tokens: Cell::default(),
        }
    }

    fn record(&self, run_seconds: f64, idle_seconds: f64, work: StepTokens) {
        let category = match (work.prefilled, work.decoded) {
            (_, 0) => &self.extend_seconds,
            (0, _) => &self.decode_seconds,
            _ => &self.mixed_seconds,
        };
        category.increment(run_seconds.max(0.0));
        self.step_seconds.record(run_seconds);
        self.prefill_tokens.increment(work.prefilled);
        self.decode_tokens.increment(work.delivered);
        let mut busy_seconds = run_seconds;
        if self.is_idle.replace(false) {
            self.idle_seconds.increment(idle_seconds.max(0.0));
        } else {
            self.overhead_seconds.record(idle_seconds);
            busy_seconds += idle_seconds;
        }
        self.update_throughput(busy_seconds, work.delivered);
    }

    fn update_throughput(&self, busy_seconds: f64, output_tokens: u64) {
        let seconds = self.window_seconds.get() + busy_seconds;
        let tokens = self.window_tokens.get() + output_tokens;
        let is_over = seconds >= THROUGHPUT_WINDOW_SECONDS;
        if is_over {
            self.set_throughput(tokens as f64 / seconds);
        }
        self.window_seconds.set(if is_over { 0.0 } else { seconds });
        self.window_tokens.set(if is_over { 0 } else { tokens });
    }

    fn set_throughput(&self, tokens_a_second: f64) {
        self.throughput.set(tokens_a_second);
        self.last_throughput.set(tokens_a_second);
    }

    fn went_idle(&self) {
        self.is_idle.set(true);
        self.set_throughput(0.0);
        self.window_seconds.set(0.0);
        self.window_tokens.set(0);
    }
}
