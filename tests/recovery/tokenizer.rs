//! The Tokenizer: it keeps the docket, and tells clients.

use std::sync::Arc;

use smallvec::SmallVec;
use souffleur_base::ids::{IntakeId, UnitId};
use souffleur_request::{FinishReason, RequestTimeouts};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::docket::Post;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::scheduler::news::{RequestEnd, RequestTokens};
use souffleur_state::scheduler::submission::Submission;
use souffleur_state::supervision::Incarnation;
use souffleur_state::supervision::blame::Suspicion;

use crate::parts::{End, Fault, Letter, Message, Node, rid};
use crate::world::World;

impl World<'_> {
    pub fn tokenize(&mut self, message: Message) {
        match message {
            Message::Generate(letter) => self.generate(letter),
            Message::Tokens {
                from,
                batch,
                admissions,
            } => self.tell(from, batch, &admissions),
            Message::TakeOver => self.take_over(),
            Message::Relink { at, suspicion } => self.relink(at, &suspicion),
            Message::HandOver { from, to } => {
                if self.effect() {
                    self.docket.hand_over(from, to);
                    self.send_posts(to);
                }
            }
            _ => unreachable!("no other message is for the Tokenizer"),
        }
    }

    fn generate(&mut self, letter: Letter) {
        let ask = letter.ask;
        self.in_hand = Some(letter);
        let units = &self.units;
        let serving = (0..units.len()).filter(|unit| !units[*unit].is_retired);
        let serving: SmallVec<[usize; 2]> = serving.collect();
        let unit = UnitId::new(serving[ask % serving.len()] as u32);
        if !self.effect() {
            return;
        }
        self.in_hand = None;
        let intake = self.docket.next_intake();
        self.of_intake.push(ask);
        let submission = self.submission(ask, intake);
        self.docket.enter(submission, unit, self.now_s);
        self.clients[ask].intake = Some(intake);
        self.send_posts(unit);
    }

    fn submission(&self, number: usize, intake: IntakeId) -> Submission {
        let ask = &self.scenario.asks[number];
        let sampling = SamplingParams {
            max_new_tokens: ask.max_new_tokens as u32,
            // No token is an end of sequence here; the Scheduler reserves all outputs of requests that ignore them.
            ignore_eos: !self.scenario.overcommits,
            sampling_seed: Some(number as u64),
            ..SamplingParams::default()
        };
        Submission {
            intake,
            logprobs: None,
            prompt: ask.prompt.as_slice().into(),
            rid: rid(number),
            namespace: Namespace::default(),
            sampling: Arc::new(sampling),
            opening: Arc::default(),
            anchors: Arc::default(),
            grammar: None,
            vectors: None,
            images: None,
            bypasses_cache: false,
            pooling: None,
            priority: None,
            cancel: self.clients[number].flag.clone(),
            submitted_s: self.now_s,
            timeouts: RequestTimeouts::default(),
            draft_texts: Default::default(),
        }
    }

    fn tell(&mut self, from: Incarnation, mut batch: Vec<RequestTokens>, admissions: &[IntakeId]) {
        if !self.effect() {
            return;
        }
        let mut left_out = None;
        if self.fault == Some(Fault::ToldOffByOne) {
            left_out = batch.last_mut().and_then(|last| last.tokens.pop());
        }
        let is_current = self.docket.note(from, &batch);
        if let Some(last) = batch.last_mut() {
            last.tokens.extend(left_out);
        }
        if !is_current {
            return;
        }
        for intake in admissions {
            self.docket.admitted(*intake, self.now_s);
        }
        let mut stops = Vec::new();
        for update in batch {
            let ask = self.of_intake[update.intake.index()];
            // Late results of a request that has ended.
            let Some(entry) = self.docket.get(update.intake) else {
                continue;
            };
            let (before, told) = (self.clients[ask].told, entry.told().len());
            self.clients[ask].told = told;
            self.check(told >= before, || {
                format!("request {ask}: told {before}, then {told}")
            });
            if !update.tokens.is_empty() {
                self.check_retractions(ask, update.num_retractions);
            }
            if self.advance_text(ask, &update.tokens) {
                stops.push(ask);
            } else if let Some(end) = update.end {
                self.finish(ask, &end);
            }
        }
        for ask in stops {
            let withdraw = Post::Withdraw {
                rid: rid(ask),
                kept: self.clients[ask].tokens.len(),
            };
            self.send_post(from.unit, withdraw);
        }
        self.send_posts(from.unit);
    }

    /// The count of a request's retractions goes on after deaths.
    fn check_retractions(&mut self, ask: usize, retractions: u32) {
        let before = std::mem::replace(&mut self.clients[ask].retractions, retractions);
        self.check(retractions >= before, || {
            format!("request {ask}: {before} retractions, then {retractions}")
        });
    }

    /// Sends tokens to a client. Returns true if they complete a stop string, which ends the request.
    fn advance_text(&mut self, ask: usize, tokens: &[u32]) -> bool {
        for &token in tokens {
            if !self.effect() {
                return false;
            }
            let client = &mut self.clients[ask];
            let expected = client.reference.get(client.tokens.len()).copied();
            client.tokens.push(token);
            let n = client.tokens.len();
            self.check(expected == Some(token), || {
                format!("request {ask}: token {n} is {token}, expected {expected:?}")
            });
            if self.scenario.asks[ask].stop_at == Some(n) {
                self.end_once(ask, End::Finished);
                return true;
            }
        }
        false
    }

    fn finish(&mut self, ask: usize, end: &RequestEnd) {
        let end = match end {
            RequestEnd::Finished(FinishReason::Abort) => End::Aborted,
            RequestEnd::Finished(_) => End::Finished,
            RequestEnd::Failed(_) => End::Failed,
        };
        self.end_once(ask, end);
    }

    /// Sends the terminal event, then removes the request: two effects.
    fn end_once(&mut self, ask: usize, end: End) {
        if self.effect() {
            self.end(ask, end);
        }
        self.remove(ask);
    }

    fn remove(&mut self, ask: usize) {
        if let Some(intake) = self.clients[ask].intake
            && self.effect()
        {
            self.docket.ended(intake);
        }
    }

    /// Gives the clients of a dead Tokenizer the rest of the tokens and ends in the docket.
    fn take_over(&mut self) {
        for intake in self.docket.intakes() {
            let ask = self.of_intake[intake.index()];
            if !self.clients[ask].ends.is_empty() {
                self.remove(ask);
                continue;
            }
            let Some(entry) = self.docket.get(intake) else {
                continue;
            };
            let (told, end) = (entry.told().to_vec(), entry.end().cloned());
            let n_sent = self.clients[ask].tokens.len().min(told.len());
            // The dead Tokenizer may have sent the whole stop string, but not the end.
            if n_sent > 0 && self.scenario.asks[ask].stop_at == Some(n_sent) {
                self.end_once(ask, End::Finished);
                continue;
            }
            if self.advance_text(ask, &told[n_sent..]) {
                continue;
            }
            if let Some(end) = end {
                self.finish(ask, &end);
            }
        }
    }

    fn relink(&mut self, at: Incarnation, suspicion: &Suspicion) {
        if !self.effect() {
            return;
        }
        self.units[at.unit.index()].link = at.generation;
        if let Some(convicted) = self.docket.open(at, suspicion) {
            let ask = self.of_intake[convicted.index()];
            let is_poison = self.scenario.asks[ask].poison.is_some();
            self.check(is_poison, || {
                format!("request {ask} is convicted, but did nothing")
            });
            let error = self
                .docket
                .get(convicted)
                .and_then(|entry| entry.end().cloned());
            let error = error.expect("a conviction ends the request");
            self.finish(ask, &error);
        }
        self.send_posts(at.unit);
    }

    fn send_posts(&mut self, unit: UnitId) {
        for mut post in self.docket.posts(unit, self.now_s) {
            if let Post::Resume(resume) = &mut post {
                self.seen.resumed += resume.requests.len() as u64;
                let retracted = resume.requests.iter();
                let retracted = retracted.filter(|request| request.retractions > 0);
                self.seen.resumed_retracted += retracted.count() as u64;
                if self.fault == Some(Fault::EntryTwice) {
                    resume.requests.extend(resume.requests.last().cloned());
                }
            }
            self.send_post(unit, post);
        }
    }

    fn send_post(&mut self, unit: UnitId, post: Post) {
        let link = self.units[unit.index()].link;
        let to = Node::Scheduler(unit.index());
        self.send(Node::Tokenizer, to, link, Message::Post(post));
    }
}
