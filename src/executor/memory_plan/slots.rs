//! Computes the number of recurrent state slots in the memory plan.

use super::wish::MemoryWish;

/// Default limit of running requests for models with recurrent states.
const DEFAULT_ROWS: u32 = 16;
/// Minimum number of states for each running request, including the request's own state.
const SLOTS_PER_ROW: u64 = 3;
/// Bytes of pages for each byte of cached states, where this ratio gives more states than [`SLOTS_PER_ROW`].
const PAGE_PARTS: u64 = 4;
/// The dummy slot, for rows that belong to no sequence.
const DUMMY_SLOTS: u64 = 1;

/// The recurrent states of running requests and of the prefix cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateSlots {
    slot_bytes: u64,
    rows: u64,
    asked: Option<u64>,
    caches_prefixes: bool,
}

impl StateSlots {
    /// The states that the plan needs; `None` where layers have no states.
    pub(super) fn of(wish: &MemoryWish) -> Option<Self> {
        let slots = Self {
            slot_bytes: wish.state_bytes,
            rows: u64::from(rows(wish.max_running_requests, wish.max_states)),
            asked: wish.max_states,
            caches_prefixes: wish.caches_prefixes,
        };
        (wish.state_bytes > 0).then_some(slots)
    }

    /// The error is the reason why the user's number is too small.
    pub(super) fn check(self) -> Result<(), String> {
        let minimum = self.rows.saturating_add(u64::from(self.caches_prefixes));
        let cache = if self.caches_prefixes {
            ", and one for the cache"
        } else {
            ""
        };
        match self.asked {
            Some(asked) if asked < minimum => Err(format!(
                "max_mamba_cache_size is {asked}, expected at least {minimum}: one state for each of the {} requests of \
                 max_running_requests{cache}",
                self.rows
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn for_pages(self, page_bytes: u64) -> u64 {
        if let Some(fixed) = self.fixed() {
            return fixed.saturating_add(DUMMY_SLOTS);
        }
        let state_page_bytes = self.slot_bytes.saturating_mul(PAGE_PARTS);
        let with_share = self.rows.saturating_add(page_bytes / state_page_bytes);
        self.minimum().max(with_share).saturating_add(DUMMY_SLOTS)
    }

    pub(super) fn bytes_for_pages(self, page_bytes: u64) -> u64 {
        self.for_pages(page_bytes).saturating_mul(self.slot_bytes)
    }

    /// Maximum bytes of pages that fit, with their states, into `bytes`.
    pub(super) fn page_bytes_in(self, bytes: u64) -> u64 {
        let without = |slots: u64| {
            let slots = slots.saturating_add(DUMMY_SLOTS);
            bytes.saturating_sub(slots.saturating_mul(self.slot_bytes))
        };
        if let Some(fixed) = self.fixed() {
            return without(fixed);
        }
        let left = without(self.rows);
        let state_page_bytes = self.slot_bytes.saturating_mul(PAGE_PARTS);
        let cached = left / self.slot_bytes.saturating_mul(PAGE_PARTS + 1);
        // With more bytes of pages than this, one more state is needed.
        let below_next = state_page_bytes.saturating_mul(cached.saturating_add(1)) - 1;
        let with_share = (left - cached * self.slot_bytes).min(below_next);
        without(self.minimum()).min(with_share)
    }

    /// The number of states, if it does not depend on the pages: the user's number, or one per row without a cache.
    fn fixed(self) -> Option<u64> {
        self.asked.or((!self.caches_prefixes).then_some(self.rows))
    }

    fn minimum(self) -> u64 {
        self.rows.saturating_mul(SLOTS_PER_ROW)
    }
}

/// Limit of running requests for models with recurrent states. The default leaves one of `states` to the cache.
pub(super) fn rows(asked: Option<u32>, states: Option<u64>) -> u32 {
    let left = states.map_or(DEFAULT_ROWS, |states| {
        u32::try_from(states.saturating_sub(1)).unwrap_or(DEFAULT_ROWS)
    });
    asked.unwrap_or(DEFAULT_ROWS.min(left)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(slot_bytes: u64, rows: u64) -> StateSlots {
        StateSlots {
            slot_bytes,
            rows,
            asked: None,
            caches_prefixes: true,
        }
    }

    #[test]
    fn without_a_cache_there_is_a_state_for_each_row_or_the_requested_number() {
        let bare = StateSlots {
            caches_prefixes: false,
            ..states(7, 4)
        };
        assert_eq!(bare.for_pages(1 << 20), 4 + 1);
        assert_eq!(bare.page_bytes_in(135), 100);
        let asked = |asked| StateSlots {
            asked: Some(asked),
            ..bare
        };
        assert_eq!(asked(9).for_pages(0), 10);
        assert!(asked(4).check().is_ok());
        let refused = asked(3).check().expect_err("a row has no state");
        assert!(refused.ends_with("max_running_requests"), "{refused}");
    }

    #[test]
    fn a_requested_number_is_kept_and_leaves_one_for_the_cache() {
        let asked = |asked, rows| StateSlots {
            asked: Some(asked),
            ..states(7, rows)
        };
        for page_bytes in [0, 1 << 20] {
            assert_eq!(asked(9, 4).for_pages(page_bytes), 10);
        }
        assert_eq!(asked(9, 4).page_bytes_in(170), 100);
        assert_eq!(asked(9, 4).page_bytes_in(60), 0);
        assert!(asked(5, 4).check().is_ok());
        let refused = asked(4, 4).check().expect_err("no state is left");
        assert!(refused.contains("is 4, expected at least 5"), "{refused}");
        let by_default = [2, 9, 100].map(|states| rows(None, Some(states)));
        assert_eq!(by_default, [1, 8, DEFAULT_ROWS]);
        assert_eq!(rows(Some(40), Some(9)), 40);
    }

    #[test]
    fn a_fifth_of_the_pool_is_for_cached_states_or_two_for_each_row() {
        let slots = |rows, slot_bytes, page_bytes| states(slot_bytes, rows).for_pages(page_bytes);
        // 80 bytes of pages allow 20 bytes of cached states: 10 states of 2 bytes, plus the rows' states and the dummy.
        assert_eq!(slots(4, 2, 80), 4 + 10 + 1);
        assert_eq!(slots(6, 2, 80), 3 * 6 + 1);
        assert_eq!(slots(5, 2, 80), 3 * 5 + 1);
        assert_eq!(slots(16, 50 << 20, 0), 49);
    }

    #[test]
    fn pages_and_states_fill_the_memory() {
        for (rows, slot_bytes) in [(1, 1), (1, 7), (3, 5), (16, 40), (2, 1000)] {
            let slots = states(slot_bytes, rows);
            for bytes in 0..3000 {
                let page_bytes = slots.page_bytes_in(bytes);
                if page_bytes > 0 {
                    assert!(
                        page_bytes + slots.bytes_for_pages(page_bytes) <= bytes,
                        "{slots:?} in {bytes}"
                    );
                }
                let more = page_bytes + 1;
                assert!(
                    more + slots.bytes_for_pages(more) > bytes,
                    "{slots:?} in {bytes}"
                );
            }
        }
    }
}
