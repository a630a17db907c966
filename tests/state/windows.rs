//! Tests of models with sliding windows: the window pages that sequences hold, the positions where prompts resume from
//! the cache, and the order of eviction. The fake executor checks all tokens that each query attends to.

use std::collections::BTreeSet;
use std::sync::Arc;

use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::prefix_cache::{Checkpoint, LockedPrefix};
use souffleur_state::cache::prefix_history::Cause;
use souffleur_state::cache::radix_tree::RadixTree;
use souffleur_state::pool::kv_layout::{KvDtype, KvLayout, PagedKv, Values};
use souffleur_state::pool::page_pool::PagePool;
use souffleur_state::pool::pages::{PageSize, PoolLedger, RowWindows, Window};
use souffleur_state::pool::window_pool::{WindowLimits, WindowPool};

use crate::scheduler_world::{Ask, Setup, VOCAB, World};

pub fn setup(page_size: u32, window: usize, window_tokens: usize) -> Setup {
    Setup {
        page_size,
        n_pages: 16_384 / page_size,
        n_rows: 4,
        chunk_tokens: Some(64),
        windows: Some(WindowLimits {
            tokens: window,
            total_pages: window_tokens / page_size as usize,
        }),
        ..Setup::default()
    }
}

/// Tokens that begin differently for every seed.
pub fn tokens(seed: u32, n: usize) -> Vec<u32> {
    let token = |at: u32| (seed * 7919 + at * 31 + at * at / 7 + at / 13 * seed) % VOCAB;
    let head = [seed % VOCAB, seed / VOCAB % VOCAB];
    head.into_iter()
        .chain((2..n as u32).map(token))
        .take(n)
        .collect()
}

/// Runs one request alone; returns the number of cached prompt tokens, and the output.
pub fn run(world: &mut World, prompt: &[u32], n_output: usize) -> (usize, Vec<u32>) {
    let ask = Ask::exactly(prompt.to_vec(), n_output);
    let number = world.submit(ask).expect("it fits");
    world.drain();
    let view = &world.views[number];
    (view.cached_tokens as usize, view.delivered.clone())
}

#[test]
fn a_prompt_resumes_at_every_page_around_the_window() {
    for page_size in [1, 4, 16] {
        let page = page_size as usize;
        for window in [1, 2, 5, 16, 24, 40, 500] {
            let mut world = World::new(setup(page_size, window, 16_384));
            let long = tokens(1, 150);
            assert_eq!(run(&mut world, &long, 3).0, 0);
            let near = window - 1..window + 2 * page;
            let lengths: BTreeSet<usize> = near.chain([149 - page, 148, 149]).collect();
            let in_prompt = lengths.into_iter().filter(|len| (1..150).contains(len));
            for (seed, len) in (10..).zip(in_prompt) {
                let mut prompt = long[..len].to_vec();
                prompt.push((long[len] + 1) % VOCAB);
                prompt.extend(tokens(seed, 9));
                let (cached, _) = run(&mut world, &prompt, 2);
                assert_eq!(
                    cached,
                    len / page * page,
                    "window {window}, pages of {page}"
                );
            }
            world.assert_clean();
        }
    }
}

#[test]
fn a_sequence_keeps_only_the_window_pages_that_it_attends_to() {
    for has_radix_cache in [false, true] {
        for (page_size, window) in [(1, 1), (1, 24), (4, 24), (16, 24), (16, 40)] {
            let mut world = World::new(Setup {
                has_radix_cache,
                ..setup(page_size, window, 16_384)
            });
            let page = page_size as usize;
            world.submit(Ask::exactly(tokens(2, 300), 200));
            // The visible tokens, and a partly filled page at either end.
            let visible = (window + 2 * page - 2).div_ceil(page);
            let (mut max_held, mut last) = (0, 0);
            while world.turn() {
                let stats = world.stats();
                if stats.running_requests == 1 && stats.decode_tokens > 300 + 2 * window {
                    max_held = max_held.max(stats.private_windows);
                    last = stats.protected_windows;
                }
            }
            // A sequence to be cached also keeps a whole page before its end, and the tokens that a stop string may
            // remove.
            let spare = if has_radix_cache {
                (page + 8).div_ceil(page)
            } else {
                0
            };
            assert!(
                max_held <= visible + spare,
                "{max_held} of {window} in pages of {page}"
            );
            assert_eq!(last, 0, "no request keeps the prompt's end");
            world.assert_clean();
        }
    }
}

