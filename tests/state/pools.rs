//! Tests of the free lists of pages and rows, and of the arithmetic between tokens, pages and slots.

use std::sync::Arc;

use souffleur_base::ids::{PageId, RowId};
use souffleur_state::pool::page_pool::PagePool;
use souffleur_state::pool::pages::{PageSize, Pages, PoolLedger};
use souffleur_state::pool::row_pool::RowPool;

use crate::panics;

fn page_size(tokens: u32) -> PageSize {
    PageSize::new(tokens).expect("tests use positive page sizes")
}

fn pool(size: u32, n_pages: u32) -> PagePool {
    let page_size = page_size(size);
    let ledger = PoolLedger::new(page_size);
    PagePool::new(n_pages, page_size, Arc::new(ledger))
}

fn free_ids(pool: &PagePool) -> Vec<u32> {
    pool.iter().map(PageId::get).collect()
}

#[test]
fn two_extends_and_two_decodes_get_the_slots_of_the_published_example() {
    let size = page_size(4);
    let mut pool = pool(4, 8);
    let mut one = pool
        .alloc(size.pages_to_extend(0, 6))
        .expect("8 pages are free");
    let mut two = pool
        .alloc(size.pages_to_extend(0, 4))
        .expect("6 pages are free");
    let slots = |pages: &Pages, positions| size.slots(pages.ids(), positions).collect::<Vec<_>>();
    assert_eq!(slots(&one, 0..6), [4, 5, 6, 7, 8, 9]);
    assert_eq!(slots(&two, 0..4), [12, 13, 14, 15]);

    one.append(
        pool.alloc(size.pages_to_decode(6))
            .expect("5 pages are free"),
    );
    two.append(
        pool.alloc(size.pages_to_decode(4))
            .expect("5 pages are free"),
    );
    assert_eq!((slots(&one, 6..7), slots(&two, 4..5)), (vec![10], vec![16]));

    pool.free(one);
    assert_eq!(free_ids(&pool), [1, 2, 5, 6, 7, 8]);
    pool.free(two);
    assert_eq!(free_ids(&pool), [3, 4, 1, 2, 5, 6, 7, 8]);
}

#[test]
fn single_token_pages_come_back_to_the_end() {
    let mut pool = pool(1, 4);
    let pages = pool.alloc(2).expect("4 pages are free");
    pool.free(pages);
    assert_eq!(free_ids(&pool), [3, 4, 1, 2]);
}

#[test]
fn grant_is_all_or_nothing() {
    let mut pool = pool(16, 3);
    assert!(pool.alloc(4).is_none());
    assert_eq!(
        (pool.free_pages(), pool.free_tokens(), pool.total_pages()),
        (3, 48, 3)
    );
    let pages = pool.alloc(3).expect("3 pages are free");
    assert!(pool.alloc(1).is_none());
    assert!(pool.alloc(0).is_some_and(|none| none.is_empty()));
    pool.free(pages);
    assert_eq!(free_ids(&pool), [1, 2, 3]);
}

#[test]
fn page_that_is_not_granted_is_reported_and_not_listed_twice() {
    let (mut pool, mut other) = (pool(4, 4), pool(4, 8));
    let never_granted_here = other.alloc(1).expect("8 pages are free");
    assert_eq!(
        panics(|| pool.free(never_granted_here)),
        cfg!(debug_assertions)
    );
    assert_eq!((pool.double_frees(), pool.free_pages()), (1, 4));

    let mut beyond = other.alloc(7).expect("7 pages are free");
    let out_of_range = beyond.split_off(6);
    assert_eq!(panics(|| pool.free(out_of_range)), cfg!(debug_assertions));
    assert_eq!((pool.double_frees(), pool.free_pages()), (2, 4));
    other.free(beyond);
}

