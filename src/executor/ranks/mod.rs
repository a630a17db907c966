//! Runs a model on several ranks: an executor for each, on its own thread.
//!
//! Every rank has a part of the weights and of the KV memory, gets the same plans, and samples for every row; rank 0
//! answers. A step that one rank loses is lost on all. Rank 0 alone has the vision tower: the others get no slices of
//! images, and wait for it at the step's first collective.
//!
//! Ranks on CPUs wait for each other on their threads, and go on together after a lost step. Ranks on devices wait on
//! these: their leader ends the collectives of all when a rank fails or the step takes too long, and the ranks must be
//! loaded again.

mod parts;
mod store;
#[cfg(test)]
mod tests;
mod thread;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use self::thread::{Answer, Failure, Order, RankThread};
use crate::vision::EncodedImage;
use crate::{DeviceLost, Executor, Launch};
use souffleur_base::beat::Beat;
use souffleur_base::error::{LoadError, StepError};
use souffleur_model::loader::LoadProgress;
use souffleur_state::step::{RowResult, StepOutput, StepPlan};

pub(crate) use self::store::{Exchange, RankPort, RanksStore};
pub(crate) use self::thread::{Collectives, LoadFailure, MakeRank, RankExecutor, Reporter};

/// How long ranks on devices may still run after their collectives have been ended.
const GRACE: Duration = Duration::from_secs(1);
/// How often the leader asks devices for failures while it waits for the ranks.
const GLANCE: Duration = Duration::from_millis(20);

/// The parts of a group of ranks.
pub(crate) struct GroupParts {
    /// In rank order.
    pub(crate) makers: Vec<MakeRank>,
    /// How long a rank waits for the others; on devices, how long a part of a step may take.
    pub(crate) limit: Duration,
    /// `None` if the ranks wait for each other on their threads.
    pub(crate) collectives: Option<Arc<dyn Collectives>>,
    pub(crate) store: Option<RanksStore>,
}

/// Several executors that run one model.
pub struct Ranks {
    members: Vec<Member>,
    answers: Receiver<(usize, Answer)>,
    limit: Duration,
    collectives: Option<Arc<dyn Collectives>>,
    store: Option<RanksStore>,
    /// Images that rank 0 has encoded.
    encoded: Vec<EncodedImage>,
    /// Why no further step can run.
    lost: Option<String>,
}

struct Member {
    thread: RankThread,
    poll: Poll,
    /// Whether the rank has not answered in time.
    hangs: bool,
}

/// Whether a rank has ended the oldest step in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Poll {
    Unasked,
    Asked,
    HasEnded,
}

impl Ranks {
    /// Loads the ranks.
    ///
    /// # Errors
    /// The failure of a rank, preferably of one that failed by itself.
    ///
    /// # Panics
    /// If there are no ranks.
    pub(crate) fn load(parts: GroupParts, progress: LoadProgress<'_>) -> Result<Self, LoadError> {
        let n_ranks = parts.makers.len();
        assert!(n_ranks > 0, "a model must have a rank");
        let (sender, answers) = channel();
        let mut ranks = Self {
            members: Vec::with_capacity(n_ranks),
            answers,
            limit: parts.limit,
            collectives: parts.collectives,
            store: parts.store,
            encoded: Vec::new(),
            lost: None,
        };
        for maker in parts.makers.into_iter().enumerate() {
            let thread = RankThread::spawn(maker, ranks.collectives.clone(), &sender)?;
            ranks.members.push(Member {
                thread,
                poll: Poll::Unasked,
                hangs: false,
            });
        }
        drop(sender);
        ranks.wait_until_loaded(progress)?;
        Ok(ranks)
    }

