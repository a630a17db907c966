//! The protocol of recovery without actors: messages, deaths, and the docket and supervision that outlive them.
//!
//! Scheduler, RadixCache and Allocator are the real states; the executor is the fake one, which checks all K/V. Each
//! pair of sender and receiver has a queue. A move takes the oldest message of one queue, chosen at random, and runs
//! its handler. Each message that a handler sends and each change of the docket or of a client is an effect: a handler
//! that dies after the k-th effect has no later ones.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use souffleur_executor::fake::expected_output;
use souffleur_state::control::ControlSetup;
use souffleur_state::docket::Docket;
use souffleur_state::supervision::{FIRST_GENERATION, Incarnation, Rules, Supervision};

use crate::parts::{
    Client, Control, End, Envelope, Fault, Fuse, HostEvent, Letter, MAX_NODES, Message, Node, Seen,
    Unit, incarnation, rid,
};
use crate::scenario::{Ask, Random, Scenario};

pub const VOCAB: u32 = 64;
/// More moves than any schedule needs: a longer one starves a request.
const MAX_MOVES: u32 = 8_000;

pub struct World<'a> {
    pub scenario: &'a Scenario,
    pub fault: Option<Fault>,
    random: Random,
    setup: &'a ControlSetup,
    pub queues: Vec<VecDeque<Envelope>>,
    pub ready: Vec<usize>,
    n_sent: u64,
    pub now_s: f64,
    pub moves: u32,
    n_host_events: usize,
    host_events: Vec<(u32, HostEvent)>,
    pub next_death: usize,
    pub random_deaths: u32,
    pub fuse: Fuse,
    /// The number of the running Tokenizer.
    pub tokenizer: Option<u64>,
    pub in_hand: Option<Letter>,
    pub docket: Docket,
    pub supervision: Supervision,
    pub letters: Vec<Letter>,
    pub units: Vec<Unit>,
    pub clients: Vec<Client>,
    /// The request of each intake number.
    pub of_intake: Vec<usize>,
    pub restarts_s: Vec<f64>,
    pub seen: Seen,
    pub has_given_up: bool,
    pub violation: Option<String>,
}

fn rules(fault: Option<Fault>) -> Rules {
    let mut rules = Rules::default();
    if fault == Some(Fault::IntensityOffByOne) {
        rules.restarts.limit += 1;
    }
    rules
}

fn host_events(scenario: &Scenario) -> Vec<(u32, HostEvent)> {
    let mut events: Vec<(u32, HostEvent)> = Vec::new();
    for (number, ask) in scenario.asks.iter().enumerate() {
        events.push((ask.at, HostEvent::Arrive(number)));
        events.extend(ask.cancel_at.map(|at| (at, HostEvent::Cancel(number))));
    }
    if let Some((from, until)) = scenario.pause {
        events.push((from, HostEvent::SetPaused(true)));
        events.push((until, HostEvent::SetPaused(false)));
    }
    events.sort_by_key(|(at, _)| *at);
    events
}

fn client((number, ask): (usize, &Ask)) -> Client {
    let seed = number as u64;
    let mut reference = expected_output(&ask.prompt, seed, ask.max_new_tokens, VOCAB);
    reference.truncate(ask.stop_at.unwrap_or(usize::MAX));
    Client {
        reference,
        ..Client::default()
    }
}

