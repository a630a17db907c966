//! Tests of servers whose model is divided among ranks.

use serde_json::{Value, json};
use souffleur::config::{DtypeChoice, SpeculativeAlgorithm};

use crate::http::{get, post};
use crate::world::World;

/// The greedy outputs of prompts, each of which begins with the one before, so that the cache has it.
fn outputs(world: &World) -> Vec<Value> {
    let output = |length: u32| {
        let prompt: Vec<u32> = (0..length).map(|index| 10 + index * 7 % 90).collect();
        let call = json!({
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": 16, "ignore_eos": true},
        });
        post(world.addr, "/generate", &call).ok()["output_ids"].clone()
    };
    [3, 40, 70].map(output).to_vec()
}

/// The ranks' controllers measure different times, so they would choose different numbers of drafts.
#[test]
fn ranks_verify_drafts_of_the_same_number() {
    let served = |algorithm| {
        let world = World::with(|engine, _| {
            engine.tp_size = 2;
            engine.speculative_algorithm = algorithm;
        });
        let prompt = [20, 31, 42, 53].repeat(16);
        let call = json!({
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": 64, "ignore_eos": true},
        });
        let answer = post(world.addr, "/generate", &call).ok();
        world.wait_until_idle();
        let drafted = answer["meta_info"]["spec_draft_token_num"].as_u64();
        (answer["output_ids"].clone(), drafted)
    };
    let (expected, _) = served(None);
    let (outputs, drafted) = served(Some(SpeculativeAlgorithm::Ngram));
    assert_eq!(outputs, expected);
    assert!(drafted > Some(0), "{drafted:?} drafts");
}

#[test]
fn ranks_answer_as_one_rank_also_in_each_of_several_replicas() {
    let served = |tp_size: usize, dp_size: usize| {
        let world = World::with(|engine, _| {
            engine.dtype = DtypeChoice::Float32;
            engine.tp_size = tp_size;
            engine.dp_size = dp_size;
        });
        let info = get(world.addr, "/server_info").ok();
        assert_eq!(info["tp_size"], tp_size);
        assert_eq!(info["dp_size"], dp_size);
        let outputs = outputs(&world);
        world.wait_until_idle();
        outputs
    };
    let alone = served(1, 1);
    for (tp_size, dp_size) in [(2, 1), (4, 1), (2, 2)] {
        let outputs = served(tp_size, dp_size);
        assert_eq!(outputs, alone, "{tp_size} ranks, {dp_size} replicas");
    }
}