    /// Waits for all ranks, also if one fails, as their threads are joined afterwards.
    fn wait_until_loaded(&mut self, progress: LoadProgress<'_>) -> Result<(), LoadError> {
        let mut answers = self.no_answers();
        let (mut deadline, mut has_failed, mut silence) = (None, false, None);
        while answers.iter().any(Option::is_none) {
            match self.receive(deadline) {
                Ok((rank, Answer::Progress(done, total))) => {
                    if rank == 0 {
                        progress(done, total);
                    }
                    if has_failed && deadline.is_some() {
                        deadline = Some(Instant::now() + GRACE);
                    }
                }
                Ok((_, Answer::Connects)) => {
                    deadline.get_or_insert(Instant::now() + self.limit);
                }
                Ok((rank, answer)) => {
                    has_failed |= matches!(answer, Answer::Loaded(Err(_)));
                    answers[rank] = Some(answer);
                    if has_failed && self.collectives.is_some() {
                        deadline = Some(Instant::now() + GRACE);
                    }
                }
                Err(failure) => {
                    silence = Some(self.end(failure, &mut answers));
                    break;
                }
            }
        }
        let mut of_others = None;
        for answer in answers.into_iter().flatten() {
            match answer {
                Answer::Loaded(Err(LoadFailure::Own(error))) => return Err(error),
                Answer::Loaded(Err(LoadFailure::Others(reason))) => of_others = Some(reason),
                _ => {}
            }
        }
        match of_others.or(silence) {
            Some(reason) => Err(LoadError::Device(reason)),
            None => Ok(()),
        }
    }

    fn no_answers(&self) -> Vec<Option<Answer>> {
        self.members.iter().map(|_| None).collect()
    }

