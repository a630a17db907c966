//! Diagnosis of cache misses. The Tokenizer does it, because it can decode tokens and does not delay planning.

use std::time::Instant;

use souffleur_base::ids::RequestId;
use souffleur_metrics::PrefixMetrics;
use souffleur_model::text::TextModel;
use souffleur_state::cache::prefix_history::{
    HistoryLimits, PrefixEvent, PrefixHistory, PrefixReport, PrefixTexts, changing_value,
};
use souffleur_state::detok::TokenText;
use souffleur_state::prompt_images::{decode_around, is_key};

pub(super) struct Misses {
    history: PrefixHistory,
    metrics: PrefixMetrics,
    started: Instant,
}

impl Misses {
    pub(super) fn new(limits: HistoryLimits) -> Self {
        Self {
            history: PrefixHistory::new(limits),
            metrics: PrefixMetrics::register(),
            started: Instant::now(),
        }
    }

    pub(super) fn record(&mut self, events: Vec<PrefixEvent>) {
        let now_s = self.started.elapsed().as_secs_f64();
        for event in events {
            if let Some(report) = self.history.take(event, now_s) {
                self.metrics.admitted(report);
            }
        }
    }

    pub(super) fn report(
        &self,
        rid: &RequestId,
        text: Option<&TextModel>,
    ) -> Option<Box<PrefixReport>> {
        let report = self.history.report(rid)?;
        let text = text.map(|text| texts(report, text));
        Some(Box::new(PrefixReport {
            hint: text.as_ref().and_then(hint),
            text,
            ..report.clone()
        }))
    }
}

/// The advice for a changing value (such as a date) at the point where a prompt diverged from a cached one.
fn hint(texts: &PrefixTexts) -> Option<&'static str> {
    let branch = texts.branch.as_deref()?;
    let changing = changing_value(&texts.before, &texts.after, branch)?;
    Some(changing.hint())
}

fn texts(report: &PrefixReport, text: &dyn TokenText) -> PrefixTexts {
    let before = &report.tokens_before;
    let branch = report.branch.as_ref().map(|branch| &branch.tokens);
    PrefixTexts {
        before: decode(before, text),
        after: decode_after(before, &report.tokens_after, text),
        branch: branch.map(|tokens| decode_after(before, tokens, text)),
    }
}

fn decode(tokens: &[u32], text: &dyn TokenText) -> String {
    decode_around(tokens, |tokens| text.decode(tokens, false, false))
}

/// Decodes tokens in their context: decoded alone, a token may lose the space before it.
fn decode_after(before: &[u32], tokens: &[u32], text: &dyn TokenText) -> String {
    if tokens.first().is_some_and(|token| is_key(*token)) {
        // Within an image, its rest would be a part of the run before.
        return decode(tokens, text);
    }
    let whole = decode(&[before, tokens].concat(), text);
    match whole.strip_prefix(&decode(before, text)) {
        Some(rest) => rest.to_owned(),
        // A character is split between `before` and `tokens`.
        None => decode(tokens, text),
    }
}
