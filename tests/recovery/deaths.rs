//! Deaths: at a message, or after some effects of its handler.

use souffleur_state::supervision::blame::Suspicion;
use souffleur_state::supervision::{Death, Member};

use crate::parts::{End, Fuse, Letter, MAX_NODES, Message, Node, incarnation, signature};
use crate::world::World;

impl World<'_> {
    /// Lets the handler of this move die if a death is due. Hosts and the Watchdog do not die.
    pub fn arm(&mut self, to: Node) {
        self.fuse = Fuse::default();
        let Some(death) = self.scenario.deaths.get(self.next_death).copied() else {
            return;
        };
        if death.at > self.moves || matches!(to, Node::Host | Node::Watchdog) {
            return;
        }
        self.next_death += 1;
        self.random_deaths += 1;
        let suspicion = self.random_suspicion(to);
        self.light(to, death.after_effects, suspicion);
    }

    /// The suspicion of a death that no request causes. The first request is named by deaths of different causes, and
    /// each request by at most one death of the cause that several deaths share.
    fn random_suspicion(&self, to: Node) -> Suspicion {
        let number = self.next_death;
        let unique = signature(to, &format!("random {number}"));
        let intake_of = |ask: usize| self.clients.get(ask)?.intake;
        match (number % 4, intake_of(0), intake_of(number / 4)) {
            (0, ..) => Suspicion::Nothing,
            (2, Some(first), _) => Suspicion::One(first, unique),
            (3, _, Some(other)) => Suspicion::One(other, signature(to, "random")),
            _ => Suspicion::All(unique),
        }
    }

    /// The handler of `node` dies after some more effects.
    pub fn light(&mut self, node: Node, effects: u32, cause: Suspicion) {
        self.fuse.left = Some(effects);
        self.fuse.cause = Some(cause);
        // The note of a dying actor closes the ledger before the actor's memory is dropped.
        if let Node::Scheduler(unit) | Node::RadixCache(unit) | Node::Allocator(unit) = node
            && let Some(control) = &self.units[unit].control
        {
            control.ledger.close();
        }
    }

    /// Counts an effect; false if the handler has died before it.
    pub fn effect(&mut self) -> bool {
        match &mut self.fuse.left {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    pub fn die(&mut self, node: Node) {
        let suspicion = self.fuse.cause.take().unwrap_or(Suspicion::Nothing);
        self.fuse = Fuse::default();
        let death = match node {
            Node::Host | Node::Watchdog => return,
            Node::Tokenizer => {
                let number = self
                    .tokenizer
                    .take()
                    .expect("only a running Tokenizer dies");
                if let Some(mut letter) = self.in_hand.take() {
                    letter.deaths_in_hand += 1;
                    self.return_letter(letter);
                }
                Death::Tokenizer { number }
            }
            Node::Scheduler(unit) => self.kill_member(unit, Member::Scheduler),
            Node::RadixCache(unit) => self.kill_member(unit, Member::RadixCache),
            Node::Allocator(unit) => self.kill_member(unit, Member::Allocator),
            Node::Executor(unit) => self.kill_member(unit, Member::ExecutorThread),
        };
        self.purge(node);
        let suspicion = match node {
            Node::Tokenizer => Suspicion::Nothing,
            _ => suspicion,
        };
        self.post(node, Node::Watchdog, Message::Died { death, suspicion });
    }

    fn kill_member(&mut self, unit: usize, member: Member) -> Death {
        let (since, in_hand) = match member {
            Member::ExecutorThread => {
                let thread = self.units[unit].thread.take();
                let thread = thread.expect("only a running thread dies");
                (thread.since, thread.generation)
            }
            _ => {
                if member == Member::Scheduler {
                    self.count_retractions(unit);
                }
                let control = self.units[unit].control.as_mut();
                let control = control.expect("only a running actor dies");
                control.ledger.close();
                match member {
                    Member::Scheduler => drop(control.scheduler.take()),
                    Member::RadixCache => drop(control.cache.take()),
                    _ => drop(control.pools.take()),
                }
                (control.generation, control.generation)
            }
        };
        Death::Member {
            member,
            since: incarnation(unit, since),
            in_hand,
        }
    }

    /// Ends all actors of a unit, and drops their messages.
    pub fn kill_control(&mut self, unit: usize) {
        self.count_retractions(unit);
        if let Some(control) = &self.units[unit].control {
            control.ledger.close();
        }
        for node in [
            Node::Scheduler(unit),
            Node::RadixCache(unit),
            Node::Allocator(unit),
        ] {
            self.purge(node);
        }
        self.units[unit].control = None;
    }

    pub fn kill_thread(&mut self, unit: usize) {
        self.purge(Node::Executor(unit));
        self.units[unit].thread = None;
    }

    /// Drops the mailbox of a node. Requests that a Tokenizer has not opened return to the Watchdog.
    fn purge(&mut self, node: Node) {
        for from in 0..MAX_NODES {
            let queue = from * MAX_NODES + node.index();
            if self.queues[queue].is_empty() {
                continue;
            }
            self.ready.retain(|ready| *ready != queue);
            for envelope in std::mem::take(&mut self.queues[queue]) {
                self.drop_message(envelope.message);
            }
        }
    }

    pub fn drop_message(&mut self, message: Message) {
        if let Message::Generate(letter) = message {
            self.return_letter(letter);
        }
    }

    fn return_letter(&mut self, letter: Letter) {
        if letter.deaths_in_hand >= 2 {
            return self.end(letter.ask, End::InHand);
        }
        self.seen.dead_letters += 1;
        let returned = Message::Generate(letter);
        self.post(Node::Tokenizer, Node::Watchdog, returned);
    }
}
