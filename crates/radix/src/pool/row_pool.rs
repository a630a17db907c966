//! The free list of page-table rows (SGLang's `req_to_token_pool`).

use souffleur_base::ids::RowId;

/// Owns every row that no request holds. Rows are `1..=n_rows`; row 0 is padding. Last freed, first granted.
#[derive(Debug)]
pub struct RowPool {
    free: Vec<RowId>,
    /// Indexed by row, and incremented whenever the row is returned, also by `clear`.
    generations: Vec<u64>,
    held: Vec<bool>,
}

impl RowPool {
    pub fn new(n_rows: u32) -> Self {
        let n_entries = n_rows as usize + 1;
        let free = (1..=n_rows).rev().map(RowId::new).collect();
        Self {
            free,
            generations: vec![0; n_entries],
            held: vec![false; n_entries],
        }
    }

    /// Grants one row, `None` when all are held.
    pub fn alloc(&mut self) -> Option<RowId> {
        let row = self.free.pop()?;
        self.held[row.index()] = true;
        Some(row)
    }

    /// Takes a row back.
    ///
    /// # Panics
    /// In debug builds, if the row is not held. Release builds ignore the call.
    pub fn free(&mut self, row: RowId) {
        let is_held = self.held.get(row.index()).copied().unwrap_or(false);
        debug_assert!(is_held, "row {row} was freed but is not held");
        if is_held {
            self.release(row);
            self.free.push(row);
        }
    }

    /// Takes every row back, even if it is held, and restores the initial order.
    pub fn clear(&mut self) {
        let n_rows = self.total_rows() as u32;
        self.free.clear();
        for row in (1..=n_rows).rev().map(RowId::new) {
            if self.held[row.index()] {
                self.release(row);
            }
            self.free.push(row);
        }
    }

    /// Distinguishes successive holders of a row: data recorded with an older generation is stale.
    ///
    /// # Panics
    /// If the row is not one of this pool's.
    pub fn generation(&self, row: RowId) -> u64 {
        self.generations[row.index()]
    }

    pub fn free_rows(&self) -> usize {
        self.free.len()
    }

    pub fn total_rows(&self) -> usize {
        self.held.len() - 1
    }

    fn release(&mut self, row: RowId) {
        self.held[row.index()] = false;
        self.generations[row.index()] += 1;
    }
}
