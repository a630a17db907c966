//! How many states of sequences lie beside the pages of a pool.

use super::MemoryWish;

/// Requests at once by default where each has a state.
const DEFAULT_ROWS: u32 = 16;
/// States for each row at least, its own among them.
const SLOTS_PER_ROW: u64 = 3;
/// The share of the pool that cached states take where that is more: one part beside this many of pages.
const PAGE_PARTS: u64 = 4;
/// Slots for the states of rows that belong to no sequence.
const DUMMY_SLOTS: u64 = 1;

/// The states of an engine: those of its rows and those that the cache keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateSlots {
    /// Size of a state.
    slot_bytes: u64,
    /// Requests at once.
    rows: u64,
}

impl StateSlots {
    /// The states that are wished for; none where layers have no states.
    pub(super) fn of(wish: &MemoryWish) -> Option<Self> {
        let slots = Self {
            slot_bytes: wish.state_bytes,
            rows: u64::from(rows(wish.max_running_requests)),
        };
        (wish.state_bytes > 0).then_some(slots)
    }

    /// How many there are beside `page_bytes` of pages.
    pub(super) fn beside(self, page_bytes: u64) -> u64 {
        let parts = self.slot_bytes.saturating_mul(PAGE_PARTS);
        let with_share = self.rows.saturating_add(page_bytes / parts);
        self.least().max(with_share).saturating_add(DUMMY_SLOTS)
    }

    /// Their bytes beside `page_bytes` of pages.
    pub(super) fn bytes_beside(self, page_bytes: u64) -> u64 {
        self.beside(page_bytes).saturating_mul(self.slot_bytes)
    }

    /// Most bytes of pages that fit with their states into `bytes`.
    pub(super) fn page_bytes_in(self, bytes: u64) -> u64 {
        let without = |slots: u64| {
            let slots = slots.saturating_add(DUMMY_SLOTS);
            bytes.saturating_sub(slots.saturating_mul(self.slot_bytes))
        };
        let room = without(self.rows);
        let part = self.slot_bytes.saturating_mul(PAGE_PARTS);
        let shared = room / self.slot_bytes.saturating_mul(PAGE_PARTS + 1);
        // One more byte of pages than that would ask for one more state.
        let below_next = part.saturating_mul(shared.saturating_add(1)) - 1;
        let with_share = (room - shared * self.slot_bytes).min(below_next);
        without(self.least()).min(with_share)
    }

    fn least(self) -> u64 {
        self.rows.saturating_mul(SLOTS_PER_ROW)
    }
}

/// Requests at once where each has a state.
pub(super) fn rows(asked: Option<u32>) -> u32 {
    asked.unwrap_or(DEFAULT_ROWS).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_the_pool_is_for_cached_states_or_two_for_each_row() {
        let slots =
            |rows, slot_bytes, page_bytes| StateSlots { slot_bytes, rows }.beside(page_bytes);
        // 80 of pages and 20 of states that take 2 each: ten beside those of the rows, and the dummy.
        assert_eq!(slots(4, 2, 80), 4 + 10 + 1);
        assert_eq!(slots(6, 2, 80), 3 * 6 + 1);
        assert_eq!(slots(5, 2, 80), 3 * 5 + 1);
        assert_eq!(slots(16, 50 << 20, 0), 49);
    }

    #[test]
    fn pages_and_their_states_fill_what_there_is() {
        for (rows, slot_bytes) in [(1, 1), (1, 7), (3, 5), (16, 40), (2, 1000)] {
            let slots = StateSlots { slot_bytes, rows };
            for bytes in 0..3000 {
                let page_bytes = slots.page_bytes_in(bytes);
                if page_bytes > 0 {
                    assert!(
                        page_bytes + slots.bytes_beside(page_bytes) <= bytes,
                        "{slots:?} in {bytes}"
                    );
                }
                let more = page_bytes + 1;
                assert!(
                    more + slots.bytes_beside(more) > bytes,
                    "{slots:?} in {bytes}"
                );
            }
        }
    }
}