impl<'a> World<'a> {
    pub fn new(scenario: &'a Scenario, setup: &'a ControlSetup, fault: Option<Fault>) -> Self {
        let unit = |_| Unit {
            control: None,
            thread: None,
            is_retired: false,
            link: 0,
            must_pause: false,
            open_at_pause: 0,
            last_step: 0,
            started: FxHashMap::default(),
        };
        let mut world = Self {
            random: Random::new(scenario.order),
            setup,
            queues: (0..MAX_NODES * MAX_NODES)
                .map(|_| VecDeque::new())
                .collect(),
            ready: Vec::new(),
            n_sent: 0,
            now_s: 0.0,
            moves: 0,
            n_host_events: 0,
            host_events: host_events(scenario),
            next_death: 0,
            random_deaths: 0,
            fuse: Fuse::default(),
            tokenizer: Some(FIRST_GENERATION),
            in_hand: None,
            docket: Docket::default(),
            supervision: Supervision::new(rules(fault), scenario.n_units),
            letters: Vec::new(),
            units: (0..scenario.n_units).map(unit).collect(),
            clients: scenario.asks.iter().enumerate().map(client).collect(),
            of_intake: Vec::new(),
            restarts_s: Vec::new(),
            seen: Seen::default(),
            has_given_up: false,
            violation: None,
            scenario,
            fault,
        };
        for unit in 0..world.units.len() {
            let at = incarnation(unit, FIRST_GENERATION);
            world.post(Node::Watchdog, Node::Watchdog, Message::Build { at });
        }
        world
    }

    /// Runs the schedule to its end.
    pub fn run(mut self) -> Result<Seen, String> {
        while self.violation.is_none() && !self.has_given_up && self.advance() {
            if self.moves >= MAX_MOVES {
                self.violation = Some("a request starves".to_owned());
            }
        }
        if self.violation.is_none() {
            self.check_ends();
        }
        self.add_counts();
        // Memory in messages and states is not lost.
        for unit in &self.units {
            if let Some(control) = &unit.control {
                control.ledger.close();
            }
        }
        match self.violation.take() {
            Some(violation) => Err(violation),
            None => Ok(self.seen),
        }
    }

    fn add_counts(&mut self) {
        for unit in 0..self.units.len() {
            self.count_retractions(unit);
        }
        let seen = &mut self.seen;
        seen.with_retractions = u64::from(seen.retractions > 0);
        seen.moves = u64::from(self.moves);
        seen.deaths = u64::from(self.random_deaths);
        seen.gave_up = u64::from(self.has_given_up);
        seen.stale_messages = self.docket.stale_messages();
        for client in &self.clients {
            seen.deaths += u64::from(client.kills);
            seen.convicted += u64::from(client.ends.contains(&End::Failed));
        }
        for unit in &self.units {
            seen.handed_over += u64::from(unit.is_retired);
        }
    }

    /// Adds the retractions of a unit's Scheduler, at its end.
    pub fn count_retractions(&mut self, unit: usize) {
        let control = self.units[unit].control.as_ref();
        let scheduler = control.and_then(|control| control.scheduler.as_ref());
        self.seen.retractions += scheduler.map_or(0, |scheduler| scheduler.stats().retractions);
    }

    /// Makes one move; false if there is none.
    fn advance(&mut self) -> bool {
        while let Some(&(at, event)) = self.host_events.get(self.n_host_events)
            && (at <= self.moves || self.ready.is_empty())
        {
            self.n_host_events += 1;
            self.host(event);
        }
        if self.ready.is_empty() {
            return false;
        }
        let place = match self.scenario.order {
            0 => 0,
            _ => self.random.below(self.ready.len()),
        };
        let place = self.first_sent(place);
        let queue = self.ready[place];
        let envelope = self.queues[queue]
            .pop_front()
            .expect("ready queues hold messages");
        self.ready.remove(place);
        if !self.queues[queue].is_empty() {
            self.ready.push(queue);
        }
        let to = Node::from_index(queue % MAX_NODES);
        self.moves += 1;
        self.now_s += self.scenario.tick_s;
        self.arm(to);
        self.deliver(to, envelope);
        if self.fuse.left.is_some() {
            self.die(to);
        }
        true
    }

    /// With mailboxes, the place of the oldest message for the receiver of the message at `place`.
    fn first_sent(&self, place: usize) -> usize {
        if !self.scenario.has_mailboxes {
            return place;
        }
        let to = self.ready[place] % MAX_NODES;
        let same = (0..self.ready.len()).filter(|place| self.ready[*place] % MAX_NODES == to);
        let sent = |place: &usize| {
            self.queues[self.ready[*place]]
                .front()
                .map(|first| first.number)
        };
        same.min_by_key(sent).unwrap_or(place)
    }

