//! Tests of the metrics page.

mod promtool;
mod replicas;

use std::collections::BTreeSet;
use std::time::Duration;

use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};

use super::*;
use souffleur_base::error::{PromptTokens, RequestError, StepError};
use souffleur_request::Usage;
use souffleur_state::scheduler::draft_counts::DraftCounts;
use souffleur_state::scheduler::pending::PendingTokens;
use souffleur_state::scheduler::stats::EngineStats;
use souffleur_state::supervision::{Level, Restart};

fn recorder() -> PrometheusRecorder {
    let builder = PrometheusBuilder::new();
    let builder = buckets().fold(builder, |builder, (name, bounds)| {
        let matcher = Matcher::Full(name.to_owned());
        builder
            .set_buckets_for_metric(matcher, bounds)
            .expect("buckets are not empty")
    });
    builder.build_recorder()
}

/// The page after `record` ran against a new recorder.
fn page(record: impl FnOnce()) -> String {
    let recorder = recorder();
    metrics::with_local_recorder(&recorder, || {
        describe_all();
        record();
    });
    with_counter_types(&recorder.handle().render())
}

fn exercise_all() {
    let mailbox = MailboxMetrics::register("scheduler", "StepDone");
    mailbox.entered();
    mailbox.left();
    mailbox.handled(3e-6);
    DeathMetrics::register(&["tokenizer"]).died("scheduler");
    BeatMetrics::register("tiny", &["executor"]).record([0.5].into_iter());
    let record = RecordMetrics::register();
    record.died();
    record.failed();
    CacheMetrics::register().evicted(16, 2e-4);
    ChaosMetrics::register("scheduler", "panic").fired();
    PrefixMetrics::register();
    let store = StoreMetrics::register(64);
    store.fetched(2, Some("deadline"));
    store.written();
    store.not_written("no_space");
    store.set_disk_bytes(4096);
    let vision = VisionMetrics::register();
    images_received(2);
    vision.encoded();
    vision.reused();
    vision.set_held_bytes(1024);
    vision.worked(0.5);
    exercise_kv_events();
    let gpu = GpuMetrics::register(0);
    gpu.busy(true, 5e-3);
    gpu.idle(1e-5);
    let requests = RequestMetrics::register("tiny");
    requests.received(true);
    requests.first_token(true, 0.05);
    requests.inter_token(0.02, 2);
    requests.decoded(true, 0.02, 3);
    requests.finished(true, &usage(40, 3, 32), 0.07);
    requests.aborted();
    requests.failed("overloaded");
    requests.client_stalled();
    exercise_recovery(requests.resumes());
    exercise_grammars(requests.grammars());
    let scheduler = SchedulerMetrics::register("tiny");
    Capacity::default().record("tiny");
    scheduler.record_plan(&busy_stats());
    scheduler.record_step(0.01, 0.5, 40, 0);
    scheduler.queue_time(0.001);
    exercise_server();
}

fn exercise_recovery(resumes: &ResumeMetrics) {
    RestartMetrics::register().restarted(&Restart {
        level: Level::Control,
        tokenizer: Some(2),
        units: Vec::new(),
    });
    resumes.resumed(3);
    resumes.stale();
    resumes.paused(Duration::from_millis(30));
    request_lost();
}

fn exercise_kv_events() {
    let events = KvEventMetrics::register();
    let _subscriber = SubscriberCount::new(&events);
    events.published(3, 2, 1);
    events.lost(4);
    events.skipped(5);
    events.replayed();
}

fn exercise_grammars(grammars: &GrammarMetrics) {
    grammars.wait(3);
    grammars.waited(2);
    for end in [
        GrammarEnd::Cached,
        GrammarEnd::Compiled,
        GrammarEnd::Aborted,
        GrammarEnd::TimedOut,
    ] {
        grammars.ended(end, Duration::from_millis(15));
    }
    grammars.submitted();
}