    /// The next answer of a rank.
    ///
    /// # Errors
    /// After the deadline, if there are no ranks any more, or if a device has noticed a failure, which is returned.
    fn receive(&self, deadline: Option<Instant>) -> Result<(usize, Answer), Option<String>> {
        loop {
            let left = deadline.map_or(Duration::MAX, |at| {
                at.saturating_duration_since(Instant::now())
            });
            let wait = match self.collectives {
                Some(_) => left.min(GLANCE),
                None => left,
            };
            match self.answers.recv_timeout(wait) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) if wait < left => {}
                Err(_) => return Err(None),
            }
            let collectives = self.collectives.as_deref();
            if let Some(failure) = collectives.and_then(|collectives| collectives.failure()) {
                return Err(Some(failure));
            }
        }
    }

    /// Gives every rank an order.
    fn order(&self, order: impl Fn() -> Order) {
        self.members
            .iter()
            .for_each(|member| member.thread.order(order()));
    }

    /// One answer of each rank, in rank order.
    ///
    /// # Errors
    /// If a rank does not answer, or a device has failed: no further step can run.
    fn collect(&mut self) -> Result<Vec<Answer>, String> {
        let mut answers = self.no_answers();
        // A rank on a CPU may compute for long, and the others wait for it themselves.
        let is_on_devices = self.collectives.is_some();
        let mut deadline = is_on_devices.then(|| Instant::now() + self.limit);
        while answers.iter().any(Option::is_none) {
            match self.receive(deadline) {
                Ok((rank, Answer::Polled { has_ended })) => self.note_poll(rank, has_ended),
                Ok((_, Answer::Encoded(images))) => self.encoded.extend(images),
                Ok((rank, answer)) => {
                    deadline.get_or_insert_with(|| Instant::now() + self.limit);
                    answers[rank] = Some(answer);
                }
                Err(failure) => return Err(self.end(failure, &mut answers)),
            }
        }
        if let Some(collectives) = &self.collectives
            && let Some(reason) = collectives.ended()
        {
            self.lost.get_or_insert(reason);
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Ends the collectives of all ranks after a failure, or after the silence of a rank. Ranks on devices then have
    /// some time to answer. Returns the reason.
    fn end(&mut self, failure: Option<String>, answers: &mut [Option<Answer>]) -> String {
        let reason = failure.unwrap_or_else(|| self.absence(answers));
        if let Some(collectives) = &self.collectives {
            collectives.end(&reason);
            let by = Instant::now() + GRACE;
            while answers.iter().any(Option::is_none) {
                match self.receive(Some(by)) {
                    Ok((_, Answer::Polled { .. } | Answer::Progress(..) | Answer::Connects)) => {}
                    // The step is lost.
                    Ok((_, Answer::Encoded(_))) => {}
                    Ok((rank, answer)) => answers[rank] = Some(answer),
                    Err(_) => break,
                }
            }
        }
        for (member, answer) in self.members.iter_mut().zip(answers.iter()) {
            member.hangs |= answer.is_none();
        }
        self.lost.get_or_insert(reason).clone()
    }

    fn absence(&self, answers: &[Option<Answer>]) -> String {
        let absent = answers.iter().position(Option::is_none);
        let (absent, limit) = (absent.unwrap_or_default(), self.limit);
        if self.collectives.is_none() {
            return format!("rank {absent} has not answered within {limit:?} after the first rank");
        }
        if answers.iter().all(Option::is_none) {
            return format!("no rank has answered within {limit:?}");
        }
        format!("rank {absent} has not answered within {limit:?}")
    }

    fn note_poll(&mut self, rank: usize, has_ended: bool) {
        self.members[rank].poll = if has_ended {
            Poll::HasEnded
        } else {
            Poll::Unasked
        };
    }

    fn forget_polls(&mut self) {
        for member in &mut self.members {
            member.poll = Poll::Unasked;
        }
    }

    fn launch_on_all(&mut self, plan: &StepPlan) -> Result<Launch, StepError> {
        let plan = Arc::new(plan.clone());
        let of_others = match plan.vision {
            None => plan.clone(),
            Some(_) => Arc::new(StepPlan {
                vision: None,
                ..(*plan).clone()
            }),
        };
        for (index, member) in self.members.iter().enumerate() {
            let plan = if index == 0 { &plan } else { &of_others };
            member.thread.order(Order::Launch(plan.clone()));
        }
        let (mut outputs, mut failures, mut n_under_way) = (Vec::new(), Vec::new(), 0);
        for answer in self.collect().map_err(StepError::Lost)? {
            match answer {
                Answer::Launched(Ok(Launch::Done(output))) => outputs.push(output),
                Answer::Launched(Ok(Launch::UnderWay)) => n_under_way += 1,
                Answer::Launched(Err(failure)) => failures.push(failure),
                _ => unreachable!("a rank must answer its order"),
            }
        }
        if !failures.is_empty() {
            return Err(self.fail(failures, n_under_way + outputs.len() > 0));
        }
        if n_under_way > 0 {
            return Ok(Launch::UnderWay);
        }
        self.first_of(outputs).map(Launch::Done)
    }

    fn finish_on_all(&mut self) -> Result<StepOutput, StepError> {
        self.order(|| Order::Finish);
        let (mut outputs, mut failures) = (Vec::with_capacity(self.members.len()), Vec::new());
        let answers = self.collect().map_err(StepError::Lost)?;
        self.forget_polls();
        for answer in answers {
            match answer {
                Answer::Finished(Ok(output)) => outputs.push(output),
                Answer::Finished(Err(failure)) => failures.push(failure),
                _ => unreachable!("a rank must answer its order"),
            }
        }
        if failures.is_empty() {
            self.first_of(outputs)
        } else {
            Err(self.fail(failures, !outputs.is_empty()))
        }
    }

    /// The error of a step that ranks failed; `some_ran` if others did not. After a lost step, ranks on devices have
    /// called different collectives.
    fn fail(&mut self, failures: Vec<Failure>, some_ran: bool) -> StepError {
        let error = error_of(failures, some_ran);
        if let (Some(collectives), StepError::Lost(reason)) = (&self.collectives, &error) {
            collectives.end(reason);
            self.lost.get_or_insert_with(|| reason.clone());
        }
        error
    }

    /// Rank 0's output. The others' results go back to them.
    fn first_of(&self, outputs: Vec<StepOutput>) -> Result<StepOutput, StepError> {
        let mut outputs = outputs.into_iter();
        let first = outputs.next().expect("there must be a rank 0");
        for (index, other) in (1..).zip(outputs) {
            if !agree(&first, &other) {
                return Err(StepError::Lost(format!(
                    "rank {index} sampled other tokens than rank 0"
                )));
            }
            let thread = &self.members[index].thread;
            thread.order(Order::Recycle(other.rows));
        }
        Ok(first)
    }

    fn check(&self) -> Result<(), StepError> {
        match &self.lost {
            Some(reason) => Err(StepError::Lost(reason.clone())),
            None => Ok(()),
        }
    }

    fn why_lost(&self) -> Option<String> {
        let of_devices = || {
            let collectives = self.collectives.as_ref()?;
            collectives.ended().or_else(|| collectives.failure())
        };
        self.lost.clone().or_else(of_devices)
    }
}

impl Executor for Ranks {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        match self.launch(plan)? {
            Launch::Done(output) => Ok(output),
            Launch::UnderWay => self.finish(),
        }
    }

    fn launch(&mut self, plan: &StepPlan) -> Result<Launch, StepError> {
        self.check()?;
        if let Some(store) = &mut self.store {
            store.before_step(plan)?;
        }
        let launched = self.launch_on_all(plan);
        let has_ended = !matches!(launched, Ok(Launch::UnderWay));
        if let Some(store) = self.store.as_mut().filter(|_| has_ended) {
            store.after_step(launched.is_ok());
        }
        launched
    }

    /// Asks the ranks in turn with the orders, and does not wait for their answers.
    fn is_finished(&mut self) -> bool {
        if self.lost.is_some() {
            return true;
        }
        while let Ok((rank, answer)) = self.answers.try_recv() {
            if let Answer::Polled { has_ended } = answer {
                self.note_poll(rank, has_ended);
            }
        }
        for member in &mut self.members {
            if member.poll == Poll::Unasked {
                member.poll = Poll::Asked;
                member.thread.order(Order::Poll);
            }
        }
        let mut polls = self.members.iter().map(|member| member.poll);
        polls.all(|poll| poll == Poll::HasEnded)
    }

    fn finish(&mut self) -> Result<StepOutput, StepError> {
        self.check()?;
        let output = self.finish_on_all();
        if let Some(store) = &mut self.store {
            store.after_step(output.is_ok());
        }
        output
    }

    fn recycle(&mut self, rows: Vec<RowResult>) {
        self.members[0].thread.order(Order::Recycle(rows));
    }

    fn take_encoded(&mut self) -> Vec<EncodedImage> {
        std::mem::take(&mut self.encoded)
    }

    /// Rank 0 has the tower.
    fn forget_unwanted(&mut self) {
        self.members[0].thread.order(Order::ForgetUnwanted);
    }

    /// Rank 0 beats for all: it waits for the others several times in each layer.
    fn set_beat(&mut self, beat: Beat) {
        self.members[0].thread.order(Order::SetBeat(beat));
    }

    fn is_lost(&self) -> bool {
        self.why_lost().is_some()
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        if let Some(reason) = self.why_lost() {
            return Err(DeviceLost(reason));
        }
        self.encoded.clear();
        self.order(|| Order::Reset);
        let answers = self.collect().map_err(DeviceLost)?;
        self.forget_polls();
        if let Some(store) = &mut self.store {
            store.forget();
        }
        for answer in answers {
            match answer {
                Answer::Reset(reset) => reset?,
                _ => unreachable!("a rank must answer its order"),
            }
        }
        Ok(())
    }
}

