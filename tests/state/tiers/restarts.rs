//! Tests of a store that outlives a generation of its unit, and of a unit that outlives its store.

use souffleur_state::docket;
use souffleur_state::scheduler::submission::{IdFloor, Resume};
use souffleur_state::scheduler::tier::StoreOrder;
use souffleur_state::supervision::FIRST_GENERATION;

use super::discards;
use super::world::{TierSetup, TierWorld, prompt};
use crate::scheduler_world::Outcome;

#[test]
fn a_store_that_is_started_again_keeps_no_copy_that_was_planned_before() {
    let mut world = TierWorld::new(TierSetup::default(), Default::default());
    world.submit(prompt(1, 64, 0), 8);
    world.answer();
    let saves = |world: &TierWorld| {
        let copies = world.steps.iter().filter_map(|step| step.copies.as_ref());
        copies.map(|copies| copies.saves.len()).sum::<usize>()
    };
    while saves(&world) == 0 {
        assert!(world.end_step(Outcome::Done));
    }
    let (written, discarded) = (world.written(), discards(&world));
    let (n_steps, n_saves) = (world.steps.len(), saves(&world));
    world.kill_store();
    world.start_store_again();
    // The executor copies the blocks to buffers of the new store.
    for _ in 0..n_steps {
        world.end_step(Outcome::Done);
    }
    assert_eq!(discards(&world), discarded + n_saves);
    assert_eq!(world.written(), written);
    world.assert_clean();
    world.submit(prompt(1, 64, 0), 1);
    world.assert_clean();
    assert_eq!(world.store.disk.blocks.len(), 4);
}

#[test]
fn a_generation_assigns_no_ticket_of_the_one_before() {
    let tickets = |world: &TierWorld| -> Vec<u64> {
        let seen = world.store.seen.iter();
        let tickets = seen.filter_map(|order| match order {
            StoreOrder::Fetch { ticket, .. }
            | StoreOrder::Write { ticket, .. }
            | StoreOrder::Discard { ticket } => Some(ticket.get()),
            StoreOrder::Find { .. } => None,
        });
        tickets.collect()
    };
    let mut world = TierWorld::new(TierSetup::default(), Default::default());
    world.submit(prompt(1, 64, 0), 1);
    world.assert_clean();
    let before = tickets(&world);
    let mut world = world.restart();
    let first = docket::first_number(FIRST_GENERATION + 1);
    let floor = IdFloor {
        step: first,
        sequences: 1,
    };
    let resume = Resume {
        floor,
        requests: Vec::new(),
    };
    world.states.scheduler.resume(resume, 0.0);
    let number = world.submit(prompt(1, 64, 5), 3);
    world.assert_clean();
    assert_eq!(world.views[number].loaded_tokens, 64);
    let after = tickets(&world);
    assert!(!before.is_empty() && !after.is_empty());
    assert!(before.iter().all(|ticket| *ticket < first), "{before:?}");
    assert!(after.iter().all(|ticket| *ticket > first), "{after:?}");
}
