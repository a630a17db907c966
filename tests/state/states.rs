//! Tests of models with recurrent states (hybrid models): where prompts resume from the cache, how many tokens they
//! compute, and that no state is lost, read before it is written or given to another prompt. The fake executor compares
//! every state with the tokens that it must have seen. A prompt saves states at its anchors, which are positions.

use souffleur_state::cache::prefix_history::{Cause, MissingState};
use souffleur_state::pool::state_pool::StateLimits;

use crate::scheduler_world::{Ask, Setup, VOCAB, World};

/// The distance between two states of the grid, in tokens.
const GRID: usize = 256;

fn setup(page_size: u32, n_rows: u32, total_slots: usize) -> Setup {
    Setup {
        page_size,
        n_pages: 16_384 / page_size,
        n_rows,
        chunk_tokens: Some(512),
        states: Some(StateLimits {
            total_slots,
            grid_tokens: GRID,
        }),
        ..Setup::default()
    }
}

fn large(page_size: u32) -> Setup {
    setup(page_size, 8, 64)
}

/// Tokens that begin differently for every seed.
fn tokens(seed: u32, n: usize) -> Vec<u32> {
    let token = |at: u32| (seed * 7919 + at * 31 + at * at / 7 + at / 13 * seed) % VOCAB;
    let head = [seed % VOCAB, seed / VOCAB % VOCAB];
    head.into_iter()
        .chain((2..n as u32).map(token))
        .take(n)
        .collect()
}

/// Runs one request alone; returns the number of computed prompt tokens, and the output.
fn run(world: &mut World, ask: Ask) -> (usize, Vec<u32>) {
    let prompt = ask.prompt.len();
    let number = world.submit(ask).expect("it fits");
    world.drain();
    let view = &world.views[number];
    (prompt - view.cached_tokens as usize, view.delivered.clone())
}

fn ask(prompt: &[u32], anchors: &[usize], n_output: usize) -> Ask {
    Ask {
        anchors: anchors.iter().map(|anchor| *anchor as u32).collect(),
        ..Ask::exactly(prompt.to_vec(), n_output)
    }
}

/// A conversation as a template renders it: whole turns, the last one followed by the opening of the reply.
#[derive(Clone)]
struct Conversation {
    system_tokens: usize,
    /// Tokens up to the end of the user's last message.
    query_tokens: usize,
    turns: Vec<u32>,
}

/// The tokens that open a reply. The template later drops them with the reasoning.
const OPEN: [u32; 3] = [5, 6, 7];

impl Conversation {
    fn new(system: &[u32]) -> Self {
        Self {
            system_tokens: system.len(),
            query_tokens: 0,
            turns: system.to_vec(),
        }
    }

    fn add_user_turn(&mut self, turn: &[u32]) {
        self.turns.extend_from_slice(turn);
        self.query_tokens = self.turns.len();
    }

    fn add_turn(&mut self, turn: &[u32]) {
        self.turns.extend_from_slice(turn);
    }

    fn ask(&self, n_output: usize) -> Ask {
        let prompt = [&self.turns[..], &OPEN].concat();
        let mut anchors = vec![self.system_tokens, self.query_tokens, self.turns.len()];
        anchors.dedup();
        ask(&prompt, &anchors, n_output)
    }

    /// Runs one call and appends its reply unchanged; returns the number of computed prompt tokens.
    fn turn(&mut self, world: &mut World, n_output: usize) -> usize {
        let (computed, reply) = run(world, self.ask(n_output));
        self.add_turn(&OPEN);
        self.add_turn(&reply);
        computed
    }
}

