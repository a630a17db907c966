//! Faults reported in other engines' caches of recurrent states (hybrid models), as tests of this cache. Issue numbers
//! are those of the engine's repository. Two kinds are tested elsewhere: lost or missing sliding-window pages in
//! `window_defects`, anchors (save positions) misplaced in a chat (llama.cpp #22929, #24176) in tests of `TurnMarks`.

use souffleur_state::pool::state_pool::StateLimits;

use crate::scheduler_world::{Ask, Outcome, Setup, VOCAB, World};

fn world(page_size: u32, n_rows: u32, total_slots: usize, grid_tokens: usize) -> World {
    World::new(Setup {
        page_size,
        n_pages: 16_384 / page_size,
        n_rows,
        chunk_tokens: Some(64),
        states: Some(StateLimits {
            total_slots,
            grid_tokens,
        }),
        ..Setup::default()
    })
}

fn tokens(seed: u32, n: usize) -> Vec<u32> {
    let token = |at: u32| (seed * 7919 + at * 37 + at * at / 5) % VOCAB;
    [seed % VOCAB]
        .into_iter()
        .chain((1..n as u32).map(token))
        .collect()
}

fn ask(prompt: Vec<u32>, anchors: &[u32]) -> Ask {
    Ask {
        anchors: anchors.to_vec(),
        ..Ask::exactly(prompt, 3)
    }
}

/// Runs a prompt, and returns the number of its tokens that came from the cache.
fn cached(world: &mut World, prompt: Vec<u32>, anchors: &[u32]) -> usize {
    let number = world.submit(ask(prompt, anchors)).expect("it fits");
    world.drain();
    world.views[number].cached_tokens as usize
}

/// SGLang #36935: the states at the ends of chunks evicted those of other prompts.
#[test]
fn ends_of_chunks_of_a_long_prompt_leave_no_states() {
    let mut world = world(1, 2, 40, 512);
    cached(&mut world, tokens(1, 2000), &[1990]);
    // States at 512, 1024 and 1536 tokens, at the anchor, and at the end.
    assert_eq!(world.states.cache.cached_states(), 5);
    world.assert_clean();
}

/// SGLang #31643, #31648: a hit refreshed every state on its path, also those that no prompt resumes from.
#[test]
fn a_hit_refreshes_only_the_state_that_it_used() {
    let mut world = world(1, 1, 5, 1 << 20);
    let long = tokens(2, 300);
    cached(&mut world, long.clone(), &[100, 200]);
    for _ in 0..40 {
        // Resumes from the state at 200, below the one at 100, and leaves a state at its own end.
        let prompt = [&long[..200], &tokens(4, 30)].concat();
        cached(&mut world, prompt, &[200]);
    }
    let at = |world: &World, len: usize| {
        let namespace = Default::default();
        world.states.cache.peek(&namespace, &long[..len])
    };
    assert_eq!((at(&world, 150), at(&world, 250)), (0, 200));
    world.assert_clean();
}

/// SGLang #35412, #34808, #29860, #34870: states off the page grid, and boundaries off by a page.
#[test]
fn states_are_at_ends_of_whole_pages_and_the_match_ends_there() {
    for page_size in [4, 16] {
        let page = page_size as usize;
        let mut world = world(page_size, 2, 64, 1 << 20);
        for len in [page, page + 1, 4 * page - 1, 4 * page, 4 * page + 1, 100] {
            let seed = 10 + len as u32;
            let prompt = tokens(seed, len);
            let anchor = len as u32 / 2;
            assert_eq!(cached(&mut world, prompt.clone(), &[anchor]), 0);
            let longer = [&prompt[..], &tokens(seed + 1000, 40)].concat();
            let hit = cached(&mut world, longer, &[anchor]);
            assert_eq!(hit % page, 0, "{len} tokens in pages of {page}");
            assert!(hit >= anchor as usize / page * page, "{len}: {hit}");
            let half = prompt[..anchor as usize].to_vec();
            let half = [half, tokens(seed + 2000, 40)].concat();
            let hit = cached(&mut world, half, &[anchor]);
            assert_eq!(
                hit,
                anchor as usize / page * page,
                "{len} in pages of {page}"
            );
        }
        world.assert_clean();
    }
}

/// SGLang #30862: a slot was restored that no step had written.
#[test]
fn a_request_cancelled_before_its_step_leaves_no_state() {
    let prompt = tokens(20, 150);
    for legs in 0..4 {
        let mut world = world(1, 2, 16, 32);
        let number = world
            .submit(ask(prompt.clone(), &[70, 140]))
            .expect("it fits");
        for _ in 0..legs {
            world.advance();
        }
        world.cancel(number);
        world.drain();
        // The executor compares this prompt's states with its tokens.
        cached(&mut world, prompt.clone(), &[70, 140]);
        world.assert_clean();
    }
}