/// Records the server's metrics, which this crate has no struct for.
fn exercise_server() {
    let route = [("endpoint", "/generate"), ("method", "POST")];
    counter!("sglang:http_requests_total", &route).increment(1);
    gauge!("sglang:http_requests_active", &route).increment(1.0);
    let response = [
        ("endpoint", "/generate"),
        ("status_code", "200"),
        ("method", "POST"),
    ];
    counter!("sglang:http_responses_total", &response).increment(1);
    record_build("0.1.0", "unknown", "cuda".to_owned());
    counter!("souffleur_changing_headers_dropped_total").increment(1);
    gauge!("souffleur_websocket_connections_active").increment(1.0);
    counter!("souffleur_websocket_connections_total").increment(1);
    histogram!("souffleur_websocket_connection_duration_seconds").record(1.0);
    gauge!("souffleur_websocket_outbound_queue_depth").increment(1.0);
    counter!("souffleur_websocket_aborts_total", "reason" => "closed").increment(1);
}

fn usage(prompt_tokens: u32, completion_tokens: u32, cached_tokens: u32) -> Usage {
    Usage {
        prompt_tokens,
        completion_tokens,
        reasoning_tokens: 0,
        cached_tokens,
        loaded_tokens: 0,
        num_retractions: 0,
        drafts: None,
        prediction: None,
    }
}

fn busy_stats() -> EngineStats {
    EngineStats {
        running_requests: 1,
        total_tokens: 1000,
        page_size: 16,
        free_tokens: 500,
        evictable_tokens: 250,
        protected_tokens: 200,
        private_tokens: 50,
        total_rows: 8,
        free_rows: 7,
        prompt_tokens: 40,
        cached_tokens: 32,
        retractions: 2,
        retracted_input_tokens: 70,
        retracted_output_tokens: 9,
        decode_tokens: 43,
        steps: 5,
        ..EngineStats::default()
    }
}

/// The value of the series `name{...}` whose labels hold all of `labels`.
fn value(page: &str, name: &str, labels: &[&str]) -> f64 {
    let is_wanted = |line: &&str| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label))
    };
    let line = page.lines().find(is_wanted);
    let line = line.unwrap_or_else(|| panic!("no {name} with {labels:?} in\n{page}"));
    line.rsplit(' ')
        .next()
        .expect("a line has a value")
        .parse()
        .expect("a value is a number")
}

