//! Tests of specs, and of the decisions at points.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

fn chaos(specs: &[&str]) -> Chaos {
    let parse = |text: &&str| text.parse::<Spec>().expect("a valid spec");
    Chaos::new(&specs.iter().map(parse).collect::<Vec<_>>())
}

fn scheduler(message: &'static str) -> Point<'static> {
    Point::new(Actor::Scheduler, Phase::Entry, message)
}

/// The passages, of the first `n` of a point, at which a fault fires.
fn firings(chaos: &Chaos, point: Point<'_>, n: usize) -> Vec<usize> {
    let fires = |_: &usize| chaos.at(point, Kind::PLAIN).is_some();
    (1..=n).filter(fires).collect()
}

fn panic_text(run: impl FnOnce()) -> Option<String> {
    let payload = catch_unwind(AssertUnwindSafe(run)).err()?;
    payload.downcast_ref::<String>().cloned()
}

#[track_caller]
fn check_refusal(text: &str, parts: &[&str]) {
    let error = text.parse::<Spec>().expect_err("refused").to_string();
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
}

#[test]
fn a_spec_is_kept_as_it_was_given() {
    let text = "actor=radix_cache,kind=panic,phase=exit,message=PlanStep,probability=0.001,seed=7";
    let spec: Spec = text.parse().expect("a valid spec");
    assert_eq!(
        (spec.actor(), spec.kind()),
        (Actor::RadixCache, Kind::Panic)
    );
    let json = serde_json::to_value(&spec).expect("a text");
    assert_eq!(json, text);
    assert_eq!(serde_json::from_value::<Spec>(json).ok(), Some(spec));
}

#[test]
fn refusals_name_the_value_and_the_allowed_ones() {
    check_refusal("actor=plan,kind=panic", &["\"plan\"", "scheduler"]);
    check_refusal("kind=panic", &["actor is missing", "scheduler"]);
    check_refusal("actor=worker", &["kind is missing", "panic"]);
    check_refusal("actor=worker,kind=boom", &["\"boom\"", "panic"]);
    check_refusal("actor=worker,kind=lose", &["lose", "panic for worker"]);
    check_refusal(
        "actor=worker,kind=panic,colour=red",
        &["\"colour\"", "probability"],
    );
    check_refusal("actor=worker,actor=worker", &["actor is given twice"]);
    check_refusal("actor=worker,kind", &["\"kind\"", "key=value"]);
    check_refusal("", &["key=value"]);
    let panic = |rest: &str| format!("actor=scheduler,kind=panic,{rest}");
    check_refusal(&panic("rid="), &["rid is empty"]);
    check_refusal(&panic("phase=begin"), &["\"begin\"", "entry, middle, exit"]);
    check_refusal(&panic("probability=0"), &["is 0", "at most 1"]);
    check_refusal(&panic("probability=NaN"), &["NaN", "at most 1"]);
    check_refusal(&panic("probability=often"), &["\"often\"", "a number"]);
    check_refusal(&panic("after=0"), &["after is 0", "at least 1"]);
    check_refusal(&panic("count=0"), &["count is 0", "at least 1"]);
    check_refusal(&panic("cause=any"), &["\"any\"", "unique, same"]);
}

#[test]
fn impossible_combinations_are_refused() {
    let panic = |rest: &str| format!("actor=scheduler,kind=panic,{rest}");
    check_refusal(&panic("after=2,probability=0.5"), &["after", "probability"]);
    check_refusal(&panic("after=2,count=2"), &["after", "count"]);
    check_refusal(&panic("for=1s"), &["kind is panic", "delay, hang"]);
    check_refusal(
        &panic("token=7"),
        &["actor is scheduler", "executor_thread"],
    );
    check_refusal(&panic("rid=a,token=7"), &["rid and token"]);
    let thread = "actor=executor_thread,kind=panic,rid=a";
    check_refusal(
        thread,
        &["actor is executor_thread", "tokenizer, scheduler"],
    );
    check_refusal("actor=scheduler,kind=delay", &["for is missing", "delay"]);
}

#[test]
fn lengths_have_units() {
    let length = |text: &str| {
        let spec = format!("actor=scheduler,kind=hang,for={text}");
        let fired = chaos(&[&spec]).at(scheduler("Submit"), Kind::PLAIN);
        fired.expect("it always fires").length()
    };
    assert_eq!(length("250ms"), Duration::from_millis(250));
    assert_eq!(length("1.5s"), Duration::from_millis(1500));
    assert_eq!(length("2m"), Duration::from_secs(120));
    for bad in ["5", "s", "-1s", "1h", "1e30m"] {
        let spec = format!("actor=scheduler,kind=hang,for={bad}");
        check_refusal(&spec, &[bad, "ms, s, m"]);
    }
}

#[test]
fn a_seed_decides_the_passages_and_points_do_not_disturb_each_other() {
    let spec = |seed: u32| format!("actor=scheduler,kind=panic,probability=0.1,seed={seed}");
    let alone = firings(&chaos(&[&spec(7)]), scheduler("StepDone"), 1000);
    assert!((60..140).contains(&alone.len()), "{}", alone.len());
    assert_ne!(
        alone,
        firings(&chaos(&[&spec(8)]), scheduler("StepDone"), 1000)
    );
    let other = firings(&chaos(&[&spec(7)]), scheduler("Submit"), 1000);
    assert_ne!(alone, other);

    let shared = chaos(&[&spec(7)]);
    let mut together: (Vec<usize>, Vec<usize>) = Default::default();
    for passage in 1..=1000 {
        for (message, fired) in [("Submit", &mut together.1), ("StepDone", &mut together.0)] {
            if shared.at(scheduler(message), Kind::PLAIN).is_some() {
                fired.push(passage);
            }
        }
    }
    assert_eq!(together, (alone, other));
}

#[test]
fn after_fires_once_and_count_limits_firings() {
    let once = chaos(&["actor=scheduler,kind=panic,after=3"]);
    assert_eq!(firings(&once, scheduler("Submit"), 10), [3]);
    assert!(firings(&once, scheduler("StepDone"), 10).is_empty());
    let twice = chaos(&["actor=scheduler,kind=panic,count=2"]);
    assert_eq!(firings(&twice, scheduler("Submit"), 10), [1, 2]);
    let states = twice.describe();
    assert_eq!((states[0].passages, states[0].firings), (10, 2));
    assert_eq!(states[0].spec, "actor=scheduler,kind=panic,count=2");
}

#[test]
fn only_matching_points_are_passages() {
    let spec = "actor=scheduler,kind=panic,phase=exit,message=StepDone";
    let chaos = chaos(&[spec]);
    let at = |phase, message| Point::new(Actor::Scheduler, phase, message);
    assert!(
        chaos
            .at(at(Phase::Entry, "StepDone"), Kind::PLAIN)
            .is_none()
    );
    assert!(chaos.at(at(Phase::Exit, "Submit"), Kind::PLAIN).is_none());
    let other = Point::new(Actor::Allocator, Phase::Exit, "StepDone");
    assert!(chaos.at(other, Kind::PLAIN).is_none());
    assert!(
        chaos
            .at(at(Phase::Exit, "StepDone"), &[Kind::Reject])
            .is_none()
    );
    assert_eq!(chaos.describe()[0].passages, 0);
    assert!(chaos.at(at(Phase::Exit, "StepDone"), Kind::PLAIN).is_some());
}

#[test]
fn panics_have_different_causes_unless_the_spec_asks_for_the_same() {
    let strike = |chaos: &Chaos| {
        panic_text(|| chaos.strike(Actor::Scheduler, Phase::Middle, "StepDone"))
            .expect("it panics with a text")
    };
    let unique = chaos(&["actor=scheduler,kind=panic"]);
    let first = "chaos: panic 1 in scheduler at StepDone (middle)";
    assert_eq!(strike(&unique), first);
    assert_eq!(strike(&unique), first.replace('1', "2"));
    let same = chaos(&["actor=scheduler,kind=panic,cause=same"]);
    assert_eq!(strike(&same), "chaos: panic in scheduler");
    assert_eq!(strike(&same), "chaos: panic in scheduler");
}

#[test]
fn a_poison_fires_for_its_requests_only_and_always_for_the_same_cause() {
    let by_id = chaos(&["actor=tokenizer,kind=panic,rid=bad-"]);
    let strike = |rid: &str| {
        panic_text(|| by_id.strike_request(Actor::Tokenizer, Phase::Entry, "TokensReady", rid))
    };
    assert_eq!(strike("good-bad-1"), None);
    let cause = Some("chaos: panic in tokenizer, rid bad-".to_owned());
    assert_eq!((strike("bad-1"), strike("bad-2")), (cause.clone(), cause));

    let by_token = chaos(&["actor=executor_thread,kind=panic,token=7"]);
    let strike = |prompt: &[u32]| {
        let has = |token| prompt.contains(&token);
        let point = Point::new(Actor::ExecutorThread, Phase::Entry, "launch");
        panic_text(|| by_token.strike_at(point.of_prompts(&has)))
    };
    assert_eq!(strike(&[5, 6]), None);
    let cause = "chaos: panic in executor_thread, token 7";
    assert_eq!(strike(&[5, 7]).as_deref(), Some(cause));
}

#[test]
fn files_fail_and_writes_are_cut() {
    let write = |kind: &str| {
        let chaos = chaos(&[&format!("actor=kv_store,kind={kind}")]);
        let written = chaos.before_write(Actor::KvStore, "write_at", b"1234");
        (
            written.map(<[u8]>::to_vec),
            chaos.before_read(Actor::KvStore, "read_at"),
        )
    };
    let (written, read) = write("io_error");
    let text = written.expect_err("no disk").to_string();
    assert!(text.starts_with("chaos: io_error 1 in kv_store"), "{text}");
    assert!(read.is_err());
    let (written, read) = write("disk_full");
    let kind = written.expect_err("no space").kind();
    assert_eq!(kind, io::ErrorKind::StorageFull);
    assert!(read.is_ok());
    let (written, read) = write("torn_write");
    assert_eq!(written.expect("it reports success"), b"12");
    assert!(read.is_ok());
    let torn = chaos(&["actor=kv_store,kind=torn_write"]);
    assert!(torn.before_change(Actor::KvStore, "sync").is_ok());
    assert_eq!(torn.describe()[0].passages, 0);
}

/// Without the call, the hang would last for ever.
#[test]
fn a_cooperative_hang_can_be_ended() {
    let chaos = chaos(&["actor=scheduler,kind=hang"]);
    let hanging = chaos.clone();
    let thread = std::thread::spawn(move || {
        hanging.strike(Actor::Scheduler, Phase::Entry, "Submit");
    });
    while !thread.is_finished() {
        chaos.end_hangs();
        std::thread::yield_now();
    }
    assert!(thread.join().is_ok());
    assert_eq!(chaos.describe()[0].firings, 1);
}

#[test]
fn chaos_is_off_without_specs_and_then_is_one_empty_pointer() {
    let off = Chaos::new(&[]);
    assert!(!off.is_on() && off.describe().is_empty());
    assert_eq!(size_of::<Chaos>(), size_of::<usize>());
    assert!(off.at(scheduler("Submit"), Kind::PLAIN).is_none());
    off.strike(Actor::Scheduler, Phase::Entry, "Submit");
    let bytes = off.before_write(Actor::Record, "write", b"1234");
    assert_eq!(bytes.ok(), Some(&b"1234"[..]));
}

#[test]
fn clones_share_their_counts() {
    let chaos = chaos(&["actor=scheduler,kind=panic,after=2"]);
    let clone = chaos.clone();
    assert!(chaos.at(scheduler("Submit"), Kind::PLAIN).is_none());
    assert!(clone.at(scheduler("Submit"), Kind::PLAIN).is_some());
}

#[test]
fn every_actor_has_kinds_and_every_kind_has_an_actor() {
    for actor in Actor::ALL {
        assert!(!actor.kinds().is_empty(), "{actor}");
    }
    for kind in Kind::ALL {
        let mut actors = Actor::ALL.iter();
        assert!(actors.any(|actor| actor.kinds().contains(kind)), "{kind}");
    }
}
