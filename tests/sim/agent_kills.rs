//! Ends an agent, or cuts its connection, between every two effects of its relay, for every number of messages under way
//! that may still arrive ([`ends`](super::ends)). LEDGER and the outbox must hold in the end what they hold in a run without
//! an end.
//!
//! In the script UPLINK refuses everything at first, and later holds few reports of the device at a time, so that sessions
//! fail and sending pauses.

use fastrand::Rng;
use muster_agent::outbox::{NewReport, RecordChange, Summary};
use muster_agent::relay::core::OrderRule;
use muster_agent::report::{Body, StatusBody};
use muster_contract::canonical::Digest;
use muster_contract::fact::{Fact, IncidentKind};
use muster_contract::query::Output;
use muster_contract::state::{ComponentStatus, DeploymentStatus};
use muster_contract::{Generation, State};

use super::agenda::{MINUTE, Millis, SECOND, moment};
use super::ends::{PlannedEnd, Script};
use super::ingest::{EndKind, OwnerEvent};
use super::profile::{Fault, Profile};
use super::rollup::rebuilt;
use super::rows::now;
use super::world::{EFFECTS_PER_END, Event, Sabotage, World};

/// Until when UPLINK refuses reports.
const REFUSES_UNTIL: Millis = 4 * SECOND;
/// Effects are counted until this time; by then every report of the script is marked as sent.
const STEPS_END: Millis = 40 * SECOND;
/// End of a run: by then the agent has restarted and caught up, even after the longest pause.
const END: Millis = 8 * MINUTE;

const _: () = assert!(STEPS_END + 4 * MINUTE < END && REFUSES_UNTIL < STEPS_END);

const SCRIPT: Script = Script { steps_end: STEPS_END, end: END, prepare, planned_end, outcome };
/// The same with a hub that reads batches.
const BATCHES: Script = Script { prepare: prepare_batches, ..SCRIPT };

impl World {
    /// How the agent ends between the last effect and the next; `None` if it goes on.
    pub(crate) fn agent_end(&mut self) -> Option<EndKind> {
        let now = self.agenda.now();
        if let Some(planned_end) = &mut self.planned_agent_end {
            return planned_end.count_step(now).then_some(planned_end.end_kind);
        }
        let kinds = [(Fault::AgentCrash, EndKind::Crash), (Fault::Cut, EndKind::Cut)];
        let mut by_lot = kinds
            .into_iter()
            .filter(|(fault, _)| self.storm && self.has(*fault))
            .map(|(_, end_kind)| end_kind);
        let end_kind = by_lot.next_back()?;
        let end_kind = by_lot.next().filter(|_| now % 2 == 0).unwrap_or(end_kind);
        (self.chance.u16(0..EFFECTS_PER_END) == 0).then_some(end_kind)
    }

    /// Ends a device's agent or cuts its connection.
    pub(crate) fn end_agent_by(&mut self, device: usize, end_kind: EndKind) {
        let pause = self.planned_agent_end.map(|planned_end| planned_end.pause);
        match (end_kind, pause) {
            (EndKind::Crash, None) => self.crash_agent(device),
            (EndKind::Cut, None) => self.cut(device),
            (EndKind::Crash, Some(pause)) => {
                self.kill_agent(device);
                self.agenda.after(pause, Event::StartAgent(device));
            }
            (EndKind::Cut, Some(pause)) => {
                self.disconnect(device);
                self.agenda.after(pause, Event::Connect(device));
            }
        }
    }

    /// A device's agent writes the waiting reports of the script and this one; without an agent they wait.
    pub(crate) fn write(&mut self, device: usize, entry: Option<NewReport>) {
        self.devices[device].unwritten.extend(entry);
        while self.devices[device].agent.is_some()
            && let Some(entry) = self.devices[device].unwritten.pop_front()
        {
            self.observe(device, entry);
        }
    }
}

/// The reports of a deployment and their times: one by one, several at once, and after a pause.
fn script() -> Vec<(Millis, &'static str, State)> {
    use State::{Failed, Installed, Installing};
    vec![
        (SECOND, "web", Installing),
        (SECOND, "web", Failed),
        (2 * SECOND, "api", Installing),
        (6 * SECOND, "web", Installing),
        (6 * SECOND, "web", Installed),
        (6 * SECOND, "api", Failed),
        (6 * SECOND, "api", Installing),
        (6 * SECOND, "log", Installing),
        (7 * SECOND, "api", Installed),
        (12 * SECOND, "log", Installed),
        (12 * SECOND + 5, "web", Failed),
    ]
}