/// Gemma 3 4B in bf16: 34 layers; every sixth attends to all tokens, the others to 1,024.
#[test]
fn a_sequence_of_32768_tokens_takes_the_memory_of_its_windows() {
    let windows: Vec<Option<usize>> = (1..=34)
        .map(|layer| (layer % 6 != 0).then_some(1024))
        .collect();
    let layer = PagedKv {
        heads: 4,
        key_dim: 256,
        values: Values::Own { dim: 256 },
        labels: 0,
        dtype: KvDtype::BF16,
    };
    let layout = KvLayout::uniform(34, layer).windowed(&windows);
    let layout = layout.expect("all layers have one size");
    for n_output in [40, 1200] {
        let mut world = World::new(Setup {
            n_pages: 4096,
            chunk_tokens: Some(2048),
            max_prefill_tokens: 4096,
            full_check_every: 1000,
            ..setup(16, 1024, 65_536)
        });
        world.submit(Ask::exactly(tokens(3, 32_768 - n_output), n_output));
        let mut held = 0;
        while world.turn() {
            let stats = world.stats();
            let tokens = stats.private_tokens + stats.protected_tokens;
            if stats.running_requests == 1 && tokens >= 32_768 - 64 {
                let windows = 16 * (stats.private_windows + stats.protected_windows);
                held = tokens as u64 * layout.bytes_per_token()
                    + windows as u64 * layout.window_bytes_per_token();
            }
        }
        // Per token and layer 4 KiB: all tokens in 5 layers, and 1,024 tokens in the other 29.
        let figure = 32_768 * 20_480 + (116 << 20);
        let ratio = held as f64 / f64::from(figure);
        assert!((0.95..1.1).contains(&ratio), "{held} bytes, {ratio}");
        world.assert_clean();
    }
}

#[test]
fn chunks_longer_and_shorter_than_the_window_give_the_same_outputs() {
    let outputs = |setup: Setup| {
        let mut world = World::new(setup);
        let asks = (20..26).map(|seed| Ask::exactly(tokens(seed, 100 + seed as usize), 40));
        world.submit_all(&mut asks.into_iter());
        world.assert_clean();
        let views = world.views.iter();
        views.map(|view| view.delivered.clone()).collect::<Vec<_>>()
    };
    let expected = outputs(Setup::default());
    for page_size in [1, 4, 16] {
        for chunk in [16, 48, 112] {
            let setup = Setup {
                chunk_tokens: Some(chunk),
                // Pages for a chunk, a cached prefix and a decode: the minimum of a memory plan.
                ..setup(page_size, 30, chunk + 2 * 30 + 8 * page_size as usize)
            };
            assert_eq!(outputs(setup), expected, "chunks of {chunk}");
        }
    }
}

#[test]
fn a_report_names_the_window_that_is_missing() {
    let mut world = World::new(setup(1, 24, 300));
    let prompt = tokens(4, 120);
    run(&mut world, &prompt, 4);
    for seed in 30..40 {
        run(&mut world, &tokens(seed, 120), 4);
    }
    let number = world.submit(Ask::exactly(prompt, 4)).expect("it fits");
    world.drain();
    let report = world.report(number);
    assert_eq!(report.cause, Cause::NoWindow);
    assert!(report.kv_tokens > report.cached_tokens, "{report:?}");
    world.assert_clean();
}

/// A prefix cache with its pools, without an engine.
pub struct Tree {
    pub tree: RadixTree,
    pages: PagePool,
    pub windows: WindowPool,
    page_size: PageSize,
    pub ledger: Arc<PoolLedger>,
}