/// SGLang #29792, #27586: accounting that was late under overlapping steps, slots that leaked.
#[test]
fn ends_of_every_kind_leave_every_state_accounted_for() {
    for (number_of_steps, outcome) in (0..6).zip([
        Outcome::Done,
        Outcome::Rejected,
        Outcome::LostBeforeItRan,
        Outcome::LostAfterItRan,
        Outcome::Done,
        Outcome::Done,
    ]) {
        for page_size in [1, 4] {
            let mut world = world(page_size, 3, 10, 64);
            let shared = tokens(30, 120);
            let prompts = (0..5).map(|seed| [&shared[..], &tokens(31 + seed, 90)].concat());
            for prompt in prompts.collect::<Vec<_>>() {
                world.submit(ask(prompt, &[120, 200]));
            }
            for _ in 0..number_of_steps {
                world.turn();
            }
            world.finish_plan();
            world.end_step(outcome);
            world.stop_found(1, 1);
            world.cancel(2);
            world.assert_clean();
        }
    }
}

/// llama.cpp #28302: a short prompt erased the checkpoints of others.
#[test]
fn short_prompts_leave_the_states_of_long_ones() {
    let mut world = world(1, 4, 24, 1 << 20);
    let long = tokens(40, 1000);
    cached(&mut world, long.clone(), &[900]);
    for seed in 50..55 {
        cached(&mut world, tokens(seed, 5), &[2]);
    }
    let again = [&long[..900], &tokens(60, 20)].concat();
    assert_eq!(cached(&mut world, again, &[900]), 900);
    world.assert_clean();
}

/// vLLM #45238, #51198: only the last state of a prompt was kept.
#[test]
fn a_fork_resumes_from_an_earlier_turn() {
    let mut world = world(16, 2, 32, 256);
    let long = tokens(70, 1200);
    cached(&mut world, long.clone(), &[320, 1184]);
    for (kept, least) in [(330, 320), (600, 512), (1190, 1184)] {
        let fork = [&long[..kept], &tokens(71 + kept as u32, 30)].concat();
        let hit = cached(&mut world, fork, &[320]);
        assert!(hit >= least, "{kept} tokens in common: {hit} cached");
    }
    world.assert_clean();
}

#[test]
fn a_pin_keeps_the_state_at_its_end() {
    let mut world = world(1, 2, 10, 1 << 20);
    let prompt = tokens(80, 200);
    cached(&mut world, prompt.clone(), &[150]);
    world.pin(&prompt[..150], 1000);
    world.finish_plan();
    for seed in 81..99 {
        cached(&mut world, tokens(seed, 90), &[30, 60]);
    }
    let again = [&prompt[..150], &tokens(99, 20)].concat();
    assert_eq!(cached(&mut world, again, &[150]), 150);
    world.expire_pins(2000);
    world.finish_plan();
    for seed in 100..118 {
        cached(&mut world, tokens(seed, 90), &[30, 60]);
    }
    world.assert_clean();
}

/// SGLang #38000, #36935: the states of long prompts were evicted from their beginnings on, so a fork in the middle
/// could not resume.
#[test]
fn a_fork_of_a_long_prompt_finds_a_state_after_others_as_long() {
    let mut world = world(1, 4, 48, 128);
    let chains = [200, 201, 202].map(|seed| tokens(seed, 2048));
    for chain in &chains {
        cached(&mut world, chain.clone(), &[]);
    }
    let fork = [&chains[0][..512], &tokens(203, 40)].concat();
    let hit = cached(&mut world, fork, &[]);
    assert!(hit >= 384, "{hit} of the 512 tokens in common");
    for chain in &chains {
        assert_eq!(cached(&mut world, chain.clone(), &[]), 2047);
    }
    world.assert_clean();
}

/// The beginning of the next prompt of a conversation: the previous prompt and its reply.
fn with_reply(world: &World, mut prompt: Vec<u32>) -> Vec<u32> {
    let last = world.views.last().expect("a request was submitted");
    prompt.extend(&last.delivered);
    prompt
}

/// Runs twenty tool calls after a query; each must resume from the previous reply.
fn tool_loop(world: &mut World, query: &[u32], system_tokens: u32) {
    let page = world.setup.page_size as usize;
    let query_tokens = query.len() as u32;
    let mut prompt = query.to_vec();
    cached(world, prompt.clone(), &[system_tokens, query_tokens]);
    for call in 0..20 {
        prompt = with_reply(world, prompt);
        let known = prompt.len() - 1;
        prompt.extend(tokens(400 + call, 30));
        let anchors = [system_tokens, query_tokens, prompt.len() as u32 - 2];
        let hit = cached(world, prompt.clone(), &anchors);
        assert!(hit + page > known, "call {call}: {hit} of {known} tokens");
    }
}

