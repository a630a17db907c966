//! Tests that small scripts of requests lead to exactly the expected steps: positions, samples and pages.

use souffleur_base::ids::PageId;
use souffleur_request::FinishReason;
use souffleur_state::scheduler::news::RequestEnd;
use souffleur_state::step::{RowWork, StepPlan, TableDelta};

use crate::scheduler_world::{Ask, EOS, End, Outcome, Setup, World};

fn work(plan: &StepPlan) -> Vec<(std::ops::Range<u32>, bool)> {
    let rows = plan.rows.iter();
    rows.map(|row| (row.work.positions(), row.sample)).collect()
}

fn appended(plan: &StepPlan) -> Vec<u32> {
    let pages = plan.table.iter().flat_map(|delta| match delta {
        TableDelta::Append { pages, .. } => pages.to_vec(),
        TableDelta::Remap { .. } => panic!("nothing is computed twice here"),
        TableDelta::AppendWindows { .. } | TableDelta::Windows { .. } => {
            panic!("no layer has a window here")
        }
    });
    pages.map(PageId::get).collect()
}

#[test]
fn one_request_prefills_decodes_ahead_and_ends_by_length_without_a_wasted_step() {
    let mut world = World::new(Setup {
        page_size: 4,
        n_pages: 16,
        ..Setup::default()
    });
    world.submit(Ask::exactly(vec![1, 2, 3, 4, 5, 6], 4));
    world.finish_plan();
    // The first two steps are planned before any of their tokens are known.
    assert_eq!((world.depth(), world.history.len()), (2, 2));
    let first = &world.history[0];
    assert_eq!((first.starts.len(), first.starts[0].prompt_tokens), (1, 6));
    assert!(first.starts[0].prefix.is_empty());
    assert_eq!(work(first), [(0..6, true)]);
    assert_eq!(appended(first), [1, 2]);
    assert_eq!(work(&world.history[1]), [(6..7, true)]);
    assert!(matches!(
        world.history[1].rows[0].work,
        RowWork::Decode {
            position: 6,
            room: 1
        }
    ));
    assert!(appended(&world.history[1]).is_empty());

    world.turn();
    world.finish_plan();
    assert_eq!(work(&world.history[2]), [(7..8, true)]);
    assert!(appended(&world.history[2]).is_empty());
    world.turn();
    world.finish_plan();
    // Position 8 opens a page. Its token is the fourth and last output: nothing is planned after it.
    assert_eq!(work(&world.history[3]), [(8..9, true)]);
    assert_eq!(appended(&world.history[3]), [3]);
    world.turn();
    world.finish_plan();
    assert_eq!((world.depth(), world.history.len()), (1, 4));
    world.turn();
    world.assert_clean();
    assert_eq!(world.views[0].delivered.len(), 4);
}

#[test]
fn eos_costs_exactly_one_wasted_step() {
    let ask = |max_new_tokens| Ask {
        prompt: vec![3, 1, 4, 1, 5],
        max_new_tokens,
        ..Ask::default()
    };
    let mut world = World::new(Setup::default());
    world.submit(ask(900));
    world.assert_clean();
    let view = &world.views[0];
    let n_output = view.delivered.len();
    assert_eq!(
        view.end,
        Some(End::Reported(RequestEnd::Finished(
            FinishReason::StopToken(EOS)
        )))
    );
    assert!(n_output < 900);
    assert_eq!(world.history.len(), n_output + 1);
}

#[test]
fn no_new_tokens_means_one_step_that_samples_nothing() {
    let mut world = World::new(Setup::default());
    world.submit(Ask::exactly(vec![1, 2, 3], 0));
    world.assert_clean();
    assert_eq!(world.history.len(), 1);
    assert_eq!(work(&world.history[0]), [(0..3, false)]);
    assert!(world.views[0].delivered.is_empty());
}

#[test]
fn long_prompt_is_cut_into_chunks_and_samples_in_the_last() {
    let mut world = World::new(Setup {
        page_size: 4,
        n_pages: 64,
        chunk_tokens: Some(10),
        ..Setup::default()
    });
    world.submit(Ask::exactly((0..25).map(|token| token % 7).collect(), 2));
    world.assert_clean();
    let steps: Vec<_> = world.history.iter().flat_map(work).collect();
    // The first chunk ends with a whole page: floor_page(10) = 8. Later chunks need not.
    assert_eq!(
        steps,
        [
            (0..8, false),
            (8..18, false),
            (18..25, true),
            (25..26, true)
        ]
    );
}

#[test]
fn step_results_out_of_order_are_counted_and_dropped() {
    let mut world = World::new(Setup::default());
    world.submit(Ask::exactly(vec![1, 2, 3], 3));
    world.finish_plan();
    let stale = world.history[1].step;
    let output = souffleur_state::step::StepOutput {
        step: stale,
        rows: Vec::new(),
    };
    world.states.scheduler.step_done(stale, Ok(output));
    assert_eq!(world.stats().stale_messages, 1);
    world.end_step(Outcome::Done);
    world.assert_clean();
}