impl Drop for Ranks {
    /// Joins the ranks' threads, except those that hang.
    fn drop(&mut self) {
        // All threads end at once, as ranks may wait for each other to release their devices.
        let ended = self.members.drain(..);
        let ended = ended.map(|member| (member.thread.end(), member.hangs));
        let ended: Vec<_> = ended.collect();
        for (thread, hangs) in ended {
            if !hangs {
                let _ = thread.join();
            }
        }
    }
}

/// The error of a step that ranks failed; `some_ran` if others did not.
fn error_of(mut failures: Vec<Failure>, some_ran: bool) -> StepError {
    let is_rejected = |failure: &Failure| matches!(failure.error, StepError::Rejected(_));
    if !some_ran && failures.iter().all(is_rejected) {
        return failures.swap_remove(0).error;
    }
    let own = failures.iter().position(|failure| failure.is_own);
    match failures.swap_remove(own.unwrap_or_default()).error {
        StepError::Rejected(reason) | StepError::Lost(reason) => StepError::Lost(reason),
    }
}

fn agree(first: &StepOutput, other: &StepOutput) -> bool {
    let outcome = |row: &RowResult| (row.tokens.clone(), row.verdict);
    let rows = first.rows.iter().map(outcome);
    rows.eq(other.rows.iter().map(outcome))
}