/// llama.cpp #25019, #25420: each message of a tool loop left a state, and these evicted earlier states, of which the
/// user's next turn needs one.
#[test]
fn a_tool_loop_keeps_the_ends_of_its_instructions_and_of_its_query() {
    for page_size in [1, 4, 16] {
        let mut world = world(page_size, 4, 5, 1 << 20);
        let query = tokens(210, 260);
        tool_loop(&mut world, &query, 240);
        let page = page_size as usize;
        let stripped = [&query[..], &tokens(211, 40)].concat();
        let hit = cached(&mut world, stripped, &[240, 290]);
        assert_eq!(hit, 260 / page * page, "pages of {page}");
        let other = [&query[..240], &tokens(212, 40)].concat();
        assert_eq!(cached(&mut world, other, &[240, 270]), 240);
        world.assert_clean();
    }
}

/// A prefill whose last whole page ended with a chunk left no state there: the reply after it was too short to fill a
/// page, and the next prompt resumed from the last boundary of a turn.
#[test]
fn a_page_that_ends_with_a_chunk_and_is_the_last_of_a_prompt_has_a_state() {
    for prompt_tokens in [65, 70, 128, 140] {
        let mut world = world(16, 4, 5, 1 << 20);
        let prompt = tokens(215, prompt_tokens);
        let anchors = [30, prompt_tokens as u32 - 12];
        cached(&mut world, prompt.clone(), &anchors);
        let mut next = with_reply(&world, prompt);
        let known = next.len() - 1;
        next.extend(tokens(216, 30));
        let anchors = [30, prompt_tokens as u32 - 12, next.len() as u32 - 2];
        let hit = cached(&mut world, next, &anchors);
        assert_eq!(hit, known / 16 * 16, "a prompt of {prompt_tokens} tokens");
        world.assert_clean();
    }
}

/// SGLang #31230: the states along one long conversation evicted those of all other conversations.
#[test]
fn a_tool_loop_leaves_the_states_of_another_conversation() {
    for page_size in [1, 16] {
        let mut world = world(page_size, 2, 8, 1 << 20);
        let other = tokens(220, 400);
        cached(&mut world, other.clone(), &[320, 400]);
        tool_loop(&mut world, &tokens(221, 160), 96);
        let next = [&other[..], &tokens(222, 40)].concat();
        assert_eq!(cached(&mut world, next, &[320, 430]), 400);
        world.assert_clean();
    }
}

/// SGLang #33773: no slot was left for the state of a chunk, and the engine crashed.
#[test]
fn no_request_stops_if_no_slot_is_free_for_copies() {
    for page_size in [1, 16] {
        let mut world = world(page_size, 4, 5, 64);
        let shared = tokens(230, 200);
        let asks = (0..12).map(|seed| {
            let prompt = [&shared[..], &tokens(231 + seed, 150)].concat();
            ask(prompt, &[200, 340])
        });
        world.submit_all(&mut asks.into_iter());
        world.drain();
        assert!(world.views.iter().all(|view| view.delivered.len() == 3));
        assert_eq!(world.stats().retractions, 0);
        world.assert_clean();
    }
}

/// SGLang #31181, #37198: prompts that diverge from one prompt at nearby but different places found no state.
#[test]
fn prompts_that_diverge_near_each_other_all_find_a_state() {
    let mut world = world(16, 2, 40, 64);
    let long = tokens(240, 600);
    cached(&mut world, long.clone(), &[590]);
    for (kept, seed) in [(512, 241), (499, 242), (505, 243)] {
        let prompt = [&long[..kept], &tokens(seed, 60)].concat();
        let hit = cached(&mut world, prompt, &[kept as u32 + 50]);
        assert!(hit + 64 > kept, "{hit} of {kept} tokens in common");
    }
    world.assert_clean();
}

/// vLLM #51250, #40696: of a prompt, only whole blocks of hundreds of tokens were found again.
#[test]
fn a_prompt_that_another_continues_is_found_whole() {
    for page_size in [1, 16] {
        let page = page_size as usize;
        let mut world = world(page_size, 2, 40, 1 << 20);
        for len in [40, 100, 480, 561] {
            let first = tokens(250 + len as u32, len);
            cached(&mut world, first.clone(), &[]);
            let longer = [&first[..], &tokens(251, 20)].concat();
            let hit = cached(&mut world, longer, &[]);
            assert!(hit + page >= len, "{hit} of {len} tokens");
        }
        world.assert_clean();
    }
}