#[test]
fn dropped_pages_are_counted_and_panic_in_debug_builds() {
    let ledger = Arc::new(PoolLedger::new(PageSize::ONE));
    let mut pool = PagePool::new(4, PageSize::ONE, ledger.clone());
    let pages = pool.alloc(3).expect("4 pages are free");
    assert_eq!(panics(|| drop(pages)), cfg!(debug_assertions));
    assert_eq!(ledger.lost_pages(), 3);
    let pages = pool.alloc(1).expect("1 page is free");
    ledger.close();
    drop(pages);
    assert_eq!(ledger.lost_pages(), 3);
}

#[test]
fn pages_go_one_by_one_to_their_owners_and_the_rest_counts_as_dropped() {
    let ledger = Arc::new(PoolLedger::new(page_size(1)));
    let mut pool = PagePool::new(8, page_size(1), ledger.clone());
    let mut one = pool.alloc(1).expect("8 pages are free");
    let mut two = Pages::empty();
    let mut growth = pool.alloc(4).expect("7 pages are free").one_by_one();
    assert_eq!(growth.next_to(&mut one), Some(PageId::new(2)));
    assert_eq!(growth.next_to(&mut two), Some(PageId::new(3)));
    let ids = |pages: &Pages| {
        pages
            .ids()
            .iter()
            .map(|page| page.get())
            .collect::<Vec<_>>()
    };
    assert_eq!((ids(&one), ids(&two)), (vec![1, 2], vec![3]));

    assert_eq!(panics(|| drop(growth)), cfg!(debug_assertions));
    assert_eq!(ledger.lost_pages(), 2);
    // `two` was created empty, but its page counts in the pool's ledger, too.
    assert_eq!(panics(|| drop(two)), cfg!(debug_assertions));
    assert_eq!(ledger.lost_pages(), 3);

    let mut rest = pool.alloc(1).expect("3 pages are free").one_by_one();
    assert_eq!(rest.next_to(&mut one), Some(PageId::new(6)));
    assert_eq!(rest.next_to(&mut one), None);
    drop(rest);
    pool.free(one);
    assert_eq!(free_ids(&pool), [7, 8, 1, 2, 6]);
}

#[test]
fn page_arithmetic_holds_just_below_and_above_whole_pages() {
    let size = page_size(16);
    let cut = |tokens| {
        (
            size.full_pages(tokens),
            size.floor(tokens),
            size.pages_for(tokens),
        )
    };
    assert_eq!(cut(0), (0, 0, 0));
    assert_eq!(cut(15), (0, 0, 1));
    assert_eq!(cut(16), (1, 16, 1));
    assert_eq!(cut(17), (1, 16, 2));
    assert_eq!(cut(1_587), (99, 1_584, 100));
    assert_eq!(
        (size.pages_to_extend(15, 16), size.pages_to_extend(16, 17)),
        (0, 1)
    );
    assert_eq!((size.pages_to_decode(31), size.pages_to_decode(32)), (0, 1));
    assert_eq!(
        (PageSize::ONE.pages_to_decode(7), size.tokens_in(3)),
        (1, 48)
    );
    assert_eq!(PageSize::new(0), None);
}

#[test]
fn last_freed_row_is_granted_first_under_a_new_generation() {
    let mut rows = RowPool::new(3);
    let (one, two) = (rows.alloc(), rows.alloc());
    assert_eq!((one, two), (Some(RowId::new(1)), Some(RowId::new(2))));
    let one = RowId::new(1);
    let before = rows.generation(one);
    rows.free(one);
    assert_eq!((rows.free_rows(), rows.total_rows()), (2, 3));
    assert_eq!(
        (rows.alloc(), rows.generation(one)),
        (Some(one), before + 1)
    );
    assert_eq!((rows.alloc(), rows.alloc()), (Some(RowId::new(3)), None));

    rows.clear();
    assert_eq!((rows.free_rows(), rows.generation(one)), (3, before + 2));
    assert_eq!(rows.alloc(), Some(one));
}

#[test]
fn row_that_is_not_held_is_not_listed_twice() {
    let mut rows = RowPool::new(2);
    assert_eq!(panics(|| rows.free(RowId::new(2))), cfg!(debug_assertions));
    assert_eq!(panics(|| rows.free(RowId::new(0))), cfg!(debug_assertions));
    assert_eq!(rows.free_rows(), 2);
}
