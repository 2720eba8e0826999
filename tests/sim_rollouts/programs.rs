//! The programs: the real publisher (announcer, responder, its source) and the real planner, each in a life that may end at any
//! await. The world executes their operations, with its faults.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Call, Headers, IncidentReporter, ReadError, RequestError, Requester, Role};
use muster_contract::rollout::{CHECK_PREFIX, RolloutRecord};
use muster_planner::asker::Asker;
use muster_planner::planner::Planner;
use muster_planner::services::Services;
use muster_planner::webhook::{WebhookConfig, Webhooks};
use muster_publisher::announce::{Announcer, AnnouncerHandle, Context, StoredDocument};
use muster_publisher::responder::Responder;
use muster_publisher::source::{self, Fleet, Policy, Tree};
use muster_publisher::status::Status;
use muster_service::supervisor::Supervisor;
use tokio_util::sync::CancellationToken;

use super::hub::{Subject, message};
use super::ledger::PlannerLedger;
use super::repository::Repository;
use super::tasks::Tasks;
use super::wire::{Answer, Operation, Port, Process, Request, Sent};
use super::world::{Event, Millis, Sabotage, World};

/// The publisher's endpoints that planner and people use.
const ENDPOINTS: [&str; 4] = ["decide", "release", "status", "targets"];
/// Time between two polls of the branch, and between two looks at DOWNLINK.
const POLL: Duration = Duration::from_millis(700);
/// Time between two questions of a planner to the publisher.
const EVERY: Duration = Duration::from_secs(2);
/// Longest time that a message of a dead process is under way.
const STRAY: Millis = 2_000;

/// The commits of the branch.
type Branch = Arc<Mutex<Vec<Tree>>>;
/// The last accepted commit.
type Accepted = Arc<Mutex<Option<Fleet>>>;
/// A reply of the publisher, with the way back.
type Reply = (Answer<Result<Bytes, RequestError>>, Bytes);

/// The programs, and what they share with the world.
pub(crate) struct Programs {
    pub(crate) tasks: Tasks,
    pub(crate) sent: Sent,
    /// The commits of the branch, the newest last, as the publisher polls it.
    pub(crate) branch: Branch,
    /// A commit that the publisher has accepted since the world looked last.
    pub(crate) accepted: Accepted,
    /// Documents of DOWNLINK, in order, as the publisher reads them.
    pub(crate) stored: Arc<Mutex<Vec<StoredDocument>>>,
    /// Records of decisions that people were told of.
    pub(crate) acknowledged: Arc<Mutex<Vec<(Subject, RolloutRecord)>>>,
    replies: Arc<Mutex<Vec<Reply>>>,
    publisher: Option<(Process, Responder)>,
    planners: [Option<Process>; 2],
    lives: u64,
}

impl Programs {
    pub(crate) fn new(repository: &Repository) -> Self {
        Self {
            tasks: Tasks::default(),
            sent: Sent::default(),
            branch: Arc::new(Mutex::new(vec![repository.tree()])),
            accepted: Arc::default(),
            stored: Arc::default(),
            acknowledged: Arc::default(),
            replies: Arc::default(),
            publisher: None,
            planners: [None; 2],
            lives: 0,
        }
    }
}

/// Polls the branch and passes commits on, as the publisher's poller does with files of Git.
async fn poll(announcer: AnnouncerHandle, branch: Branch, accepted: Accepted) {
    announcer.known().await;
    let (mut known, mut has_accepted, mut newest) = (0, false, None);
    loop {
        let unseen = announcer.unseen().await;
        let commits = branch.lock().unwrap().clone();
        if known != commits.len() {
            known = commits.len();
            if let Ok(fleet) = source::read(&commits[known - 1], Policy::default())
                && announcer.commit(fleet.clone()).await.is_ok()
            {
                *accepted.lock().unwrap() = Some(fleet);
                (newest, has_accepted) = (Some(known - 1), true);
            }
        }
        if !has_accepted {
            newest = resume(&announcer, &commits[..known - 1], &accepted).await;
            has_accepted = newest.is_some();
        }
        if let Some(newest) = newest.filter(|_| !unseen.is_empty()) {
            let older = revisions(&commits[..=newest]).intersection(&unseen).cloned().collect();
            announcer.follows(commits[newest].revision.clone(), older).await;
        }
        tokio::time::sleep(POLL).await;
    }
}

fn revisions(commits: &[Tree]) -> BTreeSet<String> {
    commits.iter().map(|tree| tree.revision.clone()).collect()
}

/// Passes on the newest good commit of the earlier ones after a start with a bad one; the index of that commit.
async fn resume(announcer: &AnnouncerHandle, earlier: &[Tree], accepted: &Accepted) -> Option<usize> {
    let read = |at: usize| Some((at, source::read(&earlier[at], Policy::default()).ok()?));
    let (at, fleet) = (0..earlier.len()).rev().find_map(read)?;
    announcer.resume(fleet.clone(), revisions(&earlier[..at])).await.ok()?;
    *accepted.lock().unwrap() = Some(fleet);
    Some(at)
}

