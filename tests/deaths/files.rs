//! Tests of a model whose files change before a control actor dies: the weights in memory are used further.

use std::fs::{self, File};
use std::path::Path;

use crate::models::Model;
use crate::plan::Kill;
use crate::undisturbed::Undisturbed;
use crate::wave::Wave;
use crate::world::World;

const MIN_OPEN: usize = 16;
const ATTEMPTS: usize = 20;

fn replace(weights: &Path) {
    let size = fs::metadata(weights).expect("the weights exist").len();
    let other = weights.with_extension("other");
    fs::write(&other, vec![0_u8; size as usize]).expect("the folder can be written");
    fs::rename(other, weights).expect("the folder can be written");
}

fn shorten(weights: &Path) {
    let file = File::options().write(true).open(weights);
    let file = file.expect("the weights can be written");
    let size = file.metadata().expect("the file is open").len();
    file.set_len(size / 2).expect("the file can be shortened");
}

fn delete(weights: &Path) {
    fs::remove_file(weights).expect("the folder can be written");
}

fn check(change: fn(&Path)) {
    let known = Undisturbed::of(Model::Bundled);
    let counts = (0..ATTEMPTS).any(|_| check_once(known, change));
    assert!(counts, "fewer than {MIN_OPEN} streams were open");
}

/// Changes the weights while a step is held, and then lets the Scheduler die at the step's result. Whether enough
/// streams were open.
fn check_once(known: &Undisturbed, change: fn(&Path)) -> bool {
    let at = known.middle_launch();
    let kill = Kill::new("scheduler", "StepDone", "entry", at);
    let world = World::start(Model::Bundled, &[kill.spec()], Some(at));
    let mut counts = false;
    let wave = Wave::run(&world, &known.calls, || {
        counts = world.is_held_with(MIN_OPEN);
        change(&world.model.path().join("model.safetensors"));
        world.release();
    });
    known.check(&wave);
    world.check_end();
    assert_eq!((world.generation(), world.watch.panics().len()), (2, 1));
    assert_eq!(wave.gaps.len(), 1);
    counts
}

#[test]
fn requests_go_on_although_the_model_was_replaced() {
    check(replace);
}

#[test]
fn requests_go_on_although_the_model_was_shortened() {
    check(shorten);
}

#[test]
fn requests_go_on_although_the_model_was_deleted() {
    check(delete);
}
