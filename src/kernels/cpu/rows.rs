//! Row-wise work divided among the threads.

use super::threads::ThreadPool;

/// Rows in an item: a barrier costs about as much as a few rows.
const ITEM_ROWS: usize = 4;

pub const ELEMENT_COST: usize = 64;

/// Calls `row` for each row; `cost` is that of a row, in multiply-adds.
pub fn for_rows(pool: &mut ThreadPool, rows: usize, cost: usize, row: impl Fn(usize) + Sync) {
    pool.for_each_in_runs(rows.div_ceil(ITEM_ROWS), rows * cost, &|item| {
        (item * ITEM_ROWS..rows.min((item + 1) * ITEM_ROWS)).for_each(&row);
    });
}