/// Passes documents of DOWNLINK to the announcer, which verifies them.
async fn verify(announcer: AnnouncerHandle, stored: Arc<Mutex<Vec<StoredDocument>>>) {
    announcer.known().await;
    let mut read = 0;
    loop {
        let new = stored.lock().unwrap()[read..].to_vec();
        read += new.len();
        if !new.is_empty() {
            announcer.verify(new, false).await;
        }
        tokio::time::sleep(POLL).await;
    }
}

impl World {
    pub(crate) fn start_publisher(&mut self) {
        if self.programs.publisher.is_some() {
            return;
        }
        let programs = &mut self.programs;
        programs.lives += 1;
        let process = Process::Publisher(programs.lives);
        let status = Arc::new(Status::new(Some((&"/fleet".parse().unwrap(), &"main".parse().unwrap()))));
        let context = Context {
            clock: Arc::new(self.clock.clone()),
            status: status.clone(),
            metrics: Default::default(),
            incidents: IncidentReporter::new().0,
            git: true,
        };
        let port = Port { process, sent: programs.sent.clone() };
        let rng = fastrand::Rng::with_seed(self.rng.u64(..));
        let (task, announcer) = Announcer::new(port, context, rng);
        let latch = Supervisor::new().health().latch("desired state");
        programs.tasks.spawn(process, task.run(latch, CancellationToken::new()));
        let polling = poll(announcer.clone(), programs.branch.clone(), programs.accepted.clone());
        programs.tasks.spawn(process, polling);
        programs.tasks.spawn(process, verify(announcer.clone(), programs.stored.clone()));
        programs.publisher = Some((process, Responder { announcer, status, past: None }));
    }

    pub(crate) fn start_planner(&mut self, at: usize) {
        if self.programs.planners[at].is_some() {
            return;
        }
        let programs = &mut self.programs;
        programs.lives += 1;
        let process = Process::Planner(at, programs.lives);
        let port = Port { process, sent: programs.sent.clone() };
        // Without a secret no webhook is asked.
        let asker = Asker::new(port.clone(), Webhooks::new(WebhookConfig::default()).unwrap());
        let clock = Arc::new(self.clock.clone());
        let ledger = PlannerLedger::new(port.clone());
        let planner = Planner::new(Services::new(port), asker, ledger, clock, Default::default());
        let latch = Supervisor::new().health().latch("a round");
        programs.tasks.spawn(process, planner.run(EVERY, latch, CancellationToken::new()));
        programs.planners[at] = Some(process);
    }

    /// Kills the publisher, and starts the next one after a while: messages of the dead one may come after the first of the new one.
    pub(crate) fn kill_publisher(&mut self, restart_after: Millis) {
        if let Some((process, _)) = self.programs.publisher.take() {
            self.kill(process);
        }
        self.after(restart_after, Event::StartPublisher);
    }

    pub(crate) fn kill_planner(&mut self, at: usize, restart_after: Option<Millis>) {
        if let Some(process) = self.programs.planners[at].take() {
            self.kill(process);
        }
        if let Some(delay) = restart_after {
            self.after(delay, Event::StartPlanner(at));
        }
    }

    /// Ends a process: of its messages that are under way, some are lost and some still arrive.
    fn kill(&mut self, process: Process) {
        self.programs.tasks.kill(process);
        self.forget_reader(process);
        self.programs.sent.lock().unwrap().retain(|(of, _)| *of != process);
        for key in self.operations_of(process) {
            let event = self.remove(key);
            if let Some(event) = event.filter(|_| self.rng.bool()) {
                let delay = self.rng_millis(1..STRAY);
                self.after(delay, event);
            }
        }
    }

    /// Lets the programs go on as far as they can, and takes their operations.
    pub(crate) fn run_until_idle(&mut self) {
        loop {
            self.programs.tasks.run_until_idle();
            if let Some(fleet) = self.programs.accepted.lock().unwrap().take() {
                self.law.accept(fleet);
            }
            self.check_acknowledged();
            let replies = std::mem::take(&mut *self.programs.replies.lock().unwrap());
            for (answer, reply) in replies {
                self.law.note_refusals(self.now, &reply);
                self.answer(answer, Ok(reply));
            }
            let sent = std::mem::take(&mut *self.programs.sent.lock().unwrap());
            if sent.is_empty() {
                return;
            }
            for (process, operation) in sent {
                self.send(process, operation);
            }
        }
    }

    fn is_alive(&self, process: Process) -> bool {
        match process {
            Process::Publisher(_) => self.programs.publisher.as_ref().is_some_and(|(of, _)| *of == process),
            Process::Planner(at, _) => self.programs.planners[at] == Some(process),
            Process::Person(_) => true,
        }
    }

    /// An operation is under way to the hub, unless it is lost.
    fn send(&mut self, process: Process, operation: Operation) {
        self.tally.operations += 1;
        if !self.is_alive(process) {
            return;
        }
        if let Some(arrival) = self.planned_kill(process, &operation) {
            if let Some(delay) = arrival.delay() {
                self.after(delay, Event::Execute(process, operation));
            }
            return;
        }
        let is_lost = self.is_lost();
        let delay = self.delay();
        if is_lost {
            // Its sender sees that the answer does not come.
            self.after(20 * delay, Event::Answer(Box::new(move || drop(operation))));
        } else {
            self.after(delay, Event::Execute(process, operation));
        }
    }

