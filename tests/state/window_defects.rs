//! Faults reported in other engines' caches of sliding-window pages, as tests of this cache. Issue numbers are those of
//! the engine's repository.

use crate::scheduler_world::{Ask, Setup, World};
use crate::windows::{Tree, run, setup, tokens};

/// SGLang #35515: one hole in the last window made a whole branch useless. Here a hole only shortens the match, and
/// the next sequence that computes the rest fills it.
#[test]
fn a_hole_in_the_last_window_shortens_the_match_until_it_is_filled() {
    for page_size in [1, 4, 16] {
        let page = page_size as usize;
        let mut world = Tree::new(page_size, 33);
        let prompt = tokens(1, 160);
        world.publish(&prompt[..96]);
        // Publishes the rest without its first window page, like a sequence that has freed this page.
        assert_eq!(world.publish_from(&prompt, 96 / page + 1), 96);
        assert_eq!(world.peek(&prompt), 160, "the last window is whole");
        let into_hole = 96 + page + 16;
        assert_eq!(world.peek(&prompt[..into_hole]), 96);
        assert_eq!(world.publish(&prompt[..into_hole]), 96);
        assert_eq!(world.peek(&prompt[..into_hole]), into_hole);
        world.close();
    }
}

/// SGLang #36935 (for states): the pages at the ends of a long prompt's chunks evicted the boundaries of others.
#[test]
fn ends_of_chunks_evict_no_boundaries() {
    let mut world = World::new(setup(1, 24, 64 + 4 * 24 + 32));
    let prompt = tokens(3, 60);
    run(&mut world, &prompt, 40);
    run(&mut world, &tokens(4, 1500), 2);
    let fork = [&prompt[..], &tokens(5, 20)].concat();
    assert_eq!(run(&mut world, &fork, 1).0, 60);
    world.assert_clean();
}

/// SGLang #29860, #34870: a sequence kept one page less of its end than the next prompt attends to.
#[test]
fn the_next_turn_resumes_at_the_last_whole_page_of_every_length() {
    for (page_size, window) in [(1, 9), (4, 9), (4, 8), (16, 24), (16, 17), (16, 16)] {
        let page = page_size as usize;
        let mut world = World::new(setup(page_size, window, 8192));
        for n_output in 1..2 * page + 6 {
            let prompt = tokens(100 + n_output as u32, 70 + n_output % 5);
            let n_output = n_output + 2 * window;
            let (_, output) = run(&mut world, &prompt, n_output);
            // The last token has no K/V.
            let known = prompt.len() + output.len() - 1;
            let next = [&prompt[..], &output, &tokens(9, 12)].concat();
            let (cached, _) = run(&mut world, &next, 1);
            assert_eq!(
                cached,
                known / page * page,
                "{known} tokens, window {window}"
            );
        }
        world.assert_clean();
    }
}

#[test]
fn the_next_turn_resumes_where_a_stop_string_cut_the_output() {
    for (page_size, window) in [(1, 9), (4, 9), (16, 24)] {
        let page = page_size as usize;
        for cut in 1..6 {
            let mut world = World::new(setup(page_size, window, 8192));
            let prompt = tokens(7, 75);
            let number = world
                .submit(Ask::exactly(prompt.clone(), 200))
                .expect("it fits");
            while world.views[number].delivered.len() < 100 {
                assert!(world.turn());
            }
            let kept = world.views[number].delivered.len() - cut;
            world.stop_found(number, kept);
            world.drain();
            let output = &world.views[number].delivered[..kept];
            let next = [&prompt[..], output, &tokens(9, 12)].concat();
            let (cached, _) = run(&mut world, &next, 1);
            let known = prompt.len() + kept - 1;
            assert_eq!(cached, known / page * page, "{cut} cut, pages of {page}");
            world.assert_clean();
        }
    }
}

/// SGLang #31486: pages that a sequence had freed were published with others at its end.
#[test]
fn pages_that_a_sequence_has_freed_are_not_cached() {
    for page_size in [1, 4, 16] {
        let window = 20;
        // Pages for the windows of two sequences, so that one sequence soon gets the pages that another one frees.
        let tight = 64 + 2 * window + 8 * page_size as usize;
        let mut world = World::new(setup(page_size, window, tight));
        let asks = (40..44).map(|seed| Ask::exactly(tokens(seed, 50), 150));
        world.submit_all(&mut asks.into_iter());
        world.drain();
        // The fake executor compares every page of a hit with the expected content.
        for number in 0..4 {
            let view = &world.views[number];
            let whole = [&view.ask.prompt[..], &view.delivered].concat();
            for len in [60, 100, 150, 190, whole.len()] {
                let next = [&whole[..len], &tokens(50 + number as u32, 10)].concat();
                run(&mut world, &next, 3);
            }
        }
        world.assert_clean();
    }
}

