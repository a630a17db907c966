//! The request that a thread works on: a panic of the thread names it as the suspect.
//!
//! Code that works on one request after another notes each before it begins, and clears the note after the last. A note
//! is a plain store to memory of the thread, which no decision reads.

use std::cell::Cell;

use crate::ids::IntakeId;

/// Stands for no request: intakes count from 0.
const NONE: IntakeId = IntakeId::new(u64::MAX);

thread_local! {
    static REQUEST: Cell<IntakeId> = const { Cell::new(NONE) };
}

/// This thread works on `request` from now on.
#[inline]
pub fn hold(request: IntakeId) {
    REQUEST.with(|held| held.set(request));
}

/// This thread works on no single request from now on.
#[inline]
pub fn clear() {
    hold(NONE);
}

/// Takes the request that this thread works on, or that it worked on when it panicked.
pub fn take() -> Option<IntakeId> {
    let request = REQUEST.with(|held| held.replace(NONE));
    (request != NONE).then_some(request)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_leaves_the_request_in_hand_and_each_thread_has_its_own() {
        let request = IntakeId::new(7);
        let work = || {
            hold(request);
            assert!(std::hint::black_box(false), "the work fails");
            clear();
        };
        assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
        let other = std::thread::spawn(take);
        assert_eq!(other.join().expect("the thread ends"), None);
        assert_eq!((take(), take()), (Some(request), None));
    }
}