    /// An answer is under way, unless it is lost.
    pub(crate) fn answer<T: Send + 'static>(&mut self, way: Answer<T>, answer: T) {
        let is_lost = self.is_lost();
        let delay = self.delay();
        let event: Box<dyn FnOnce() + Send> = if is_lost {
            Box::new(move || drop(way))
        } else {
            // The process may be gone.
            Box::new(move || drop(way.send(answer)))
        };
        self.after(delay, Event::Answer(event));
    }

    /// An operation reaches the hub.
    pub(crate) fn execute(&mut self, process: Process, operation: Operation) {
        match operation {
            Operation::AllSubjects(way) => self.answer_read(way, |world| world.hub.all_subjects()),
            Operation::Copies(way) => self.answer_read(way, |world| world.hub.copies()),
            Operation::History(key, way) => self.answer_read(way, |world| world.hub.history(&key)),
            Operation::Last(key, way) => self.answer_read(way, |world| world.hub.last(&key)),
            Operation::AllDecisions(way) => self.answer_read(way, |world| world.hub.all_decisions()),
            Operation::Decisions(id, path, way) => {
                self.answer_read(way, |world| world.hub.decisions_of(&(id, path)));
            }
            Operation::StoreDecisions(store, way) => {
                let stored = self.store_decisions(&store);
                self.answer(way, stored);
            }
            Operation::Publish(outgoing, way) => {
                let stored = self.hub.store_document(&outgoing);
                if stored.is_ok() {
                    self.document_stored(&outgoing.key);
                }
                self.answer(way, stored);
            }
            Operation::Request(request, way) => self.request(process, request, way),
            Operation::Facts(after, way) => self.read_ledger(process, after, way),
            Operation::LedgerEnd(way) => self.end_of_ledger(way),
        }
    }

    fn answer_read<T: Send + 'static>(
        &mut self,
        way: Answer<Result<T, ReadError>>,
        read: impl FnOnce(&Self) -> T,
    ) {
        let answer = read(self);
        self.answer(way, Ok(answer));
    }

    fn document_stored(&mut self, key: &muster_contract::DeviceKey) {
        self.changed_at = self.now;
        let stored = &self.hub.documents[key];
        let message = message(key, &stored[stored.len() - 1]);
        self.programs.stored.lock().unwrap().push(StoredDocument { key: key.clone(), message });
        let lawful = self.law.document(&self.hub, key, self.time());
        self.hold(lawful);
        let to = self.hub.log.len();
        let delay = self.delay();
        self.after(delay, Event::Copy(to));
        if let Some(at) = self.devices.iter().position(|device| device.key == *key) {
            let delay = self.rng_millis(5..500);
            self.after(delay, Event::Document(at));
        }
    }

    /// A request reaches its service.
    fn request(&mut self, process: Process, request: Request, way: Answer<Result<Bytes, RequestError>>) {
        self.tally.requests += 1;
        if request.subject.starts_with(CHECK_PREFIX) {
            self.ask_check(process, &request, way);
            return;
        }
        let Some(request) = self.sabotaged(process, request) else {
            self.answer(way, Ok(Bytes::from_static(super::people::ANSWER_OF_NOTHING)));
            return;
        };
        let name = request.subject.rsplit('.').next().unwrap_or_default();
        if name == "release" && matches!(process, Process::Planner(..)) {
            let release = serde_json::from_slice(&request.payload).unwrap();
            let lawful = self.law.release(&self.hub, &release, self.now);
            self.hold(lawful);
        }
        let endpoint = ENDPOINTS.into_iter().find(|endpoint| *endpoint == name).unwrap();
        let Some((publisher, responder)) = self.programs.publisher.clone() else {
            let subject = request.subject;
            self.answer(way, Err(RequestError::NoResponders { subject }));
            return;
        };
        let Request { subject, payload } = request;
        let requester = requester(process);
        let call = Call { endpoint, subject, payload, headers: Headers::default(), requester };
        let replies = self.programs.replies.clone();
        let sabotage = if matches!(process, Process::Planner(..)) { self.sabotage } else { Sabotage::None };
        self.programs.tasks.spawn(publisher, async move {
            let reply = responder.answer(call).await.unwrap_or_else(|fault| fault.body);
            let reply = super::people::misread(sabotage, reply);
            replies.lock().unwrap().push((way, reply));
        });
    }
}

/// The user of a process.
fn requester(process: Process) -> Requester {
    let (name, role) = match process {
        Process::Planner(..) => ("planner".to_owned(), Role::Planner),
        Process::Person(at) => (super::people::NAMES[at].to_owned(), super::people::role(at)),
        Process::Publisher(_) => ("publisher".to_owned(), Role::Operator),
    };
    Requester::User { key: format!("U-{name}"), name, role: Some(role) }
}