impl Tree {
    pub fn new(page_size: u32, window: usize) -> Self {
        let page_size = PageSize::new(page_size).expect("a page size");
        let ledger = Arc::new(PoolLedger::new(page_size));
        let lru = EvictionPolicy::from_name("lru").expect("a policy");
        let window = Window {
            tokens: window,
            page_size,
        };
        Self {
            tree: RadixTree::new(page_size, lru, ledger.clone()).with_windows(window),
            pages: PagePool::new(4096, page_size, ledger.clone()),
            windows: WindowPool::new(4096, page_size, ledger.clone()),
            page_size,
            ledger,
        }
    }

    fn check(&self) {
        assert_eq!(self.tree.check_integrity(), Ok(()));
        let cached = self.tree.evictable_windows() + self.tree.protected_windows();
        assert_eq!(
            self.windows.free_pages() + cached,
            self.windows.total_pages()
        );
    }

    pub fn lock(&mut self, tokens: &[u32]) -> LockedPrefix {
        let locked = self.tree.lock_prefix(&Namespace::default(), tokens);
        self.check();
        locked
    }

    pub fn unlock(&mut self, locked: LockedPrefix) {
        self.tree.unlock(locked.lock);
        self.check();
    }

    /// Runs a sequence that publishes all tokens, with window pages from `first` on; returns the matched tokens.
    pub fn publish_from(&mut self, tokens: &[u32], first: usize) -> usize {
        let locked = self.lock(tokens);
        let matched = locked.tokens;
        let protected_pages = self.page_size.full_pages(matched);
        let n = self.page_size.full_pages(tokens.len()) - protected_pages;
        let mut own = RowWindows::starting_at(protected_pages);
        own.pages = self.windows.alloc(n).expect("the pool is large");
        self.windows.free(own.take_below(first));
        let done = self.tree.checkpoint(Checkpoint {
            namespace: &Namespace::default(),
            tokens,
            owner: None,
            prompt_tokens: tokens.len(),
            protected_pages,
            private: self.pages.alloc(n).expect("the pool is large"),
            lock: locked.lock,
            inserted_tokens: 0,
            priority: 0,
            states: Vec::new(),
            windows: Some(Box::new(own)),
            boundaries: &[tokens.len()],
            stored_tokens: 0,
        });
        let windows = *done.windows.expect("the tree has windows");
        self.windows.free(windows.own.pages);
        self.windows.free(windows.duplicates);
        self.pages.free(done.private);
        self.pages.free(done.duplicates);
        self.tree.unlock(done.lock);
        self.check();
        matched
    }

    pub fn publish(&mut self, tokens: &[u32]) -> usize {
        self.publish_from(tokens, 0)
    }

    pub fn peek(&self, tokens: &[u32]) -> usize {
        self.tree.peek(&Namespace::default(), tokens)
    }

    pub fn evict(&mut self, n_pages: usize) -> usize {
        self.tree.evict_windows(n_pages);
        let freed = self.tree.take_freed_windows();
        let n = freed.len();
        self.windows.free(freed);
        self.check();
        n
    }

    pub fn evict_down_to(&mut self, n_pages: usize) {
        while self.tree.evictable_windows() > n_pages {
            assert!(self.evict(1) > 0);
        }
    }

    pub fn close(mut self) {
        self.pages.free(self.tree.clear());
        let freed = self.tree.take_freed_windows();
        self.windows.free(freed);
        assert_eq!(self.windows.free_pages(), self.windows.total_pages());
        assert_eq!(self.pages.free_pages(), self.pages.total_pages());
        assert_eq!((self.ledger.lost_pages(), self.ledger.lost_locks()), (0, 0));
    }
}

#[test]
fn windows_that_end_no_prompt_are_evicted_first_then_the_oldest_ends() {
    for page_size in [1, 4] {
        let page = page_size as usize;
        let mut world = Tree::new(page_size, 16);
        let (old, young) = (tokens(5, 120), tokens(6, 120));
        world.publish(&old);
        world.publish(&young);
        // The visible tokens before an end, and a page more.
        let tail = 15_usize.div_ceil(page) + 1;
        world.evict_down_to(2 * tail);
        assert_eq!((world.peek(&old), world.peek(&young)), (120, 120));
        assert_eq!(world.peek(&old[..80]), 0, "no request ended there");
        world.evict_down_to(tail);
        assert_eq!((world.peek(&old), world.peek(&young)), (0, 120));
        world.evict_down_to(0);
        assert_eq!(world.peek(&young), 0);
        world.close();
    }
}

