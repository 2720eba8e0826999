//! The fixture of these tests: a scripted runtime, and a reconciler without a hub.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use futures_util::future::BoxFuture;
use muster_contract::desired::ProfileType;
use tokio::task::JoinHandle;

use super::*;
use crate::runtime::{Running, Started, Stopped, Unit};

/// Longest wait of a test, in virtual time.
const PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// A scripted runtime. It outlives agents, as processes do.
#[derive(Default)]
pub(super) struct ScriptedRuntime {
    world: Mutex<World>,
    exits: Mutex<Option<mpsc::Sender<Exit>>>,
}

#[derive(Default)]
struct World {
    running: BTreeMap<String, String>,
    calls: Vec<String>,
    slow: BTreeMap<String, Duration>,
    fail: BTreeMap<String, u32>,
    fail_stop: BTreeMap<String, u32>,
    stops: BTreeMap<String, Stops>,
    fail_inventory: u32,
    progress: BTreeMap<String, Vec<&'static str>>,
}

/// The duration of a unit's stop.
#[derive(Clone, Copy)]
enum Stops {
    After(Duration),
    /// Until it is killed.
    WhenKilled,
}

fn label(name: &UnitName) -> String {
    format!("{}/{}", name.deployment, name.component)
}

fn take_one(counts: &mut BTreeMap<String, u32>, unit: &str) -> bool {
    counts.get_mut(unit).is_some_and(|count| {
        let any = *count > 0;
        *count = count.saturating_sub(1);
        any
    })
}

impl ScriptedRuntime {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    pub(super) fn slow(&self, unit: &str, duration: Duration) {
        self.world().slow.insert(unit.to_owned(), duration);
    }

    pub(super) fn fail(&self, unit: &str, times: u32) {
        self.world().fail.insert(unit.to_owned(), times);
    }

    pub(super) fn fail_stop(&self, unit: &str, times: u32) {
        self.world().fail_stop.insert(unit.to_owned(), times);
    }

    /// The next inventories fail, this number of them.
    pub(super) fn fail_inventory(&self, times: u32) {
        self.world().fail_inventory = times;
    }

    /// Its start takes its time for these reasons, one at each look; then none is known.
    pub(super) fn start_slowly_because(&self, unit: &str, reasons: &[&'static str]) {
        self.world().progress.insert(unit.to_owned(), reasons.iter().rev().copied().collect());
    }

    /// It takes this long to stop.
    pub(super) fn delay_stop(&self, unit: &str, duration: Duration) {
        self.world().stops.insert(unit.to_owned(), Stops::After(duration));
    }

    /// It does not stop before it is killed.
    pub(super) fn stop_when_killed(&self, unit: &str) {
        self.world().stops.insert(unit.to_owned(), Stops::WhenKilled);
    }

    pub(super) fn add_orphan(&self, unit: &str) {
        self.world().running.insert(unit.to_owned(), "unknown".to_owned());
    }

    pub(super) fn reboot(&self) {
        self.world().running.clear();
    }

    pub(super) fn running(&self) -> Vec<String> {
        self.world().running.keys().cloned().collect()
    }

    /// The calls since the last time.
    pub(super) fn calls(&self) -> Vec<String> {
        self.world().calls.clone()
    }

    pub(super) fn forget_calls(&self) {
        self.world().calls.clear();
    }

    /// A running unit exits.
    pub(super) async fn crash(&self, unit: &str) {
        let digest_prefix = self.world().running.remove(unit).expect("it runs");
        let (deployment, component) = unit.split_once('/').unwrap();
        let name =
            UnitName { deployment: deployment.parse().unwrap(), component: component.parse().unwrap() };
        let error = StatusError::new(code::EXITED, component, "exit code 3");
        let exits = self.exits.lock().unwrap().clone().unwrap();
        exits.send(Exit { name, digest_prefix, error }).await.unwrap();
    }
}

impl Runtime for ScriptedRuntime {
    fn profiles(&self) -> &'static [ProfileType] {
        &[ProfileType::Process]
    }

    fn start_progress(&self, name: &UnitName) -> Option<String> {
        self.world().progress.get_mut(&label(name))?.pop().map(str::to_owned)
    }

