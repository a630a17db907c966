use super::blame::{Blame, Signature, Suspicion};
use super::*;
use souffleur_base::ids::IntakeId;

fn member(member: Member, generation: u64) -> Death {
    let unit = UnitId::new(0);
    let since = Incarnation { unit, generation };
    Death::Member {
        member,
        since,
        in_hand: generation,
    }
}

fn died(supervision: &mut Supervision, death: Death, now_s: f64) -> Ruling {
    supervision.died(death, Suspicion::Nothing, now_s)
}

fn restarted(ruling: Ruling) -> Restart {
    match ruling {
        Ruling::Restart(restart) => restart,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_restart_after_the_limit_is_one_too_many_until_the_first_is_older_than_the_period() {
    let rules = Rules::default();
    let mut restarts = Restarts::default();
    let times = [0.0, 1.0, 2.0, 3.0, 4.0];
    assert!(
        times
            .iter()
            .all(|now_s| restarts.note(rules.restarts, *now_s))
    );
    assert_eq!(restarts.left(rules.restarts), 0);
    assert!(!restarts.clone().note(rules.restarts, 59.0));
    assert!(!restarts.clone().note(rules.restarts, 60.0));
    assert!(restarts.note(rules.restarts, 60.1));
}

#[test]
fn the_sixth_death_of_a_minute_ends_the_process() {
    let mut supervision = Supervision::new(Rules::default(), 1);
    for generation in 1..6 {
        let death = member(Member::RadixCache, generation);
        let restart = restarted(died(&mut supervision, death, generation as f64));
        assert_eq!(restart.units[0].generation, generation + 1);
        assert_eq!(restart.level, Level::Control);
    }
    let death = member(Member::RadixCache, 6);
    assert_eq!(died(&mut supervision, death, 6.0), Ruling::GivesUp);
}

#[test]
fn the_executor_outlives_a_restart_of_the_control_actors_and_its_death_is_not_ignored() {
    let mut supervision = Supervision::new(Rules::default(), 1);
    restarted(died(&mut supervision, member(Member::Scheduler, 1), 0.0));
    let late = died(&mut supervision, member(Member::Allocator, 1), 0.0);
    assert_eq!(late, Ruling::Ignored);
    let restart = restarted(died(
        &mut supervision,
        member(Member::ExecutorThread, 1),
        0.0,
    ));
    assert_eq!(restart.level, Level::Executor);
    let [at] = restart.units[..] else {
        panic!("{restart:?}");
    };
    assert_eq!(at.generation, 3);
    let unit = at.unit;
    let superseded = Incarnation {
        unit,
        generation: 2,
    };
    assert_eq!(supervision.start(superseded), None);
    assert_eq!(supervision.start(at), Some(Suspicion::Nothing));
    let late = died(&mut supervision, member(Member::ExecutorThread, 1), 0.0);
    assert_eq!(late, Ruling::Ignored);
}

#[test]
fn an_executor_that_a_later_generation_starts_reports_its_death_under_the_number_that_is_asked_for()
{
    let mut supervision = Supervision::new(Rules::default(), 1);
    restarted(died(
        &mut supervision,
        member(Member::ExecutorThread, 1),
        0.0,
    ));
    // The unit is not built yet.
    restarted(died(&mut supervision, Death::Tokenizer { number: 1 }, 0.0));
    let since = supervision.executor_since(UnitId::new(0));
    let restart = restarted(died(
        &mut supervision,
        member(Member::ExecutorThread, since),
        0.0,
    ));
    assert_eq!(
        (restart.level, restart.units[0].generation),
        (Level::Executor, 4)
    );
}

#[test]
fn a_tokenizer_restarts_the_control_actors_of_all_units_but_retired_ones() {
    let mut supervision = Supervision::new(Rules::default(), 3);
    supervision.retire(UnitId::new(1));
    let death = Death::Tokenizer {
        number: FIRST_GENERATION,
    };
    let restart = restarted(died(&mut supervision, death, 0.0));
    assert_eq!(restart.tokenizer, Some(2));
    let units: Vec<u32> = restart.units.iter().map(|at| at.unit.get()).collect();
    assert_eq!(units, [0, 2]);
    assert_eq!(died(&mut supervision, death, 0.0), Ruling::Ignored);
    assert_eq!(supervision.restarts_left(), 4);
}

#[test]
fn the_first_suspicion_is_kept_until_the_start_but_not_beyond_the_death_of_a_tokenizer() {
    let mut supervision = Supervision::new(Rules::default(), 1);
    let [first, second] = ["a", "b"].map(|place| Suspicion::All(cause(place)));
    supervision.died(member(Member::Scheduler, 1), first.clone(), 0.0);
    supervision.died(member(Member::ExecutorThread, 1), second.clone(), 0.0);
    let unit = UnitId::new(0);
    let at = |generation| Incarnation { unit, generation };
    assert_eq!(supervision.start(at(3)), Some(first));
    supervision.died(member(Member::Scheduler, 3), second, 0.0);
    died(&mut supervision, Death::Tokenizer { number: 1 }, 0.0);
    assert_eq!(supervision.start(at(5)), Some(Suspicion::Nothing));
}

#[test]
fn the_death_of_an_executor_that_ran_an_older_step_makes_no_suspects() {
    let mut supervision = Supervision::new(Rules::default(), 1);
    let unit = UnitId::new(0);
    let at = |generation| Incarnation { unit, generation };
    died(&mut supervision, member(Member::Scheduler, 1), 0.0);
    let suspicion = Suspicion::All(cause("a"));
    supervision.died(member(Member::ExecutorThread, 1), suspicion.clone(), 0.0);
    assert_eq!(supervision.start(at(3)), Some(Suspicion::Nothing));
    supervision.died(member(Member::ExecutorThread, 3), suspicion.clone(), 0.0);
    assert_eq!(supervision.start(at(4)), Some(suspicion));
}

fn of_unit(unit: u32, member: Member, generation: u64) -> Death {
    let unit = UnitId::new(unit);
    Death::Member {
        member,
        since: Incarnation { unit, generation },
        in_hand: generation,
    }
}

fn numbers(restart: &Restart) -> Vec<(u32, u64)> {
    let units = restart.units.iter();
    units.map(|at| (at.unit.get(), at.generation)).collect()
}

#[test]
fn units_on_one_device_lose_their_executors_together_and_once() {
    let mut supervision = Supervision::new(Rules::default(), 4).on_devices([0, 1, 0, 1]);
    let lost = of_unit(2, Member::ExecutorThread, 1);
    let restart = restarted(died(&mut supervision, lost, 0.0));
    assert_eq!(restart.level, Level::Executor);
    assert_eq!(numbers(&restart), [(0, 2), (2, 2)]);
    // The other executor of the device reports the same loss.
    let late = of_unit(0, Member::ExecutorThread, 1);
    assert_eq!(died(&mut supervision, late, 0.0), Ruling::Ignored);
    assert_eq!(supervision.restarts_left(), 4);
    // A control actor takes no other unit with it.
    let control = of_unit(1, Member::Scheduler, 1);
    let restart = restarted(died(&mut supervision, control, 0.0));
    assert_eq!(numbers(&restart), [(1, 2)]);
    supervision.retire(UnitId::new(3));
    let lost = of_unit(1, Member::ExecutorThread, 1);
    let restart = restarted(died(&mut supervision, lost, 0.0));
    assert_eq!(numbers(&restart), [(1, 3)]);
}

#[test]
fn a_lost_device_makes_suspects_in_each_unit_that_ran_there() {
    let mut supervision = Supervision::new(Rules::default(), 4).on_devices([0, 0, 0, 1]);
    let at = |unit, generation| Incarnation {
        unit: UnitId::new(unit),
        generation,
    };
    for unit in [0, 1, 3] {
        assert_eq!(supervision.start(at(unit, 1)), Some(Suspicion::Nothing));
    }
    let named = Suspicion::One(IntakeId::new(5), cause("a"));
    supervision.died(of_unit(0, Member::ExecutorThread, 1), named.clone(), 0.0);
    assert_eq!(supervision.start(at(0, 2)), Some(named));
    let all = Suspicion::All(cause("a"));
    assert_eq!(supervision.start(at(1, 2)), Some(all));
    // It had not started, or has another device.
    assert_eq!(supervision.start(at(2, 2)), Some(Suspicion::Nothing));
    assert_eq!(supervision.start(at(3, 1)), Some(Suspicion::Nothing));
}

fn cause(place: &str) -> Signature {
    Signature {
        actor: "executor_thread",
        place: place.into(),
    }
}

fn ids<const N: usize>(ids: [u64; N]) -> impl Iterator<Item = IntakeId> {
    ids.into_iter().map(IntakeId::new)
}

#[test]
fn a_suspect_that_dies_alone_by_the_same_cause_is_convicted_and_the_others_are_cleared() {
    let mut blame = Blame::default();
    let all = Suspicion::All(cause("a"));
    assert_eq!(blame.died(&all, ids([3, 1, 2])), None);
    let first = blame.begin().expect("there are suspects");
    assert_eq!(first.get(), 1);
    assert!(!blame.passed_step(IntakeId::new(2)));
    assert!(!blame.passed_step(first));
    assert!(blame.passed_step(first));
    let second = blame.begin().expect("two suspects are left");
    assert_eq!(blame.died(&all, ids([2])), Some(second));
    assert!(!blame.has_suspects());
}

#[test]
fn deaths_by_different_causes_convict_no_request() {
    let mut blame = Blame::default();
    for place in ["a", "b", "c", "d", "e", "f"] {
        assert_eq!(blame.died(&Suspicion::All(cause(place)), ids([7])), None);
        assert_eq!(blame.begin(), Some(IntakeId::new(7)));
    }
    assert_eq!(blame.died(&Suspicion::Nothing, ids([7])), None);
    blame.begin();
    let named = Suspicion::One(IntakeId::new(7), cause("f"));
    assert_eq!(blame.died(&named, ids([7])), Some(IntakeId::new(7)));
}

#[test]
fn a_death_without_a_trial_convicts_no_request() {
    let mut blame = Blame::default();
    let named = Suspicion::One(IntakeId::new(3), cause("a"));
    for _ in 0..3 {
        assert_eq!(blame.died(&named, ids([])), None);
        assert_eq!(blame.died(&Suspicion::All(cause("a")), ids([4])), None);
    }
    assert_eq!(
        (blame.begin(), blame.on_trial()),
        (Some(IntakeId::new(4)), Some(IntakeId::new(4)))
    );
    blame.left(IntakeId::new(4));
    assert!(!blame.has_suspects() && blame.on_trial().is_none());
}

#[test]
fn a_suspect_is_not_convicted_while_steps_of_one_that_left_early_may_run() {
    let mut blame = Blame::default();
    let all = Suspicion::All(cause("a"));
    blame.died(&all, ids([1, 2]));
    blame.begin();
    blame.left(IntakeId::new(1));
    let second = blame.begin().expect("it is a suspect");
    let mut told = blame.clone();
    assert_eq!(blame.died(&all, ids([2])), None);
    assert_eq!(blame.begin(), Some(second));
    assert_eq!(blame.died(&all, ids([2])), Some(second));
    told.passed_step(second);
    assert_eq!(told.died(&all, ids([2])), Some(second));
}

#[test]
fn a_suspect_is_convicted_before_its_first_result_only_of_a_cause_of_which_the_one_before_was_cleared()
 {
    let mut blame = Blame::default();
    let (a, b) = (Suspicion::All(cause("a")), Suspicion::All(cause("b")));
    blame.died(&a, ids([1, 2]));
    blame.died(&b, ids([2]));
    let first = blame.begin().expect("it is a suspect");
    assert!(!blame.passed_step(first) && blame.passed_step(first));
    assert_eq!(blame.may_run(), Some(first));
    blame.begin();
    let mut other = blame.clone();
    assert_eq!(other.died(&b, ids([1, 2])), None);
    assert_eq!(blame.died(&a, ids([1, 2])), Some(IntakeId::new(2)));
}

#[test]
fn a_suspect_is_convicted_before_its_first_result_if_no_step_of_the_one_before_it_runs() {
    let mut blame = Blame::default();
    let all = Suspicion::All(cause("a"));
    blame.died(&all, ids([1, 2]));
    blame.begin();
    blame.left(IntakeId::new(1));
    blame.drained();
    blame.begin();
    assert_eq!(blame.died(&all, ids([2])), Some(IntakeId::new(2)));
}