    fn host(&mut self, event: HostEvent) {
        match event {
            HostEvent::Arrive(ask) => {
                self.clients[ask].has_arrived = true;
                let letter = Letter {
                    ask,
                    deaths_in_hand: 0,
                };
                self.post(Node::Host, Node::Tokenizer, Message::Generate(letter));
            }
            HostEvent::Cancel(ask) => {
                self.clients[ask].flag.raise();
                for unit in 0..self.units.len() {
                    let cancel = Message::Cancel(rid(ask));
                    self.post(Node::Host, Node::Scheduler(unit), cancel);
                }
            }
            HostEvent::SetPaused(paused) => {
                self.post(Node::Host, Node::Watchdog, Message::SetPaused(paused));
            }
        }
    }

    /// The life of a node; `None` while it is dead.
    fn life(&self, node: Node) -> Option<u64> {
        match node {
            Node::Host | Node::Watchdog => Some(0),
            Node::Tokenizer => self.tokenizer,
            Node::Executor(unit) => Some(self.units[unit].thread.as_ref()?.since),
            Node::Scheduler(unit) | Node::RadixCache(unit) | Node::Allocator(unit) => {
                let control = self.units[unit].control.as_ref()?;
                let is_alive = match node {
                    Node::Scheduler(_) => control.scheduler.is_some(),
                    Node::RadixCache(_) => control.cache.is_some(),
                    _ => control.pools.is_some(),
                };
                is_alive.then_some(control.generation)
            }
        }
    }

    /// Sends a message to the receiver that runs now, without counting an effect.
    pub fn post(&mut self, from: Node, to: Node, message: Message) {
        match self.life(to) {
            Some(address) => self.enqueue(from, to, (message, address)),
            None => self.drop_message(message),
        }
    }

    /// Sends a message to one life of a receiver: an effect. It is dropped if that life has ended.
    pub fn send(&mut self, from: Node, to: Node, address: u64, message: Message) {
        if self.effect() && self.life(to) == Some(address) {
            self.enqueue(from, to, (message, address));
        } else {
            self.drop_message(message);
        }
    }

    fn enqueue(&mut self, from: Node, to: Node, (message, address): (Message, u64)) {
        self.n_sent += 1;
        let number = self.n_sent;
        let queue = from.index() * MAX_NODES + to.index();
        if self.queues[queue].is_empty() {
            self.ready.push(queue);
        }
        self.queues[queue].push_back(Envelope {
            message,
            address,
            number,
        });
    }

    fn deliver(&mut self, to: Node, envelope: Envelope) {
        debug_assert_eq!(self.life(to), Some(envelope.address));
        let message = envelope.message;
        match to {
            Node::Host => {}
            Node::Watchdog => self.watchdog(message),
            Node::Tokenizer => self.tokenize(message),
            Node::Scheduler(unit) => self.schedule(unit, message),
            Node::RadixCache(unit) => self.plan(unit, message),
            Node::Allocator(unit) => self.reserve(unit, message),
            Node::Executor(unit) => self.execute(unit, message),
        }
    }

    pub fn build_control(&mut self, at: Incarnation) {
        let states = self.setup.build().expect("the pools are small");
        self.units[at.unit.index()].control = Some(Control {
            generation: at.generation,
            scheduler: Some(states.scheduler),
            cache: Some(states.cache),
            pools: Some(states.pools),
            ledger: states.ledger,
            tokenizer: self.tokenizer.unwrap_or(0),
            admissions: Vec::new(),
        });
    }

    /// Sends a terminal event.
    pub fn end(&mut self, ask: usize, end: End) {
        let client = &mut self.clients[ask];
        client.ends.push(end);
        let n = client.ends.len();
        self.check(n == 1, || format!("request {ask} has {n} terminal events"));
    }

    pub fn check(&mut self, is_kept: bool, violation: impl FnOnce() -> String) {
        if !is_kept && self.violation.is_none() {
            self.violation = Some(violation());
        }
    }
}