    fn start<'a>(
        &'a self,
        unit: &'a Unit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Started, StatusError>> {
        Box::pin(async move {
            let here = label(&unit.name());
            let found = {
                let mut world = self.world();
                world.calls.push(format!("{} {here}", if unit.is_job { "run" } else { "start" }));
                world.running.insert(here.clone(), unit.digest_prefix())
            };
            match found {
                Some(found) => assert_eq!(found, unit.digest_prefix(), "a second version of {here}"),
                None => {
                    let slow = self.world().slow.get(&here).copied().unwrap_or_default();
                    if cancel.run_until_cancelled(tokio::time::sleep(slow)).await.is_none() {
                        return Ok(Started::Cancelled);
                    }
                }
            }
            if take_one(&mut self.world().fail, &here) {
                self.world().running.remove(&here);
                return Err(StatusError::new(code::EXITED, unit.component.as_str(), "exit code 1"));
            }
            Ok(Started::Ready)
        })
    }

    fn stop<'a>(
        &'a self,
        name: &'a UnitName,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Stopped, StatusError>> {
        Box::pin(async move {
            let here = label(name);
            self.world().calls.push(format!("stop {here}"));
            let stops = self.world().stops.get(&here).copied();
            match stops {
                Some(Stops::After(duration)) => tokio::time::sleep(duration).await,
                Some(Stops::WhenKilled) => tokio::time::sleep(timeout).await,
                None => {}
            }
            let mut world = self.world();
            if take_one(&mut world.fail_stop, &here) {
                return Err(StatusError::new(code::STOP_FAILED, name.component.as_str(), "it holds on"));
            }
            world.running.remove(&here);
            Ok(Stopped::killed_if(matches!(stops, Some(Stops::WhenKilled))))
        })
    }

    fn inventory(&self) -> BoxFuture<'_, Result<Vec<Running>, StatusError>> {
        let running = |(unit, digest_prefix): (&String, &String)| {
            let (deployment, component) = unit.split_once('/').unwrap();
            let name =
                UnitName { deployment: deployment.parse().unwrap(), component: component.parse().unwrap() };
            Running { name, digest_prefix: digest_prefix.clone() }
        };
        let mut world = self.world();
        let seen = match world.fail_inventory.checked_sub(1) {
            Some(left) => {
                world.fail_inventory = left;
                Err(StatusError::new(code::INVENTORY_FAILED, "press-4", "the engine does not answer"))
            }
            None => Ok(world.running.iter().map(running).collect()),
        };
        Box::pin(async move { seen })
    }
}

