//! The metrics of an engine: their names, help texts and handles. The library never installs a recorder.
//!
//! Handles bind to the recorder that is installed when they are registered, so the engine registers them when it
//! starts. Metrics that SGLang has too get its name, labels, type and buckets, so that its dashboards work. Other
//! metrics are called `souffleur_<noun>_<unit>[_total]`.

mod beats;
mod build_info;
mod cache;
mod chaos;
mod clock;
mod deaths;
mod drafts;
mod families;
mod first_scrape;
mod gpu;
mod grammar;
mod kv_events;
mod load;
mod mailbox;
mod page;
mod prefix;
mod record;
mod recovery;
mod request;
mod scheduler;
mod store;
mod vision;

pub use beats::BeatMetrics;
pub use build_info::record_build;
pub use cache::CacheMetrics;
pub use chaos::ChaosMetrics;
pub use clock::process_time;
pub use deaths::DeathMetrics;
pub use drafts::DraftRates;
pub use families::{Family, Kind, buckets, describe_all, families, with_counter_types};
pub use first_scrape::register_rare;
pub use gpu::GpuMetrics;
pub use grammar::{GrammarEnd, GrammarMetrics};
pub use kv_events::{KvEventMetrics, SubscriberCount};
pub use load::EngineLoad;
pub use mailbox::{MailboxCounts, MailboxMetrics, look_at_mailboxes, mailbox_counts};
pub use page::in_order;
pub use prefix::PrefixMetrics;
pub use record::RecordMetrics;
pub use recovery::{RecoveryCounts, RestartMetrics, ResumeMetrics, recovery_counts, request_lost};
pub use request::RequestMetrics;
pub use scheduler::{Capacity, SchedulerMetrics, StepTokens};
pub use store::{StoreMetrics, stored_bytes};
pub use vision::{VisionMetrics, images_received};

use metrics::Label;

/// The labels of SGLang's scheduler metrics, for an engine of one rank.
fn scheduler_labels(model_name: &str) -> Vec<Label> {
    let mut labels = request_labels(model_name);
    labels.extend(["tp_rank", "pp_rank", "moe_ep_rank"].map(|key| Label::new(key, "0")));
    labels
}

fn request_labels(model_name: &str) -> Vec<Label> {
    vec![
        Label::new("model_name", model_name.to_owned()),
        Label::new("engine_type", "unified"),
    ]
}

fn with_label(labels: &[Label], key: &'static str, value: &'static str) -> Vec<Label> {
    let mut labels = labels.to_vec();
    labels.push(Label::new(key, value));
    labels
}

#[cfg(test)]
mod tests;