#[test]
fn boundaries_are_evicted_before_ends_of_paths() {
    for page_size in [1, 4] {
        let tail = 15_usize.div_ceil(page_size as usize) + 1;
        let mut world = Tree::new(page_size, 16);
        let (old, young) = (tokens(5, 120), tokens(6, 160));
        world.publish(&old);
        world.publish(&young[..80]);
        assert_eq!(world.publish(&young), 80);
        world.evict_down_to(3 * tail);
        let ends = |world: &Tree| [&old[..], &young[..80], &young].map(|key| world.peek(key));
        assert_eq!(ends(&world), [120, 80, 160]);
        world.evict_down_to(2 * tail);
        assert_eq!(
            ends(&world),
            [120, 0, 160],
            "the boundary is younger than the old end"
        );
        world.evict_down_to(tail);
        assert_eq!(ends(&world), [0, 0, 160]);
        world.close();
    }
}

#[test]
fn a_lock_keeps_the_end_of_its_prefix_and_nothing_before() {
    for page_size in [1, 4, 16] {
        let page = page_size as usize;
        let mut world = Tree::new(page_size, 24);
        let prompt = tokens(7, 160);
        world.publish(&prompt);
        let locked = world.lock(&prompt[..130]);
        let end = 130 / page * page;
        assert_eq!(locked.tokens, end);
        let start = (end + 1 - 24) / page * page;
        assert_eq!(locked.windows.from, start / page);
        assert_eq!(locked.windows.pages.len(), (end - start) / page);
        assert_eq!(world.tree.protected_windows(), (end - start) / page + 1);
        let visible: Vec<_> = locked.windows.pages.iter().collect();
        world.evict_down_to(0);
        assert_eq!(world.peek(&prompt[..130]), end);
        let again = world.lock(&prompt[..130]);
        assert_eq!(again.windows.pages.iter().collect::<Vec<_>>(), visible);
        world.unlock(locked);
        world.evict_down_to(0);
        assert_eq!(world.peek(&prompt[..130]), end, "the other lock keeps it");
        world.unlock(again);
        world.evict_down_to(0);
        assert_eq!(world.peek(&prompt), 0);
        world.close();
    }
}

#[test]
fn a_match_ends_at_the_longest_prefix_whose_last_window_is_cached() {
    for page_size in [1, 4, 16] {
        let page = page_size as usize;
        let mut world = Tree::new(page_size, 20);
        let prompt = tokens(8, 192);
        world.publish(&prompt);
        for end in [48, 112] {
            let locked = world.lock(&prompt[..end]);
            world.unlock(locked);
        }
        let tail = 19_usize.div_ceil(page) + 1;
        world.evict_down_to(3 * tail);
        // `is_kept`: an end keeps this token's page. `visible`: tokens that a sequence resumed at `end` attends to.
        let is_kept = |at: usize| {
            [48, 112, 192]
                .iter()
                .any(|end| (end - tail * page..*end).contains(&at))
        };
        let visible = |end: usize| (end + 1).saturating_sub(20) / page * page..end;
        let is_whole = |end: &usize| visible(*end).all(is_kept);
        let mut lengths = BTreeSet::new();
        for len in (1..=12).rev().map(|n| 16 * n) {
            let expected = (0..=len).rev().step_by(page).find(is_whole);
            let expected = expected.expect("an empty prefix needs no window");
            lengths.insert(expected);
            assert_eq!(
                world.peek(&prompt[..len]),
                expected,
                "{len} in pages of {page}"
            );
            let locked = world.lock(&prompt[..len]);
            assert_eq!((locked.tokens, locked.kv_tokens), (expected, len));
            world.unlock(locked);
        }
        assert!(lengths.len() >= 4, "{lengths:?}");
        world.close();
    }
}
