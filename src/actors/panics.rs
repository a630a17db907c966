//! The causes of deaths by panics: the message whose handler ran, and the place of the panic in the source.
//!
//! The Watchdog compares the places of deaths to find a request that causes them. It compares messages only if places
//! are not noted: code that plans a step runs in the handlers of several messages, so a request that makes it panic may
//! end one handler after another. The text of a panic is no part of a cause, since it may differ between panics at one
//! place and may have words of a prompt.

use std::cell::Cell;
use std::panic;
use std::sync::{Arc, Once};

use souffleur_base::in_hand;

thread_local! {
    /// The message whose handler runs, or has panicked; empty between handlers.
    static MESSAGE: Cell<&'static str> = const { Cell::new("") };
    /// The place of the last panic, if places are noted.
    static PLACE: Cell<Option<String>> = const { Cell::new(None) };
}

/// Why an actor or a thread has died; the texts are empty if nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cause {
    /// The message and the place of the panic, the injected fault, or the error of the device.
    pub(crate) text: Arc<str>,
    /// The same without the message, unless only the message is known: equal for deaths by one cause.
    pub(crate) place: Arc<str>,
}

impl Cause {
    pub(crate) fn of(text: String) -> Self {
        let text: Arc<str> = text.into();
        Self {
            place: text.clone(),
            text,
        }
    }
}

/// Makes this process note the place of each panic, and then call the panic hook that is installed now. Further calls
/// change nothing.
///
/// Without this, the causes of an actor's panics differ only by the message, so unrelated panics may seem to have one
/// cause. The binary calls this; a host may, after it has installed its own hook.
pub fn note_places() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let earlier = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let place = info.location();
            let place = place.map(|at| format!("{}:{}", at.file(), at.line()));
            // A thread that ends has dropped the variable.
            let _ = PLACE.try_with(|noted| noted.set(place));
            earlier(info);
        }));
    });
}

/// This thread begins the handler of a message.
pub(crate) fn began(message: &'static str) {
    MESSAGE.with(|running| running.set(message));
    in_hand::clear();
}

/// This thread has ended the handler of a message.
pub(crate) fn ended() {
    MESSAGE.with(|running| running.set(""));
}

/// Forgets the last panic of this thread, which was caught and has been dealt with.
pub(crate) fn forget() {
    drop(take_cause(false));
}

/// Takes the cause of a death that this thread reports: that of an injected fault, or that of the thread's last panic.
pub(crate) fn take_cause(panicked: bool) -> Cause {
    let injected = souffleur_chaos::take_cause();
    let (message, place) = (MESSAGE.take(), PLACE.try_with(Cell::take).ok().flatten());
    match (injected, message, place) {
        (Some(injected), ..) => Cause::of(injected),
        _ if !panicked => Cause::default(),
        (None, "", place) => Cause::of(place.unwrap_or_default()),
        (None, message, None) => Cause::of(message.to_owned()),
        (None, message, Some(place)) => Cause {
            text: format!("{message} at {place}").into(),
            place: place.into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    fn first() {
        panic!("a text");
    }

    fn second() {
        panic!("a text");
    }

    fn cause(message: &'static str, work: fn()) -> Cause {
        began(message);
        assert!(catch_unwind(work).is_err());
        take_cause(true)
    }

    #[test]
    fn panics_at_one_place_have_one_cause_in_the_handlers_of_all_messages() {
        note_places();
        note_places();
        let known = cause("StepDone", first);
        assert!(known.place.contains("panics.rs:"), "{known:?}");
        assert_eq!(*known.text, format!("StepDone at {}", known.place));
        assert_eq!(cause("StepDone", first), known);
        assert_ne!(cause("StepDone", second).place, known.place);
        let other = cause("Submit", first);
        assert_eq!(other.place, known.place);
        assert_ne!(other.text, known.text);
        assert_eq!(cause("", first), Cause::of(known.place.to_string()));
    }

    #[test]
    fn a_panic_that_was_caught_is_not_the_cause_of_a_later_death_without_one() {
        note_places();
        assert!(catch_unwind(first).is_err());
        assert_eq!(take_cause(false), Cause::default());
        began("StepDone");
        ended();
        assert_eq!(take_cause(true), Cause::default());
    }
}