/// Runs conversations with one system prompt: a loop of eight tool calls that keeps the reasoning, a user turn that
/// drops it, a fork, an edit, the same prompt twice, other conversations, and four samples of one prompt. Returns each
/// turn's name, its computed tokens, and the most that it may compute.
fn agentic_trace(world: &mut World) -> Vec<(&'static str, usize, usize)> {
    let page = world.setup.page_size as usize;
    let mut results = Vec::new();
    let system = tokens(1, 1500);
    let mut first = Conversation::new(&system);
    first.add_user_turn(&tokens(2, 60));
    let query_end = first.turns.len();
    let cold = first.turn(world, 40);
    results.push(("first", cold, 1500 + 60 + OPEN.len()));
    for call in 0..8 {
        let result = tokens(10 + call, 70);
        first.add_turn(&result);
        let new = result.len() + OPEN.len();
        let computed = first.turn(world, 30);
        // The K/V of the reply's last token may be missing.
        results.push(("tool call", computed, new + 1 + page));
    }
    // The reasoning of the whole loop is dropped: the rest was never computed at these positions.
    let answer = tokens(30, 200);
    let mut second = Conversation {
        turns: first.turns[..query_end].to_vec(),
        ..first.clone()
    };
    second.add_turn(&answer);
    second.add_user_turn(&tokens(31, 50));
    let computed = second.clone().turn(world, 40);
    results.push(("stripped", computed, 250 + OPEN.len() + page));
    let fork = {
        let mut fork = second.clone();
        fork.turns.truncate(query_end + 120);
        fork.add_user_turn(&tokens(32, 90));
        fork
    };
    let computed = fork.clone().turn(world, 20);
    results.push(("fork", computed, 120 + 90 + OPEN.len() + GRID + 64));
    let mut edit = second.clone();
    edit.turns.truncate(query_end + 200);
    edit.add_user_turn(&tokens(33, 55));
    let computed = edit.clone().turn(world, 20);
    results.push(("edit", computed, 200 + 55 + OPEN.len() + page));
    let computed = edit.clone().turn(world, 20);
    results.push(("same again", computed, OPEN.len() + page));
    for seed in [40, 41] {
        let mut other = Conversation::new(&system);
        other.add_user_turn(&tokens(seed, 80));
        let computed = other.turn(world, 30);
        results.push(("other conversation", computed, 80 + OPEN.len() + page));
    }
    let mut samples = Conversation::new(&system);
    samples.add_user_turn(&tokens(50, 300));
    let mut sample = samples.ask(25);
    sample.anchors.push(sample.prompt.len() as u32 + 1);
    let before = world.views.len();
    let four = std::iter::repeat_n(sample, 4);
    world.submit_all(&mut four.into_iter());
    world.drain();
    let computed = world.views[before..].iter();
    let computed = computed.map(|view| view.ask.prompt.len() - view.cached_tokens as usize);
    let own = 300 + OPEN.len() + page;
    results.push(("four samples", computed.sum(), own + 3 * page));
    results
}

#[test]
fn every_turn_of_an_agent_computes_only_new_tokens() {
    for page_size in [1, 4, 16] {
        // As many slots as the memory plan grants for eight rows, and hardly more slots than the rows need.
        for (rows, slots) in [(8, 64), (4, 8), (4, 5), (2, 5)] {
            let mut world = World::new(setup(page_size, rows, slots));
            for (turn, computed, limit) in agentic_trace(&mut world) {
                assert!(
                    computed <= limit,
                    "{turn} with pages of {page_size}, {rows} rows and {slots} states: computed {computed}, at most {limit}"
                );
            }
            world.assert_clean();
        }
    }
}

#[test]
fn an_agent_gets_the_same_tokens_with_hardly_any_states() {
    let outputs_of = |setup: Setup| {
        let mut world = World::new(setup);
        agentic_trace(&mut world);
        let output: Vec<Vec<u32>> = world
            .views
            .iter()
            .map(|view| view.delivered.clone())
            .collect();
        world.assert_clean();
        output
    };
    for page_size in [1, 16] {
        let expected = outputs_of(Setup {
            states: None,
            ..large(page_size)
        });
        for (rows, slots, n_pages) in [
            (4, 5, 16_384),
            (4, 8, 16_384),
            (1, 2, 16_384),
            (4, 12, 4096),
        ] {
            let setup = Setup {
                n_pages: n_pages / page_size,
                ..setup(page_size, rows, slots)
            };
            assert_eq!(outputs_of(setup), expected, "{rows} rows, {slots} slots");
        }
    }
}

#[test]
fn a_prompt_resumes_at_a_state_and_reports_where_none_is() {
    let mut world = World::new(large(1));
    let prompt = tokens(3, 200);
    assert_eq!(run(&mut world, ask(&prompt, &[120], 4)).0, 200);
    // Beyond the anchor there is K/V but no state.
    let mut other = prompt.clone();
    other.truncate(180);
    other.extend(tokens(4, 30));
    let number = world.submit(ask(&other, &[205], 4)).expect("it fits");
    world.drain();
    let report = world.report(number);
    assert_eq!((report.cause, report.cached_tokens), (Cause::NoState, 120));
    assert_eq!(report.kv_tokens, 180);
    assert_eq!(report.missing_state, Some(MissingState::NeverSaved));
    // A second prompt that diverges at 180 finds no state there.
    let mut third = prompt[..180].to_vec();
    third.extend(tokens(5, 30));
    let (computed, _) = run(&mut world, ask(&third, &[205], 4));
    assert_eq!(computed, 90, "60 tokens are too few to be worth a state");
    let mut far = tokens(6, 400);
    run(&mut world, ask(&far, &[10], 4));
    far.truncate(300);
    for (seed, expected) in [(7, 300 - 256 + 30), (8, 300 - 256 + 30)] {
        let prompt = [&far[..], &tokens(seed, 30)].concat();
        assert_eq!(run(&mut world, ask(&prompt, &[10], 4)).0, expected);
    }
    world.assert_clean();
}

