//! Tests of truncated, damaged and forged message logs.

use super::*;

#[test]
fn a_truncated_log_is_replayed_up_to_its_last_complete_block() {
    let log = log_of(NO_LIMIT, short);
    let whole = replay_of(&log).expect("it can be replayed").counts.records;
    let mut last = 0;
    for cut in (0..log.len()).step_by(11).chain([log.len() - 1]) {
        match replay_of(&log[..cut]) {
            Err(error) => assert!(matches!(error, ReplayError::Log(_)) && last == 0, "{error}"),
            Ok(replayed) => {
                assert_eq!(
                    (replayed.difference, replayed.ending),
                    (None, LogEnd::CutOff)
                );
                assert!(replayed.counts.records >= last);
                last = replayed.counts.records;
            }
        }
    }
    assert_eq!(last, whole);
}

#[test]
fn a_damaged_log_is_an_error_and_not_a_difference() {
    let log = log_of(NO_LIMIT, short);
    for place in (0..log.len()).step_by(13) {
        let mut damaged = log.clone();
        damaged[place] ^= 1 << (place % 8);
        match replay_of(&damaged) {
            Err(ReplayError::Log(_)) => (),
            Err(error) => panic!("byte {place}: {error}"),
            // The damaged length is beyond the end of the file.
            Ok(replayed) => assert_eq!(replayed.ending, LogEnd::CutOff, "byte {place}"),
        }
    }
}

#[test]
fn the_error_for_an_inconsistent_log_names_the_record() {
    let start = Entry::Start { generation: 1 };
    let outcomes = entries_of(&log_of(NO_LIMIT, busy));
    let first = |message: &str| {
        let found = outcomes.iter().find(|entry| entry.message() == message);
        found.expect("a busy engine has it").clone()
    };
    let plain = outcomes.iter().find_map(|entry| match entry {
        Entry::Submit(request) => Some(request.clone()),
        _ => None,
    });
    let submit = |change: &dyn Fn(&mut SubmitEntry)| {
        let mut request = plain.clone().expect("a busy engine has a plain request");
        change(&mut request);
        Entry::Submit(request)
    };
    let check = |entries: &[Entry], parts: &[&str]| {
        let error = replay_of(&forged(&setup(), entries)).expect_err("it is inconsistent");
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    };
    check(&[Entry::Next], &["record 1", "no start record"]);
    check(
        &[start.clone(), first("StepPlanned")],
        &["record 2", "no plan was requested"],
    );
    check(
        &[start.clone(), first("PlanStep")],
        &["record 2", "no call precedes it"],
    );
    check(
        &[start.clone(), Entry::Next, Entry::CancelAll],
        &["record 3", "CancelAll"],
    );
    let empty = submit(&|request| request.prompt = Arc::from([]));
    check(&[start.clone(), empty], &["record 2", "empty prompt"]);
    let odd = submit(&|request| request.sampling_json = "{\"n\": []}".to_owned());
    check(&[start, odd], &["record 2", "sampling parameters"]);
}

#[test]
fn a_call_without_a_message_keeps_the_pending_plan() {
    let mut entries = entries_of(&log_of(NO_LIMIT, busy));
    let is_answer = |entry: &Entry| entry.message() == "StepPlanned";
    let answer = entries
        .iter()
        .position(is_answer)
        .expect("a plan is answered");
    let nothing = Entry::Outcome(Box::new(NextDigest::Nothing));
    entries.splice(answer..answer, [Entry::Next, nothing]);
    // The two new entries, the answer and its outcome.
    entries.truncate(answer + 4);
    let replayed = replay_of(&forged(&setup(), &entries)).expect("it can be replayed");
    assert_eq!(replayed.difference, None);
}

#[test]
fn a_log_with_excessive_sizes_or_another_magic_number_is_refused() {
    type Enlarge = fn(&mut SchedulerLimits);
    let enlarge: [(&str, Enlarge); 3] = [
        ("total_pages", |limits| limits.total_pages = usize::MAX),
        ("windows.total_pages", |limits| {
            let total_pages = usize::MAX;
            limits.windows = Some(WindowLimits {
                tokens: 12,
                total_pages,
            });
        }),
        ("states.total_slots", |limits| {
            let total_slots = usize::MAX;
            limits.states = Some(StateLimits {
                total_slots,
                grid_tokens: 16,
            });
        }),
    ];
    for (name, enlarge) in enlarge {
        let mut large = setup();
        enlarge(&mut large.limits);
        let error = replay_of(&forged(&large, &[])).expect_err("no pool is so large");
        assert!(error.to_string().contains(name), "{error}");
    }
    let mut bomb = file::opening(&Header::new(&setup())).expect("it is plain data");
    let n_header = bomb.len();
    bomb.extend(file::block(&vec![0; file::MAX_BLOCK_BYTES + 1]).expect("memory can be written"));
    let error = replay_of(&bomb).expect_err("the block is too large");
    let text = error.to_string();
    assert!(
        text.contains(&format!("byte {n_header}")) && text.contains("limit"),
        "{text}"
    );
    let text = replay_of(b"SOUFLOG\x02 and more")
        .expect_err("another format")
        .to_string();
    assert!(text.contains("not a message log"), "{text}");
}
