//! Tests of a request that makes a part of the engine panic each time: it alone fails, after at most two restarts.

use serde_json::{Value, json};

use crate::http::{Response, post};
use crate::models::Model;
use crate::server::wait_until;
use crate::undisturbed::Undisturbed;
use crate::wave::Wave;
use crate::world::World;

const MIN_OPEN: usize = 16;
const MAX_NEW_TOKENS: usize = 32;
/// Times that a client sends a request again that fails.
const RETRIES: usize = 100;
/// The same, if each time makes steps panic.
const RETRIES_OF_STEPS: usize = 20;
/// A special token, which no text contains.
const POISON_TOKEN: u32 = 0;

/// Sends a request while the others stream, which must not be affected. Returns the engine and the answer.
fn among_others(fault: &str, poison: &Value) -> (World, Response) {
    let known = Undisturbed::of(Model::Bundled);
    let world = World::start(Model::Bundled, &[fault.to_owned()], None);
    let mut answer = None;
    let wave = Wave::run(&world, &known.calls, || {
        wait_until("the others stream", || world.watch.n_open() >= MIN_OPEN);
        answer = Some(post(world.server.addr, "/generate", poison));
    });
    known.check(&wave);
    world.check_end();
    (world, answer.expect("the poison was sent"))
}

fn sampling() -> Value {
    json!({"max_new_tokens": MAX_NEW_TOKENS, "temperature": 0, "ignore_eos": true})
}

fn poison() -> Value {
    let prompt = [100, 200, POISON_TOKEN, 300];
    json!({"rid": "poison", "input_ids": prompt, "sampling_params": sampling()})
}

/// Checks that a request which kills a control actor fails with its id after two restarts, and that it kills none when
/// it is sent again.
fn check_two_restarts(fault: &str) {
    let (world, answer) = among_others(fault, &poison());
    assert_eq!(answer.status, 500, "{}", answer.body);
    assert!(answer.body.contains("request poison"), "{}", answer.body);
    for _ in 0..RETRIES {
        let again = post(world.server.addr, "/generate", &poison());
        assert_eq!(again.status, 503, "{}", again.body);
        assert!(
            again.body.contains("an identical request"),
            "{}",
            again.body
        );
    }
    world.check_end();
    let panics = world.watch.panics();
    assert_eq!((panics.len(), world.generation()), (2, 3), "{panics:?}");
}

#[test]
fn a_request_that_kills_the_scheduler_at_its_submission_fails_alone_after_two_restarts() {
    check_two_restarts("actor=scheduler,kind=panic,rid=poison");
}

#[test]
fn a_request_that_kills_the_scheduler_at_its_results_fails_alone_after_two_restarts() {
    check_two_restarts("actor=scheduler,kind=panic,message=Row,rid=poison");
}

#[test]
fn a_request_that_kills_the_radix_cache_fails_alone_after_two_restarts() {
    let fault = format!("actor=radix_cache,kind=panic,token={POISON_TOKEN}");
    check_two_restarts(&fault);
}

#[test]
fn a_text_that_panics_each_time_fails_its_request_alone() {
    let fault = "actor=tokenizer,kind=panic,phase=middle,message=TokensReady,rid=poison";
    let poison = json!({"rid": "poison", "text": "A lake.", "sampling_params": sampling()});
    let (world, answer) = among_others(fault, &poison);
    assert_eq!(answer.status, 500, "{}", answer.body);
    assert!(answer.body.contains("panicked twice"), "{}", answer.body);
    assert_eq!((world.watch.panics().len(), world.generation()), (2, 1));
}

#[test]
fn a_prompt_that_panics_each_step_fails_its_request_alone() {
    let fault = format!("actor=executor_thread,kind=panic,cause=same,token={POISON_TOKEN}");
    let (world, answer) = among_others(&fault, &poison());
    assert_eq!(answer.status, 500, "{}", answer.body);
    for _ in 0..RETRIES_OF_STEPS {
        let again = post(world.server.addr, "/generate", &poison());
        assert_eq!(again.status, 500, "{}", again.body);
    }
    world.check_end();
    assert_eq!(world.generation(), 1);
}