/// SGLang #27586: slots leaked through a map of window slots that was not updated when requests were aborted.
#[test]
fn a_request_cancelled_or_retracted_at_any_step_leaks_no_page() {
    for has_radix_cache in [true, false] {
        for turns in 0..40 {
            let mut world = World::new(Setup {
                has_radix_cache,
                conservativeness: 0.0,
                ..setup(4, 20, 64 + 2 * 20 + 8 * 4)
            });
            let asks = (60..63).map(|seed| Ask::exactly(tokens(seed, 150), 60));
            world.submit_all(&mut asks.into_iter());
            for _ in 0..turns {
                world.turn();
            }
            for number in world.not_ended() {
                world.cancel(number);
                world.turn();
            }
            world.assert_clean();
        }
    }
}

/// vLLM #46453: groups of pages disagreed on the length of a hit. Here the executor checks that a row begins with the
/// pages of both groups.
#[test]
fn a_row_begins_where_both_groups_have_pages() {
    for page_size in [1, 4, 16] {
        let page = page_size as usize;
        let mut world = World::new(setup(page_size, 24, 64 + 2 * 24 + 16 * page));
        let prompts: Vec<Vec<u32>> = (70..76).map(|seed| tokens(seed, 140)).collect();
        for round in 0..3 {
            for prompt in &prompts {
                for len in [140, 90] {
                    let prompt = [&prompt[..len], &tokens(80 + round, 8)].concat();
                    let (cached, _) = run(&mut world, &prompt, 5);
                    assert_eq!(cached % page, 0);
                }
            }
        }
        assert!(world.stats().evicted_windows > 0, "the pool was too large");
        let starts = world.history.iter().flat_map(|step| &step.starts);
        assert!(starts.filter(|start| !start.prefix.is_empty()).count() > 0);
        world.assert_clean();
    }
}

/// llama.cpp #13194: the next turn of a conversation computed everything again, since the window did not reach back to
/// the position where it resumes.
#[test]
fn a_conversation_computes_only_new_tokens() {
    for page_size in [1, 4, 16] {
        let page = page_size as usize;
        let window = 24;
        // Hardly more window pages than one sequence needs, and other prompts come in between.
        let mut world = World::new(setup(page_size, window, 64 + 4 * window + 16 * page));
        let mut turns = tokens(90, 300);
        run(&mut world, &turns, 1);
        for turn in 0..12 {
            turns.extend(tokens(91 + turn, 30));
            let (cached, output) = run(&mut world, &turns, 50);
            if turn > 0 {
                let new = turns.len() - cached;
                assert!(new <= 30 + 1 + page, "turn {turn} computed {new}");
            }
            turns.extend(output);
            run(&mut world, &tokens(150 + turn, 20), 2);
        }
        world.assert_clean();
    }
}

#[test]
fn a_repeated_prompt_computes_a_page_at_most() {
    for (page_size, window) in [(1, 10), (4, 10), (16, 40)] {
        let page = page_size as usize;
        let mut world = World::new(setup(page_size, window, 64 + 6 * window + 32 * page));
        for len in [80, 81, 95, 96, 97] {
            let prompt = tokens(200 + len as u32, len);
            run(&mut world, &prompt, 1);
            let (cached, _) = run(&mut world, &prompt, 1);
            assert_eq!(cached, (len - 1) / page * page);
            let before = world.views.len();
            let four = std::iter::repeat_n(Ask::exactly(prompt.clone(), 30), 4);
            world.submit_all(&mut four.into_iter());
            world.drain();
            for view in &world.views[before..] {
                assert_eq!(view.cached_tokens as usize, (len - 1) / page * page);
            }
        }
        world.assert_clean();
    }
}

#[test]
fn a_pin_keeps_the_window_at_its_end() {
    let mut world = World::new(setup(4, 24, 64 + 4 * 24 + 64));
    let prompt = tokens(250, 120);
    run(&mut world, &prompt, 1);
    world.pin(&prompt, 1000);
    world.finish_plan();
    for seed in 251..270 {
        run(&mut world, &tokens(seed, 120), 10);
    }
    let next = [&prompt[..], &tokens(9, 10)].concat();
    assert_eq!(run(&mut world, &next, 1).0, 120);
    world.assert_clean();
}