/// vLLM #46453: keys and values of a prefix were gone, but the match still offered a state after them.
#[test]
fn a_state_goes_with_the_keys_and_values_before_it() {
    for page_size in [1, 4] {
        let mut world = World::new(Setup {
            page_size,
            n_pages: 640 / page_size,
            n_rows: 2,
            chunk_tokens: Some(64),
            states: Some(StateLimits {
                total_slots: 40,
                grid_tokens: 64,
            }),
            ..Setup::default()
        });
        let long = tokens(260, 320);
        cached(&mut world, long.clone(), &[300]);
        let mut lengths = Vec::new();
        for seed in 261..275 {
            cached(&mut world, tokens(seed, 120), &[60]);
            let hit = world.states.cache.peek(&Default::default(), &long[..319]);
            assert_eq!(world.states.cache.check_integrity(), Ok(()));
            lengths.push(hit);
        }
        // The first match has 300 tokens or more, the last one none, because the K/V was evicted.
        assert_eq!((lengths[0], lengths[13]), (lengths[0].max(300), 0));
        let again = [&long[..310], &tokens(280, 20)].concat();
        assert_eq!(cached(&mut world, again, &[300]), 0);
        world.assert_clean();
    }
}

/// llama.cpp #20225, #19794: no turn of a conversation, however short, resumed from the previous one.
#[test]
fn short_conversations_resume_from_their_last_turn() {
    for page_size in [1, 4] {
        let page = page_size as usize;
        let mut world = world(page_size, 2, 16, 1 << 20);
        let mut prompt = tokens(290, 12);
        cached(&mut world, prompt.clone(), &[8, 11]);
        for turn in 0..5 {
            prompt = with_reply(&world, prompt);
            let known = prompt.len() - 1;
            prompt.extend(tokens(291 + turn, 6));
            let end = prompt.len() as u32 - 1;
            let hit = cached(&mut world, prompt.clone(), &[8, end]);
            assert!(hit + page > known, "turn {turn}: {hit} of {known} tokens");
        }
        world.assert_clean();
    }
}

/// A prompt that is matched, but not admitted, leaves the states above its match unchanged.
#[test]
fn a_prompt_that_is_not_admitted_changes_no_states() {
    let mut world = World::new(Setup {
        n_rows: 2,
        states: Some(StateLimits {
            total_slots: 5,
            grid_tokens: 1 << 20,
        }),
        ..Setup::default()
    });
    let stale = tokens(300, 60);
    cached(&mut world, stale.clone(), &[30]);
    let long = tokens(301, 200);
    cached(&mut world, long.clone(), &[100]);
    let longer = [with_reply(&world, long.clone()), tokens(302, 10)].concat();
    assert_eq!(world.states.cache.cached_states(), 4);
    let asks = [
        // Takes the last free state for its row, and a cached state for the copy at its anchor.
        Ask {
            anchors: vec![150],
            ..Ask::exactly(tokens(303, 200), 300)
        },
        // Its match passes the state after 100 tokens, but its output does not fit together with the first one's.
        Ask {
            anchors: vec![212],
            ..Ask::exactly(longer, 700)
        },
    ];
    let first = world.views.len();
    world.submit_all(&mut asks.into_iter());
    world.finish_plan();
    assert!(world.views[first].holds_memory && !world.views[first + 1].holds_memory);
    let at = |tokens: &[u32]| world.states.cache.peek(&Default::default(), tokens);
    assert_eq!((at(&long[..150]), at(&stale[..40])), (100, 0));
    world.drain();
    world.assert_clean();
}

/// A chat with several requested outputs is no turn of a tool loop: the state at the end of its query has precedence
/// over one at the end of the reply.
#[test]
fn several_outputs_of_a_chat_leave_the_state_of_its_query() {
    let mut world = World::new(Setup {
        page_size: 16,
        n_rows: 3,
        states: Some(StateLimits {
            total_slots: 5,
            grid_tokens: 1 << 20,
        }),
        ..Setup::default()
    });
    let system = tokens(310, 160);
    let prime = [&system[..], &tokens(311, 8)].concat();
    cached(&mut world, prime, &[160]);
    assert_eq!(world.states.cache.cached_states(), 1);
    // This request holds a state, but caches none. The chat's row holds another, so two slots are left for copies.
    world.submit(Ask {
        bypasses_cache: true,
        ..Ask::exactly(tokens(312, 40), 100)
    });
    world.turn();
    let query = [&system[..], &tokens(313, 100)].concat();
    let prompt = [&query[..], &tokens(314, 20)].concat();
    let chat = ask(prompt.clone(), &[160, 260, prompt.len() as u32 + 1]);
    let first = world.views.len();
    world.submit_all(&mut [chat.clone(), chat].into_iter());
    while !world.views[first].holds_memory {
        assert!(world.advance() || world.end_step(Outcome::Done));
    }
    // The second output would take the slot of a copy for its own state.
    world.cancel(first + 1);
    world.drain();
    assert_eq!(world.views[first].cached_tokens, 160);
    let stripped = [&query[..], &tokens(315, 60)].concat();
    assert_eq!(cached(&mut world, stripped, &[160, 310]), 256);
    world.assert_clean();
}
