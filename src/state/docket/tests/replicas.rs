//! Tests of the docket of an engine with replicas.

use super::*;

/// Notes the results that concern the unit, as the owner does.
fn note_of_unit(docket: &mut Docket, update: RequestTokens) {
    let mut batch = vec![update];
    docket.drop_results_of_moved(UNIT, &mut batch);
    assert!(docket.note(at(3), &batch));
}

#[test]
fn the_result_of_a_suspect_whose_client_has_gone_lets_the_others_continue() {
    let mut docket = dead_twice();
    docket.ended(IntakeId::new(2));
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r0:2]");
    for token in [9, 10] {
        note_of_unit(&mut docket, news(IntakeId::new(0), &[token]));
    }
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "w0:4 [r1:0]");
    docket.ended(IntakeId::new(1));
    note_of_unit(&mut docket, last(IntakeId::new(1), 1));
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r0:4]");
}

#[test]
fn results_of_requests_that_have_moved_are_dropped() {
    let mut docket = running();
    let moved = docket.move_away(UNIT, &Suspicion::Nothing);
    assert_eq!(moved.len(), 3);
    docket.open(at(2), &Suspicion::Nothing);
    assert!(docket.route(moved[1], UnitId::new(1)));
    assert!(docket.route(moved[2], UNIT));
    let mut batch: Vec<RequestTokens> = moved.iter().map(|intake| news(*intake, &[9])).collect();
    docket.drop_results_of_moved(UNIT, &mut batch);
    let kept: Vec<IntakeId> = batch.iter().map(|update| update.intake).collect();
    assert_eq!(kept, moved[2..]);
}

#[test]
fn a_unit_that_has_died_gets_no_request_until_it_is_started_again() {
    let mut docket = running();
    let moved = docket.move_away(UNIT, &cause("a"));
    // The Router had chosen the unit before it died.
    assert!(!docket.route(moved[0], UNIT));
    assert!(docket.is_unrouted(moved[0]));
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "");
    docket.open(at(2), &cause("a"));
    assert!(!docket.has_requests_of(UNIT), "none waited for the start");
    assert!(docket.route(moved[0], UNIT));
    assert!(docket.has_requests_of(UNIT));
    assert!(!docket.is_unrouted(moved[0]));
    // No suspect: the others need not wait for it.
    assert!(docket.route(moved[1], UNIT));
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r0:2 r1:0]");
}

#[test]
fn a_request_that_continues_is_prefilled_again() {
    let prefilled = |docket: &Docket| {
        let routed = docket.routed().into_iter();
        let prefilled = routed.map(|(_, _, is_prefilled)| is_prefilled);
        prefilled.collect::<Vec<bool>>()
    };
    let mut docket = running();
    assert_eq!(prefilled(&docket), [true, false, false]);
    docket.open(at(2), &Suspicion::Nothing);
    assert_eq!(prefilled(&docket), [false; 3]);
    assert_eq!(shown(&docket.posts(UNIT, 1.0)), "[r0:2 r1:0 r2:0]");
    assert_eq!(prefilled(&docket), [false; 3]);
    assert!(docket.note(at(2), &[news(IntakeId::new(0), &[9])]));
    assert_eq!(prefilled(&docket), [true, false, false]);
}