#[test]
fn every_family_is_on_the_page_with_its_type_and_nothing_else_is() {
    let page = page(exercise_all);
    let mut expected = BTreeSet::new();
    for family in families() {
        let kind = match family.kind {
            Kind::Counter | Kind::Seconds => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        expected.insert(format!("# TYPE {} {kind}", family.name));
        assert!(
            page.contains(&format!("# HELP {} {}\n", family.name, family.help)),
            "{family:?}"
        );
    }
    let types = page.lines().filter(|line| line.starts_with("# TYPE"));
    assert_eq!(types.map(str::to_owned).collect::<BTreeSet<_>>(), expected);
}

#[test]
fn series_carry_the_labels_of_sglang() {
    let page = page(exercise_all);
    let scheduler = "{model_name=\"tiny\",engine_type=\"unified\",tp_rank=\"0\",pp_rank=\"0\",moe_ep_rank=\"0\"}";
    assert!(
        page.contains(&format!("sglang:num_running_reqs{scheduler} 1\n")),
        "{page}"
    );
    let streaming = "{model_name=\"tiny\",engine_type=\"unified\",is_streaming=\"true\"}";
    assert!(
        page.contains(&format!("sglang:prompt_tokens_total{streaming} 40\n")),
        "{page}"
    );
    let cache = "{cache_type=\"RadixCache\",tp_rank=\"0\",pp_rank=\"0\",dp_rank=\"0\"}";
    assert!(
        page.contains(&format!("sglang:evicted_tokens_total{cache} 16\n")),
        "{page}"
    );
}

#[test]
fn restarts_are_counted_by_level_and_all_levels_exist_from_the_start() {
    let page = page(|| {
        let metrics = RestartMetrics::register();
        let restart = |level, tokenizer| {
            metrics.restarted(&Restart {
                level,
                tokenizer,
                units: Vec::new(),
            });
        };
        restart(Level::Control, None);
        restart(Level::Control, None);
        restart(Level::Control, Some(2));
    });
    let restarts = |level: &str| {
        let level = format!("level=\"{level}\"");
        value(&page, "souffleur_restarts_total", &[&level])
    };
    assert_eq!(
        ["control", "tokenizer", "executor"].map(restarts),
        [2.0, 1.0, 0.0]
    );
}

#[test]
fn a_cached_grammar_has_no_compilation_time() {
    let page = page(|| exercise_grammars(RequestMetrics::register("tiny").grammars()));
    let counter = |what: &str| value(&page, &format!("sglang:num_grammar_{what}"), &[]);
    assert_eq!(counter("total"), 4.0);
    for once in [
        "cache_hit_total",
        "aborted_total",
        "timeout_total",
        "queue_reqs",
    ] {
        assert_eq!(counter(once), 1.0, "{once}");
    }
    let seconds = "sglang:grammar_compilation_time_seconds_count";
    assert_eq!(value(&page, seconds, &[]), 3.0);
    assert_eq!(value(&page, "sglang:num_so_requests_total", &[]), 1.0);
}

#[test]
fn requests_cancelled_in_intake_count_as_ended() {
    let page = page(|| RequestMetrics::register("tiny").cancelled_in_intake(false));
    let of = ["is_streaming=\"false\""];
    assert_eq!(value(&page, "sglang:num_requests_total", &of), 1.0);
    assert_eq!(value(&page, "sglang:num_aborted_requests_total", &[]), 1.0);
    assert_eq!(value(&page, "sglang:prompt_tokens_total", &of), 0.0);
}

#[test]
fn counters_of_ended_requests_are_the_sums_of_their_usages() {
    let usages = [usage(100, 7, 0), usage(100, 1, 96), usage(33, 0, 32)];
    let page = page(|| {
        let requests = RequestMetrics::register("tiny");
        usages
            .iter()
            .for_each(|usage| requests.finished(false, usage, 0.1));
    });
    assert_eq!(
        value(
            &page,
            "sglang:prompt_tokens_total",
            &["is_streaming=\"false\""]
        ),
        233.0
    );
    assert_eq!(
        value(
            &page,
            "sglang:cached_tokens_total",
            &["cache_source=\"device\""]
        ),
        128.0
    );
    assert_eq!(
        value(&page, "sglang:generation_tokens_total", &["\"false\""]),
        8.0
    );
    assert_eq!(
        value(&page, "sglang:uncached_prompt_tokens_histogram_sum", &[]),
        105.0
    );
    assert_eq!(
        value(&page, "sglang:num_requests_total", &["\"false\""]),
        3.0
    );
}

#[test]
fn a_plan_sets_pool_usage_retracted_tokens_and_hit_rate() {
    let page = page(exercise_all);
    assert_eq!(value(&page, "sglang:kv_used_tokens", &[]), 250.0);
    assert_eq!(value(&page, "sglang:token_usage", &[]), 0.25);
    assert_eq!(value(&page, "sglang:num_pages", &[]), 62.0);
    assert_eq!(value(&page, "sglang:decode_sum_seq_lens", &[]), 43.0);
    let retracted = "sglang:num_retracted";
    let retracted = |what| value(&page, &format!("{retracted}_{what}_tokens_total"), &[]);
    assert_eq!((retracted("input"), retracted("output")), (70.0, 9.0));
    assert_eq!(value(&page, "sglang:cache_hit_rate", &[]), 0.8);
}

#[test]
fn counters_keep_growing_after_a_rebuild() {
    let stats = |retractions| EngineStats {
        retractions,
        ..EngineStats::default()
    };
    let page = page(|| {
        let first = SchedulerMetrics::register("tiny");
        first.record_plan(&stats(2));
        first.record_plan(&stats(3));
        SchedulerMetrics::register("tiny").record_plan(&stats(1));
    });
    assert_eq!(
        value(&page, "sglang:num_retracted_requests_total", &[]),
        4.0
    );
}

#[test]
fn waiting_without_a_request_is_no_step_overhead() {
    let page = page(|| {
        let scheduler = SchedulerMetrics::register("tiny");
        scheduler.record_plan(&busy_stats());
        scheduler.record_step(0.4, 9.5, 40, 0);
        scheduler.record_step(0.4, 0.25, 0, 1);
        scheduler.record_plan(&EngineStats::default());
        scheduler.record_plan(&busy_stats());
        scheduler.record_step(0.4, 7.75, 40, 0);
    });
    assert_eq!(
        value(&page, "souffleur_step_overhead_seconds_sum", &[]),
        0.25
    );
    assert_eq!(
        value(&page, "souffleur_step_overhead_seconds_count", &[]),
        1.0
    );
    assert_eq!(
        value(&page, "sglang:scheduler_idle_seconds_total", &[]),
        17.25
    );
}

#[test]
fn seconds_are_counted_with_their_fractions_across_rebuilds() {
    let page = page(|| {
        for _ in 0..3 {
            SchedulerMetrics::register("tiny").record_step(0.25, 0.125, 40, 0);
        }
        SchedulerMetrics::register("tiny").record_step(0.5, 0.125, 40, 1);
    });
    let name = "sglang:forward_execution_seconds_total";
    assert!(page.contains(&format!("# TYPE {name} counter\n")), "{page}");
    assert_eq!(value(&page, name, &["category=\"extend\""]), 0.75);
    assert_eq!(value(&page, name, &["category=\"mixed\""]), 0.5);
    assert_eq!(
        value(&page, "sglang:scheduler_idle_seconds_total", &[]),
        0.5
    );
}

#[test]
fn the_types_of_other_gauges_are_not_changed() {
    let page = "# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 1\n\n\
                # TYPE sglang:scheduler_idle_seconds_total gauge\nsglang:scheduler_idle_seconds_total 0.5\n";
    let mended = page.replace("idle_seconds_total gauge", "idle_seconds_total counter");
    assert_eq!(with_counter_types(page), mended);
}

#[test]
fn throughput_covers_a_second_of_work_and_is_zero_when_idle() {
    let recorder = recorder();
    metrics::with_local_recorder(&recorder, || {
        let scheduler = SchedulerMetrics::register("tiny");
        scheduler.record_plan(&busy_stats());
        for _ in 0..5 {
            scheduler.record_step(0.25, 0.0, 0, 8);
        }
        assert_eq!(
            value(&recorder.handle().render(), "sglang:gen_throughput", &[]),
            32.0
        );
        scheduler.record_plan(&EngineStats::default());
        assert_eq!(
            value(&recorder.handle().render(), "sglang:gen_throughput", &[]),
            0.0
        );
    });
}

#[test]
fn a_load_has_the_rates_that_were_recorded_last() {
    let recorder = recorder();
    metrics::with_local_recorder(&recorder, || {
        let scheduler = SchedulerMetrics::register("tiny");
        let load = |stats| scheduler.load(stats, PendingTokens::default());
        let rates = |load: EngineLoad| (load.gen_throughput, load.cache_hit_rate);
        assert_eq!(rates(load(EngineStats::default())), (0.0, 0.0));
        scheduler.record_plan(&busy_stats());
        scheduler.record_step(2.0, 0.0, 0, 64);
        let busy = load(busy_stats());
        assert_eq!(rates(busy), (32.0, 0.8));
        assert_eq!(busy.stats, busy_stats());
        scheduler.record_plan(&EngineStats::default());
        assert_eq!(rates(load(EngineStats::default())), (0.0, 0.8));
    });
}

#[test]
fn drafts_are_counted_by_source_and_shown_after_a_window_or_when_idle() {
    let recorder = recorder();
    metrics::with_local_recorder(&recorder, || {
        let scheduler = SchedulerMetrics::register("tiny");
        let page = || recorder.handle().render();
        let rates = |stats| scheduler.load(stats, PendingTokens::default()).drafts;
        let counts = |verified, drafted, accepted| DraftCounts {
            verified,
            drafted: [drafted, 0, 0],
            accepted: [accepted, 0, 0],
        };
        scheduler.record_drafts(&counts(10, 40, 20));
        assert_eq!(rates(busy_stats()), DraftRates::default());
        scheduler.record_drafts(&counts(100, 400, 100));
        let after = DraftRates {
            accept_length: 2.0,
            accept_rate: 0.25,
        };
        assert_eq!(rates(busy_stats()), after);
        scheduler.record_drafts(&counts(101, 404, 104));
        scheduler.record_plan(&EngineStats::default());
        let tokens = |name: &str, source| value(&page(), name, &[source]);
        let own = "source=\"own_text\"";
        assert_eq!(tokens("souffleur_spec_draft_tokens_total", own), 404.0);
        assert_eq!(tokens("souffleur_spec_accepted_tokens_total", own), 104.0);
        let of_prediction = tokens("souffleur_spec_draft_tokens_total", "source=\"prediction\"");
        assert_eq!(of_prediction, 0.0);
        assert_eq!(value(&page(), "sglang:spec_verify_calls_total", &[]), 101.0);
        assert_eq!(value(&page(), "sglang:spec_accept_length", &[]), 5.0);
        assert_eq!(value(&page(), "sglang:spec_accept_rate", &[]), 1.0);
        scheduler.record_room(8);
        scheduler.clear_drafts();
        assert_eq!(value(&page(), "sglang:spec_num_draft_tokens", &[]), 8.0);
        assert_eq!(value(&page(), "sglang:spec_accept_length", &[]), 0.0);
        assert_eq!(rates(busy_stats()), DraftRates::default());
    });
}

#[test]
fn several_tokens_at_once_share_their_interval() {
    let page = page(|| RequestMetrics::register("tiny").inter_token(0.06, 3));
    let name = "sglang:inter_token_latency_seconds";
    assert_eq!(value(&page, &format!("{name}_count"), &[]), 3.0);
    assert_eq!(
        value(&page, &format!("{name}_bucket"), &["le=\"0.02\""]),
        3.0
    );
    assert_eq!(
        value(&page, &format!("{name}_bucket"), &["le=\"0.015\""]),
        0.0
    );
}

#[test]
fn every_error_code_has_its_counter_from_the_start() {
    let codes = [
        RequestError::Invalid(String::new()),
        RequestError::PromptTooLong {
            prompt_tokens: PromptTokens::Exactly(2),
            limit_tokens: 1,
        },
        RequestError::Overloaded {
            what: "requests",
            queued: 1,
            limit: 1,
        },
        RequestError::DuplicateRequest(String::new()),
        RequestError::OutOfMemory,
        RequestError::NanLogits,
        RequestError::SlowClient {
            backlog_bytes: 2,
            limit_bytes: 1,
        },
        RequestError::Step(StepError::Lost(String::new())),
        RequestError::EngineDown(String::new()),
        RequestError::ShuttingDown,
        RequestError::waiting_timeout(1.0),
    ];
    let codes: BTreeSet<_> = codes.iter().map(RequestError::code).collect();
    assert_eq!(codes, request::FAILURE_CODES.into_iter().collect());
}

#[test]
fn delivered_tokens_are_counted_instead_of_decode_rows() {
    let page = page(|| {
        let scheduler = SchedulerMetrics::register("tiny");
        let step = |prefilled, decoded, delivered| {
            let work = StepTokens {
                prefilled,
                decoded,
                delivered,
            };
            scheduler.record_work(0.5, 0.0, work);
        };
        scheduler.record_plan(&busy_stats());
        // A prefill that delivers a token, and a decode of three rows, one of which had already ended.
        step(40, 0, 1);
        step(0, 3, 2);
    });
    let tokens = |mode| value(&page, "sglang:realtime_tokens_total", &[mode]);
    assert_eq!(tokens("mode=\"prefill_compute\""), 40.0);
    assert_eq!(tokens("mode=\"decode\""), 3.0);
    assert_eq!(value(&page, "sglang:gen_throughput", &[]), 3.0);
    let seconds = |category| value(&page, "sglang:forward_execution_seconds_total", &[category]);
    assert_eq!(seconds("category=\"extend\""), 0.5);
    assert_eq!(seconds("category=\"decode\""), 0.5);
}
