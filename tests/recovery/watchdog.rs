//! The Watchdog: it starts units and Tokenizers, keeps what hosts have set, and gives up. And the checks of a
//! schedule's end.

use souffleur_base::ids::UnitId;
use souffleur_state::supervision::blame::Suspicion;
use souffleur_state::supervision::{Death, Incarnation, Level, Restart, Ruling};

use crate::parts::{End, Fault, Letter, Message, Node};
use crate::world::World;

/// Restarts allowed in any [`PERIOD_S`]: the promise, apart from the rules that the Watchdog is given.
const MAX_RESTARTS: usize = 5;
const PERIOD_S: f64 = 60.0;

impl World<'_> {
    pub fn watchdog(&mut self, message: Message) {
        match message {
            Message::Died { death, suspicion } => self.died(death, suspicion),
            Message::Build { at } => self.build(at),
            Message::BuildTokenizer(number) => self.build_tokenizer(number),
            Message::Generate(letter) => self.forward(letter),
            Message::SetPaused(paused) => {
                self.supervision.desired.paused = paused;
                for unit in 0..self.units.len() {
                    self.units[unit].must_pause &= paused;
                    let set = Message::SetPaused(paused);
                    self.post(Node::Watchdog, Node::Scheduler(unit), set);
                }
            }
            _ => unreachable!("no other message is for the Watchdog"),
        }
    }

    fn died(&mut self, death: Death, suspicion: Suspicion) {
        let ruling = self.supervision.died(death, suspicion, self.now_s);
        let now_s = self.now_s;
        let recent = self
            .restarts_s
            .iter()
            .filter(|time_s| now_s - **time_s <= PERIOD_S);
        let n_recent = recent.count();
        match ruling {
            Ruling::Ignored => {}
            Ruling::GivesUp => {
                self.check(n_recent == MAX_RESTARTS, || {
                    format!("gave up after {n_recent} restarts")
                });
                self.give_up();
            }
            Ruling::Restart(restart) => {
                self.check(n_recent < MAX_RESTARTS, || {
                    format!("a restart after {n_recent} others")
                });
                self.restarts_s.push(now_s);
                self.restart(restart, death);
            }
        }
    }

    fn restart(&mut self, restart: Restart, death: Death) {
        let me = Node::Watchdog;
        if let Some(number) = restart.tokenizer {
            self.post(me, me, Message::BuildTokenizer(number));
        }
        for at in restart.units {
            let index = at.unit.index();
            self.kill_control(index);
            if restart.level >= Level::Executor {
                self.kill_thread(index);
            }
            let is_member = matches!(death, Death::Member { .. });
            if self.scenario.retires && index == 1 && is_member {
                self.retire(at.unit);
            } else {
                self.post(me, me, Message::Build { at });
            }
        }
    }

    fn retire(&mut self, unit: UnitId) {
        self.supervision.retire(unit);
        self.kill_thread(unit.index());
        self.units[unit.index()].is_retired = true;
        self.hand_over(unit);
    }

    fn hand_over(&mut self, from: UnitId) {
        let to = UnitId::new(0);
        self.post(
            Node::Watchdog,
            Node::Tokenizer,
            Message::HandOver { from, to },
        );
    }

    fn build(&mut self, at: Incarnation) {
        let Some(mut suspicion) = self.supervision.start(at) else {
            return;
        };
        let (index, generation) = (at.unit.index(), at.generation);
        self.build_control(at);
        if self.units[index].thread.is_none() {
            let since = self.supervision.executor_since(at.unit);
            self.start_thread(index, since, generation);
        }
        let is_paused = self.supervision.desired.paused;
        self.units[index].open_at_pause = 0;
        if is_paused && self.fault != Some(Fault::PauseForgotten) {
            self.scheduler(index).set_paused(true);
        }
        if self.fault == Some(Fault::SoloForgotten) {
            suspicion = Suspicion::Nothing;
        }
        let me = Node::Watchdog;
        self.post(me, Node::Executor(index), Message::Reset { generation });
        self.post(me, Node::Tokenizer, Message::Relink { at, suspicion });
    }

    fn build_tokenizer(&mut self, number: u64) {
        self.tokenizer = Some(number);
        let me = Node::Watchdog;
        self.post(me, Node::Tokenizer, Message::TakeOver);
        for unit in 0..self.units.len() {
            if self.units[unit].is_retired {
                self.hand_over(UnitId::new(unit as u32));
            }
        }
        for letter in std::mem::take(&mut self.letters) {
            self.post(me, Node::Tokenizer, Message::Generate(letter));
        }
    }

    fn forward(&mut self, letter: Letter) {
        if self.fault == Some(Fault::DeadLetterDropped) {
            return;
        }
        if self.tokenizer.is_some() {
            self.post(Node::Watchdog, Node::Tokenizer, Message::Generate(letter));
        } else {
            self.letters.push(letter);
        }
    }

    /// Every client gets its terminal event before the process ends.
    fn give_up(&mut self) {
        for ask in 0..self.clients.len() {
            if self.clients[ask].has_arrived && self.clients[ask].ends.is_empty() {
                self.end(ask, End::EngineDown);
            }
        }
        self.has_given_up = true;
    }

    pub fn check_ends(&mut self) {
        for ask in 0..self.clients.len() {
            self.check_end(ask);
        }
        if self.has_given_up {
            return;
        }
        let n_entries = self.docket.len();
        self.check(n_entries == 0, || {
            format!("{n_entries} requests are left in the docket")
        });
        for unit in 0..self.units.len() {
            self.check_idle(unit);
        }
    }

    fn check_end(&mut self, ask: usize) {
        let client = &self.clients[ask];
        let (n_ends, has_all) = (client.ends.len(), client.tokens == client.reference);
        let is_over = n_ends == 1 || (self.has_given_up && !client.has_arrived);
        let is_poison = self.scenario.asks[ask].poison.is_some();
        let is_cancelled = client.flag.is_raised();
        let is_right = match client.ends.first() {
            None | Some(End::InHand) => true,
            Some(End::Finished) => has_all,
            Some(End::Aborted) => is_cancelled,
            Some(End::Failed) => is_poison,
            Some(End::EngineDown) => self.has_given_up,
        };
        let ends = format!("{:?}", client.ends);
        self.check(is_over && is_right, || {
            format!("request {ask} ended with {ends}, its tokens are complete: {has_all}")
        });
    }

    fn check_idle(&mut self, unit: usize) {
        if self.units[unit].is_retired {
            return;
        }
        let Some(control) = &self.units[unit].control else {
            return self.check(false, || format!("unit {unit} was not started again"));
        };
        let (Some(scheduler), Some(cache), Some(pools)) =
            (&control.scheduler, &control.cache, &control.pools)
        else {
            return self.check(false, || format!("unit {unit} lacks an actor"));
        };
        let stats = scheduler.stats();
        let free = pools.pages.free_pages() + cache.page_size().full_pages(cache.total_size());
        let is_whole = stats.is_idle_and_whole() && free == pools.pages.total_pages();
        self.check(is_whole, || {
            format!("unit {unit} is not idle and whole: {stats:?}")
        });
    }
}