/// A reconciler without the rest of an agent: the test receives its reports, as the outbox would.
pub(super) struct Trial {
    pub(super) runtime: Arc<ScriptedRuntime>,
    /// All reports so far.
    pub(super) told: Vec<StatusBody>,
    /// The records that the database would hold after them.
    pub(super) records: BTreeMap<DeploymentId, DeploymentRecord>,
    queue: mpsc::Receiver<NewReport>,
    desired: watch::Sender<CurrentDesired>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Trial {
    pub(super) fn new() -> Self {
        Self::begin(Arc::default(), BTreeMap::new(), None, OnExit::Keep)
    }

    /// A first agent that stops its workloads when it ends.
    pub(super) fn that_stops() -> Self {
        Self::begin(Arc::default(), BTreeMap::new(), None, OnExit::Stop)
    }

    fn begin(
        runtime: Arc<ScriptedRuntime>,
        records: BTreeMap<DeploymentId, DeploymentRecord>,
        wanted: CurrentDesired,
        on_exit: OnExit,
    ) -> Self {
        let device: DeviceKey = "plant7/press-4".parse().unwrap();
        let (sender, queue) = mpsc::channel(1_000);
        let reports = ReportSender::for_test(sender, Arc::new(ManualClock::at(Timestamp::UNIX_EPOCH)));
        let (desired, receiver) = watch::channel(wanted);
        let (exits, ended) = mpsc::channel(8);
        *runtime.exits.lock().unwrap() = Some(exits);
        let retry = RetryPolicy {
            min: Duration::from_secs(10),
            max: Duration::from_secs(300),
            crash_loop: CrashLoopRule::default(),
        };
        let settings = Settings { device, retry, on_exit, capabilities: Arc::new(capabilities()) };
        let rng = fastrand::Rng::with_seed(7);
        let shared: Arc<dyn Runtime> = Arc::<ScriptedRuntime>::clone(&runtime);
        let known = records.values().cloned().collect();
        let reconciler = Reconciler::new(settings, shared, reports, receiver, ended, known, rng);
        let stop = CancellationToken::new();
        let task = tokio::spawn(reconciler.run(stop.clone()));
        Self { runtime, told: Vec::new(), records, queue, desired, stop, task }
    }

    pub(super) fn desire(&self, wanted: CurrentDesired) {
        self.desired.send_replace(wanted);
    }

    /// The next report, awaited in virtual time.
    pub(super) async fn next(&mut self) -> String {
        let entry = tokio::time::timeout(PATIENCE, self.queue.recv()).await.expect("another report");
        self.keep(entry.expect("a reconciler that works"));
        line(self.told.last().unwrap())
    }

    fn keep(&mut self, entry: NewReport) {
        match entry.change {
            RecordChange::None => {}
            RecordChange::Store(record) => _ = self.records.insert(record.id().clone(), *record),
            RecordChange::Remove(id) => _ = self.records.remove(&id),
        }
        match entry.body {
            Body::Status(body) => self.told.push(body),
            Body::Capabilities(_) => {}
        }
    }

    /// Compares the next reports.
    pub(super) async fn reports(&mut self, expected: &[&str]) {
        let mut told = Vec::new();
        for _ in expected {
            told.push(self.next().await);
        }
        assert_eq!(told, expected);
    }

    /// Waits for a report and skips others.
    pub(super) async fn until(&mut self, expected: &str) {
        while self.next().await != expected {}
    }

    pub(super) async fn nothing_for(&mut self, duration: Duration) {
        let told = tokio::time::timeout(duration, self.next()).await;
        assert!(told.is_err(), "{told:?}");
    }

    /// Waits long enough for every operation to end.
    pub(super) async fn wait_until_idle(&mut self) {
        while tokio::time::timeout(Duration::from_secs(3_600), self.next()).await.is_ok() {}
    }

    /// A trial that has removed `web` beside an orphan of it. `prepare` makes the first attempt fail.
    pub(super) async fn after_a_retried_removal(prepare: impl FnOnce(&ScriptedRuntime)) -> Self {
        let mut trial = Self::new();
        trial.desire(document(1, vec![deployment("web", 1, &["ui"])]));
        trial.until("web@1 installed: ui=installed").await;
        trial.runtime.add_orphan("web/old");
        prepare(&trial.runtime);
        trial.desire(document(2, vec![]));
        trial
            .reports(&[
                "web@2 removing: ui=removing",
                "web@2 failed: ui=removing",
                "web@2 failed: ui=removed",
                "web@2 removed: ui=removed",
            ])
            .await;
        assert!(trial.runtime.running().is_empty());
        trial
    }

    /// Stops the agent and starts another with the stored records.
    pub(super) async fn restart(mut self) -> Self {
        self.stop.cancel();
        (&mut self.task).await.unwrap();
        while let Ok(entry) = self.queue.try_recv() {
            self.keep(entry);
        }
        self.again()
    }

    /// Kills the agent with its unstored reports, and starts another with the stored records.
    pub(super) async fn kill(mut self) -> Self {
        self.task.abort();
        assert!((&mut self.task).await.unwrap_err().is_cancelled());
        self.again()
    }

    fn again(self) -> Self {
        let wanted = self.desired.borrow().clone();
        let mut next = Self::begin(self.runtime, self.records, wanted, OnExit::Keep);
        next.told = self.told;
        next
    }
}

/// The capabilities of every trial's device.
fn capabilities() -> Capabilities {
    let labels = std::collections::BTreeMap::from([("line".to_owned(), "press".to_owned())]);
    let mut properties = serde_json::Map::new();
    properties.insert("memory".to_owned(), "2Gi".into());
    Capabilities { properties, labels }
}