fn entry(deployment: &str, state: State) -> NewReport {
    let body = StatusBody {
        observed_at: moment(0),
        deployment: deployment.parse().unwrap(),
        generation: Generation::FIRST,
        digest: Digest::of_bytes(deployment.as_bytes()),
        status: DeploymentStatus { state, error: None, reason: None },
        components: vec![ComponentStatus { name: "main".parse().unwrap(), state, error: None }],
        retries: Vec::new(),
    };
    NewReport { body: Body::Status(body), change: RecordChange::None }
}

fn profile() -> Profile {
    Profile { share: 3, batches: false, ..Profile::scripted(1, END) }
}

fn prepare(sabotage: Sabotage) -> World {
    prepare_with(profile(), sabotage)
}

fn prepare_batches(sabotage: Sabotage) -> World {
    prepare_with(Profile { batches: true, ..profile() }, sabotage)
}

fn prepare_with(profile: Profile, sabotage: Sabotage) -> World {
    let mut world = World::of(Rng::with_seed(1), profile, sabotage, false);
    world.hub.refuses_until.0 = REFUSES_UNTIL;
    for (at, deployment, state) in script() {
        world.agenda.at(at, Event::Write(0, Box::new(entry(deployment, state))));
    }
    world.agenda.at(0, Event::Owner(0, 0, 0, OwnerEvent::Start));
    world.agenda.at(10, Event::StartAgent(0));
    world.agenda.at(MINUTE, Event::Trim);
    world
}

const fn planned_end(world: &mut World) -> &mut Option<PlannedEnd> {
    &mut world.planned_agent_end
}

/// The reports in LEDGER, the device as a reader of LEDGER knows it, and the contents of its outbox. Without the values
/// that depend on time: the epoch, and whether a report was the newest.
fn outcome(world: &World) -> Vec<String> {
    let report = |fact: &Fact| match fact {
        Fact::Status(fact) => {
            Some(format!("{} {} {:?} {}", fact.seq, fact.deployment, fact.status.state, fact.coalesced))
        }
        Fact::Device(fact) => Some(format!("{} capabilities {}", fact.seq, fact.coalesced)),
        // How long a gap lasted depends on the time.
        Fact::Incident(fact) => match &fact.what {
            IncidentKind::Gap { .. } | IncidentKind::GapClosed { .. } => None,
            what => Some(format!("{what:?}")),
        },
        _ => None,
    };
    let mut lines: Vec<String> = world.hub.ledger.iter().filter_map(|said| report(&said.fact)).collect();
    lines.sort_unstable();
    let device = &world.devices[0];
    let known = rebuilt(&world.hub).device_answer(&device.key, Output::All).map(|answer| answer.device);
    lines.extend(
        known.map(|line| format!("{:?} {} {:?} {}", line.freshness, line.head, line.account, line.in_doubt)),
    );
    lines.extend(device.agent.as_ref().map(|agent| {
        let Summary { head, unsent, rows, .. } = now(agent.outbox.summary()).unwrap();
        format!("outbox: head {head}, {unsent} unsent, {rows} rows")
    }));
    lines.push(format!("UPLINK: {} left", world.hub.uplink.len()));
    lines
}

#[test]
fn the_script_fills_the_share_of_the_device() {
    assert!(SCRIPT.without_end(EndKind::Crash, SECOND).tally.share_full > 0);
}

#[test]
fn an_agent_killed_between_any_two_effects_of_its_relay_loses_nothing() {
    SCRIPT.assert_same_outcome(EndKind::Crash, SECOND);
}

#[test]
fn an_agent_killed_for_longer_than_the_duplicate_window_loses_nothing() {
    SCRIPT.assert_same_outcome(EndKind::Crash, 3 * MINUTE);
}

#[test]
fn a_relay_cut_off_between_any_two_effects_loses_and_doubles_nothing() {
    SCRIPT.assert_same_outcome(EndKind::Cut, SECOND);
}

#[test]
fn an_agent_that_packs_loses_nothing_killed_between_any_two_effects() {
    assert!(BATCHES.without_end(EndKind::Crash, SECOND).tally.batches > 0, "the script has no batch");
    BATCHES.assert_same_outcome(EndKind::Crash, SECOND);
    BATCHES.assert_same_outcome(EndKind::Cut, SECOND);
}

#[test]
fn a_relay_that_errs_is_found_by_some_kill() {
    let law = "a device marks as sent what UPLINK has stored";
    for rule in
        [OrderRule::ConfirmedBeforeMarked, OrderRule::UnknownIsNotStored, OrderRule::RefusedIsNotStored]
    {
        let (wrong, _) = SCRIPT.every_end(EndKind::Cut, SECOND, Sabotage::RelayBreaks(rule));
        assert!(wrong.as_ref().is_some_and(|wrong| wrong.contains(law)), "{rule:?}: {wrong:?}");
    }
}
