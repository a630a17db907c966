//! Tests that drafts change no prefix hit, and cost no step after the end of an output.

use souffleur_executor::fake::FakeDrafts;
use souffleur_request::FinishReason;
use souffleur_state::pool::state_pool::StateLimits;
use souffleur_state::pool::window_pool::WindowLimits;
use souffleur_state::scheduler::news::RequestEnd;

use crate::grammars::HashedGrammar;
use crate::scheduler_world::{Ask, EOS, End, Setup, VOCAB, World};

/// The most query tokens of a decode with drafts.
pub const ROOM: u32 = 8;
/// Tokens of a sliding window.
pub const WINDOW: usize = 9;

pub fn drafts(accept: f64, seed: u64) -> FakeDrafts {
    FakeDrafts {
        accept,
        seed,
        eos_token_ids: [EOS].into(),
    }
}

pub fn setup(page_size: u32) -> Setup {
    Setup {
        page_size,
        n_pages: 4096 / page_size,
        n_rows: 4,
        chunk_tokens: Some(64),
        full_check_every: 16,
        drafts: Some(drafts(0.6, 11)),
        ..Setup::default()
    }
}

pub fn with_states(page_size: u32) -> Setup {
    Setup {
        states: Some(StateLimits {
            total_slots: 40,
            grid_tokens: 1 << 20,
        }),
        ..setup(page_size)
    }
}

pub fn with_windows(page_size: u32) -> Setup {
    Setup {
        windows: Some(WindowLimits {
            tokens: WINDOW,
            total_pages: 4096 / page_size as usize,
        }),
        ..setup(page_size)
    }
}

/// The cached tokens and the output of each of a few turns; of a conversation, each continues the one before it.
fn turns(setup: &Setup, room: u32) -> Vec<(u32, Vec<u32>)> {
    let mut world = World::new(setup.clone());
    for conversation in 0..6 {
        let mut prompt: Vec<u32> = (0..21 + conversation)
            .map(|at| (at * 11 + conversation * 3) % VOCAB)
            .collect();
        for turn in 0..4 {
            let ask = Ask {
                prompt: prompt.clone(),
                max_new_tokens: 30 + turn as usize * 7,
                ignore_eos: conversation % 2 == 1,
                num_draft_tokens: Some(room),
                ..Ask::default()
            };
            let number = world.submit(ask).expect("it fits");
            world.drain();
            prompt.extend(&world.views[number].delivered);
            prompt.extend([turn, 5, 6]);
        }
    }
    world.assert_clean();
    let views = world.views.iter();
    views
        .map(|view| (view.cached_tokens, view.delivered.clone()))
        .collect()
}

#[test]
fn drafts_change_no_prefix_hit_of_later_turns() {
    for page_size in [1, 4, 16] {
        for setup in [
            setup(page_size),
            with_states(page_size),
            with_windows(page_size),
        ] {
            let plain = turns(&setup, 0);
            assert!(plain.iter().any(|(cached, _)| *cached > 50));
            assert_eq!(turns(&setup, ROOM), plain, "{setup:?}");
            assert_eq!(turns(&setup, 3), plain, "{setup:?}");
        }
    }
}

/// A request that wants drafts, and ends within its first hundred tokens.
fn ask(number: u32) -> Ask {
    let grammar = HashedGrammar {
        seed: number,
        vocab_size: VOCAB,
        opening: vec![7, 8],
        done_after: 30 + number as usize,
        fails_after: None,
    };
    Ask {
        prompt: (0..20).map(|at| (at * 13 + number * 5) % VOCAB).collect(),
        max_new_tokens: if number.is_multiple_of(4) { 90 } else { 900 },
        ignore_eos: number.is_multiple_of(4),
        stop_token: Some(17 + number),
        grammar: (number % 4 == 1).then_some(grammar),
        num_draft_tokens: Some(ROOM),
        ..Ask::default()
    }
}

#[test]
fn requests_with_drafts_compute_nothing_after_their_last_tokens() {
    for accept in [0.0, 0.6, 1.0] {
        let mut ends = [0; 3];
        for number in 0..12 {
            let mut world = World::new(Setup {
                page_size: 4,
                drafts: Some(drafts(accept, u64::from(number))),
                ..Setup::default()
            });
            world.submit(ask(number)).expect("it fits");
            world.assert_clean();
            let view = &world.views[0];
            let Some(End::Reported(RequestEnd::Finished(reason))) = &view.end else {
                panic!("ended with {:?}", view.end);
            };
            match reason {
                FinishReason::Length { .. } => ends[0] += 1,
                FinishReason::StopToken(_) => ends[1] += 1,
                FinishReason::Grammar => ends[2] += 1,
                other => panic!("ended with {other:?}"),
            }
            let n_sampled = view.delivered.len() - view.ask.opening().len();
            assert_eq!(world.drafts_seen.sampled, n_sampled, "{reason:?}");
            let n_decodes = world.computed_steps - 1;
            let n_least = (n_sampled - 1).div_ceil(ROOM as usize);
            if accept == 0.0 {
                assert_eq!(n_decodes, n_sampled - 1, "{reason:?}");
            } else if accept == 1.0 {
                assert_eq!(n_decodes, n_least, "{reason:?}");
            } else {
                assert!((n_least..n_sampled).contains(&n_decodes), "{reason:?}");
            }
        }
        assert!(ends.iter().all(|n| *n > 0), "{ends:?}");
    }
}