#[test]
fn the_second_prompt_that_diverges_saves_a_state_for_the_third() {
    for page_size in [1, 4, 16] {
        let mut world = World::new(large(page_size));
        let shared = tokens(9, 200);
        let mut computed = Vec::new();
        for seed in 60..63 {
            let prompt = [&shared[..], &tokens(seed, 40)].concat();
            computed.push(run(&mut world, ask(&prompt, &[239], 3)).0);
        }
        let page = page_size as usize;
        assert_eq!(computed[..2], [240, 240], "pages of {page_size}");
        assert_eq!(computed[2], 240 - 200 / page * page);
        world.assert_clean();
    }
}

#[test]
fn a_repeated_prompt_and_a_longer_one_resume_at_the_end_of_the_first() {
    let mut world = World::new(large(1));
    let prompt = tokens(11, 100);
    let (computed, output) = run(&mut world, ask(&prompt, &[], 10));
    assert_eq!((computed, output.len()), (100, 10));
    // A prompt without anchors leaves a state one token before its end.
    assert_eq!(run(&mut world, ask(&prompt, &[], 10)).0, 1);
    // The reply ended by its length, so its last token was not an input.
    let longer = [&prompt[..], &output, &tokens(12, 5)].concat();
    assert_eq!(run(&mut world, ask(&longer, &[], 3)).0, 1 + 5);
    world.assert_clean();
}

#[test]
fn a_report_says_why_there_is_no_state() {
    let mut world = World::new(setup(1, 1, 3));
    let cause_of = |world: &mut World, prompt: &[u32], anchors: &[usize]| {
        let number = world.submit(ask(prompt, anchors, 4)).expect("it fits");
        world.drain();
        let report = world.report(number);
        (report.cause, report.missing_state)
    };
    let prompt = tokens(13, 200);
    assert_eq!(cause_of(&mut world, &prompt, &[150]).1, None);
    for seed in 14..20 {
        run(&mut world, ask(&tokens(seed, 90), &[40, 80], 4));
    }
    let again = [&prompt[..180], &tokens(20, 9)].concat();
    let thinned = (Cause::NoState, Some(MissingState::Thinned));
    assert_eq!(cause_of(&mut world, &again, &[185]), thinned);
    // The only state is at the very end, where a token must be computed.
    let whole = tokens(21, 120);
    run(&mut world, ask(&whole, &[120], 0));
    let past = (Cause::NoState, Some(MissingState::PastLimit));
    assert_eq!(cause_of(&mut world, &whole, &[119]), past);
    world.assert_clean();
}

#[test]
fn a_request_that_waits_for_another_prompt_resumes_where_they_diverge() {
    for page_size in [1, 4, 16] {
        let mut world = World::new(large(page_size));
        let shared = tokens(22, 200);
        let asks = [23, 24].map(|seed| {
            let prompt = [&shared[..], &tokens(seed, 50)].concat();
            ask(&prompt, &[240], 3)
        });
        world.submit_all(&mut asks.into_iter());
        world.assert_clean();
        let page = page_size as usize;
        assert_eq!(world.views[0].cached_tokens, 0);
        let cached = world.views[1].cached_tokens as usize;
        assert_eq!(cached, 200 / page * page, "pages of {page}");
    }
}

#[test]
fn a_state_is_published_for_exactly_the_tokens_that_were_computed() {
    for page_size in [1, 2, 4, 16] {
        let mut world = World::new(large(page_size));
        for seed in 0..12 {
            let prompt = tokens(1000 + seed, 64 + seed as usize);
            // Most outputs end with EOS, and not with the length.
            let output = Ask {
                ignore_eos: false,
                ..ask(&prompt, &[], 400)
            };
            let (_, output) = run(&mut world, output);
            // The next turn gets a state of exactly the tokens that it claims: the executor checks.
            let whole = [prompt, output].concat();
            let turn = [&whole[..], &[9, 8, 7]].concat();
            let (computed, _) = run(&mut world, ask(&turn, &[], 3));
            let new = turn.len() - whole.len() + page_size as usize;
            assert!(computed <= new, "{computed} in pages of {page_size}");
        }
        assert!(world.skipped_steps > 4);
        world.assert_clean();
    }
}
