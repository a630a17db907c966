use super::*;
use crate::messages::Asked;
use souffleur_request::Prompt;

fn asked(rid: &str) -> Asked {
    let mut request = GenerateRequest::new(Prompt::Tokens([1, 2].into()));
    request.rid = RequestId::new(rid);
    let (sink, _) = EventSink::channel(request.rid.clone(), 1, None);
    Asked {
        request,
        sink,
        cancel: CancelFlag::default(),
    }
}

fn call<const N: usize>(rids: [&str; N]) -> NewCall {
    NewCall::new(Generate::call(rids.map(asked).into()))
}

/// Reads the next request of a call.
fn read(call: &mut NewCall) {
    let (index, asked) = call.next().expect("a request is unread");
    let arrival = Arrival::new(asked, call.prompts.index_of(index));
    call.arrivals.push_back(arrival);
}

#[test]
fn all_requests_that_were_not_submitted_are_listed_from_the_oldest_call_on() {
    let mut intake = Intake::new();
    for (id, rids) in [(2, ["c", "d"]), (1, ["a", "b"])] {
        let mut call = call(rids);
        read(&mut call);
        read(&mut call);
        let prompts = [PromptState::Waiting, PromptState::Waiting].into();
        let call = Call::new(call.arrivals, prompts, call.since);
        intake.put_back(CallId(id), call);
    }
    let mut partly_read = call(["e", "f"]);
    read(&mut partly_read);
    intake.arrived.push_back(partly_read);
    let rids: Vec<&str> = intake.rids().map(|(rid, _)| rid.as_str()).collect();
    assert_eq!(rids, ["a", "b", "c", "d", "e", "f"]);
    let opened = intake.calls.get_mut(&CallId(1)).expect("it was put back");
    opened.arrivals.pop_front();
    assert_eq!(intake.rids().next().map(|(rid, _)| rid.as_str()), Some("b"));
}
