//! Bounds the memory of request bodies while they arrive and are parsed: one byte budget for all connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::error::ApiError;

/// Number of bytes at the start of each body that are charged to a share reserved for small bodies.
const SMALL_BODY_BYTES: usize = 64 << 10;
/// The reserved share is the budget divided by this number.
const SMALL_DIVISOR: usize = 4;

/// The bytes that all bodies of a server may use together. Cheap to clone.
#[derive(Clone)]
pub(super) struct BodyBudget(Arc<Shares>);

struct Shares {
    limit_bytes: usize,
    small_free: AtomicUsize,
    large_free: AtomicUsize,
}

impl BodyBudget {
    pub(super) fn new(limit_bytes: usize) -> Self {
        let small = limit_bytes / SMALL_DIVISOR;
        Self(Arc::new(Shares {
            limit_bytes,
            small_free: AtomicUsize::new(small),
            large_free: AtomicUsize::new(limit_bytes - small),
        }))
    }

    pub(super) fn open(&self) -> BodyCharge {
        BodyCharge {
            shares: self.0.clone(),
            small: 0,
            large: 0,
        }
    }
}

/// The bytes charged for one body. They return to the budget on drop.
pub(super) struct BodyCharge {
    shares: Arc<Shares>,
    small: usize,
    large: usize,
}

impl BodyCharge {
    /// Charges more bytes. Fails with 503 if other bodies use the memory, with 413 above the limit for one body.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let limit = self.shares.limit_bytes;
        let most = limit - limit / SMALL_DIVISOR;
        let small_part = bytes.min(SMALL_BODY_BYTES.saturating_sub(self.small));
        if self.large.saturating_add(bytes - small_part) > most {
            return Err(ApiError::body_beyond_budget(most, limit));
        }
        if take(&self.shares.small_free, small_part) {
            self.small += small_part;
            return self.grow_large(bytes - small_part);
        }
        self.grow_large(bytes)
    }

    /// An empty charge to the same budget.
    pub(super) fn sibling(&self) -> Self {
        BodyBudget(self.shares.clone()).open()
    }

    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let small = self.small.min(bytes);
        let large = self.large.min(bytes - small);
        let (shares, released) = (&self.shares, (self.small - small, self.large - large));
        shares.small_free.fetch_add(released.0, Ordering::AcqRel);
        shares.large_free.fetch_add(released.1, Ordering::AcqRel);
        (self.small, self.large) = (small, large);
    }

    fn grow_large(&mut self, bytes: usize) -> Result<(), ApiError> {
        if !take(&self.shares.large_free, bytes) {
            return Err(ApiError::bodies_full(self.shares.limit_bytes));
        }
        self.large += bytes;
        Ok(())
    }
}

impl Drop for BodyCharge {
    fn drop(&mut self) {
        self.shares
            .small_free
            .fetch_add(self.small, Ordering::AcqRel);
        self.shares
            .large_free
            .fetch_add(self.large, Ordering::AcqRel);
    }
}

/// The charges for a call's body while the call is served.
pub(super) struct Charges {
    /// The charge for the parts of the prompt, held until the prompt is encoded.
    pub(super) prompt: BodyCharge,
    /// The charge for the tools and constraints of the call, held as long as its requests.
    pub(super) request: BodyCharge,
}

fn take(free: &AtomicUsize, bytes: usize) -> bool {
    let rest = |free: usize| free.checked_sub(bytes);
    free.fetch_update(Ordering::AcqRel, Ordering::Acquire, rest)
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 8 << 20;

    #[test]
    fn large_bodies_leave_a_share_to_small_ones_and_return_all_bytes() {
        let budget = BodyBudget::new(LIMIT);
        let mut large = budget.open();
        large
            .grow(SMALL_BODY_BYTES + 6 * (1 << 20))
            .expect("the budget is unused");
        let mut other = budget.open();
        other.grow(SMALL_BODY_BYTES).expect("the share is unused");
        assert_eq!(other.grow(1), Err(ApiError::bodies_full(LIMIT)));
        large.shrink_to(SMALL_BODY_BYTES);
        assert_eq!(other.grow(1), Ok(()));
        drop(large);
        drop(other);
        let free = |share: &AtomicUsize| share.load(Ordering::Acquire);
        assert_eq!(free(&budget.0.small_free), LIMIT / SMALL_DIVISOR);
        assert_eq!(free(&budget.0.large_free), LIMIT - LIMIT / SMALL_DIVISOR);
    }

    #[test]
    fn a_body_beyond_the_budget_of_one_body_is_refused() {
        let mut body = BodyBudget::new(LIMIT).open();
        let refusal = ApiError::body_beyond_budget(6 << 20, LIMIT);
        assert_eq!(body.grow(LIMIT), Err(refusal.clone()));
        assert_eq!(body.grow(usize::MAX), Err(refusal));
    }
}
