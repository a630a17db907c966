//! Tests that the message log of an engine with constrained requests can be replayed without grammars.

use std::sync::Arc;

use futures_util::future::join_all;
use souffleur_config::EngineConfig;
use souffleur_record::file::LogEnd;
use souffleur_record::replay::replay;
use souffleur_request::FinishReason;
use souffleur_state::control::ControlSetup;
use souffleur_state::grammar::Constraint;

use crate::model::{
    EVERY_TEXT, LONGEST_OUTPUT, Model, TIGHT_POOL_TOKENS, base_config, output, schema,
};
use crate::schemas::schemas;

const REQUESTS: usize = 48;
/// Requests that are sent first, allow any text and generate [`LONGEST_OUTPUT`] tokens.
const LONGEST: std::ops::Range<usize> = 0..2;

#[tokio::test]
async fn a_log_of_constrained_requests_is_replayed_to_the_same_plans() {
    let dir = tempfile::tempdir().expect("a folder can be made");
    let file = dir.path().join("control.log");
    let (model, open) = Model::start_gated(EngineConfig {
        record: Some(file.clone()),
        max_total_tokens: Some(TIGHT_POOL_TOKENS),
        // Admits all prompts in one step, even on a slow machine.
        max_prefill_step_ms: 0,
        schedule_conservativeness: 0.01,
        context_length: Some(256),
        chunked_prefill_size: 48,
        ..base_config()
    });
    let schemas = schemas();
    let ask = |number: usize| {
        let constraint =
            (!number.is_multiple_of(4)).then(|| schema(&schemas[number % schemas.len()]));
        let mut request = model.request(number as u64, number as u64, constraint);
        request.sampling.max_new_tokens = 60;
        if LONGEST.contains(&number) {
            request.constraint = Some(Arc::new(Constraint::Regex(EVERY_TEXT.into())));
            request.sampling.max_new_tokens = LONGEST_OUTPUT;
            request.sampling.min_new_tokens = LONGEST_OUTPUT;
        }
        request.sampling.logit_bias = Arc::default();
        model.world.generate(request)
    };
    let mut sent = Vec::new();
    for number in 0..REQUESTS {
        sent.push(ask(number));
        model.until_started(sent.len()).await;
    }
    drop(open);
    let outputs = join_all(sent.into_iter().map(output)).await;
    assert!(outputs.iter().any(|out| out.end == FinishReason::Grammar));
    assert!(outputs.iter().any(|out| out.num_retractions > 0));
    model.stop().await;
    let log = std::fs::read(&file).expect("a log");
    let replayed = replay(log.as_slice(), &ControlSetup::build).expect("the log can be replayed");
    let found = replayed.difference.as_ref().map(ToString::to_string);
    assert_eq!(found, None);
    assert_eq!((replayed.ending, replayed.has_gap), (LogEnd::Closed, false));
    assert_eq!(replayed.counts.requests, REQUESTS as u64);
}
