//! The hub that everything is tried on: something in every stream, mirrors, services that answer every request with a
//! text and note who asked, and a checker that answers every question. It tries nothing itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use muster_bus::{Bus, Call, EndpointSpec, Outgoing, Requester, Responder, ServiceSpec, Serving};
use muster_identity::Role;
use muster_identity::exchange::Account;
use muster_tests::guarded::Guarded;
use muster_tests::monitor::{Change, Streams, changes};
use muster_tests::raw::Raw;
use muster_tests::server::device;
use muster_tests::wait::until;
use serde_json::Value;

use super::table::{Actor, DEVICE};
use crate::connect;

/// The endpoints of publisher, rollup and ingest.
pub(crate) const ENDPOINTS: [&[&str]; 3] = [
    &[
        "muster.publisher.apply",
        "muster.publisher.decide",
        "muster.publisher.release",
        "muster.publisher.status",
    ],
    &["muster.query.fleet", "muster.notify.list", "muster.view.apply"],
    &["muster.ingest.quarantine.0"],
];
/// The header by which a stream refuses a message once it has handled all before it.
const REFUSED: &str = "Nats-Expected-Last-Sequence: 999999999";
/// Requests by which it is known that JetStream has handled those before: as many as it may handle beside each other.
const REQUESTS: usize = 4;
/// A request of the API that changes nothing and is answered in its turn.
const NOTHING_TO_DELETE: &str = "$JS.API.CONSUMER.DELETE.LEDGER.nobody";
/// A subject of each stream, and who may publish there.
const BARRIERS: [(Role, &[&str]); 5] = [
    (Role::Publisher, &["muster.desired.plant7.press-4", "muster.rollout.web"]),
    (Role::Ingest, &["muster.status.plant7.press-4.web", "muster.rejected.plant7.press-4"]),
    (Role::Rollup, &["$KV.views.fleet", "muster.notice.mine"]),
    (Role::Packager, &["$O.packages.M.mine"]),
    (Role::Device, &["muster.report.plant7.press-4", "muster.presence.plant7.press-4"]),
];

/// The hub.
pub(crate) struct Stage {
    pub(crate) hub: Guarded,
    pub(crate) ingest: Bus,
    /// Who asked the services.
    pub(crate) asked: Arc<Mutex<Vec<Requester>>>,
    barriers: Mutex<Vec<Barrier>>,
    _serving: Vec<Serving>,
    _checker: Responder,
    _services: Vec<Bus>,
}

/// Somebody who waits until streams have handled what was published before.
struct Barrier {
    role: Role,
    raw: Raw,
    reply: String,
    subjects: &'static [&'static str],
}

impl Stage {
    pub(crate) async fn start() -> Self {
        Self::on(Guarded::start_monitored(&[&"plant7".parse().unwrap()])).await
    }

    /// The same on this hub.
    pub(crate) async fn on(hub: Guarded) -> Self {
        let ingest = crate::ingest(&hub).await;
        let (publisher, rollup) =
            (connect(hub.config(Role::Publisher)).await, connect(hub.config(Role::Rollup)).await);
        let operator = connect(hub.config(Role::Operator)).await;
        for key in [DEVICE, "press-5"] {
            hub.enroll(&device(key), "1h");
            let write = async |bus: &Bus, subject: String| {
                bus.publish(Outgoing::new(subject, "stored")).await.unwrap()
            };
            write(&publisher, format!("muster.desired.plant7.{key}")).await;
            write(&ingest, format!("muster.receipt.plant7.{key}")).await;
            write(&ingest, format!("muster.status.plant7.{key}.web")).await;
            write(&ingest, format!("muster.rejected.plant7.{key}")).await;
            write(&operator, format!("muster.credential.plant7.{key}")).await;
            let own = connect(hub.device_config(&device(key))).await;
            write(&own, format!("muster.report.plant7.{key}")).await;
            write(&own, format!("muster.presence.plant7.{key}")).await;
        }
        for subject in ["$KV.views.fleet", "muster.subscription.mine", "muster.notice.mine"] {
            rollup.publish(Outgoing::new(subject, "stored")).await.unwrap();
        }
        let desired = async || hub.streams()[&(Account::Hub, "LEDGER".to_owned())].holds["messages"].as_u64();
        until("LEDGER has the desired states", desired, |count| *count == Some(4)).await;
        hub.mirror().await;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let serving = vec![
            serve(&publisher, "muster-publisher", ENDPOINTS[0], &asked).await,
            serve(&rollup, "muster-query", ENDPOINTS[1], &asked).await,
            serve(&ingest, "muster-ingest", ENDPOINTS[2], &asked).await,
        ];
        let checker = connect(hub.config(Role::Checker)).await;
        let answering = checker.respond("muster.check.>", |_| "an answer".into()).await.unwrap();
        let barriers = Mutex::new(BARRIERS.map(|(role, subjects)| Barrier::new(&hub, role, subjects)).into());
        let services = vec![publisher, rollup, operator, checker];
        Self { hub, ingest, asked, barriers, _serving: serving, _checker: answering, _services: services }
    }

    /// Waits until JetStream has handled the requests that were made, and each stream of HUB what was published to it.
    pub(crate) fn wait(&self) {
        self.barriers.lock().unwrap().iter_mut().for_each(Barrier::wait);
    }

    /// The streams of all accounts, once what was sent before is handled. A mirror follows in its own time, so what it
    /// holds is left out.
    pub(crate) fn streams(&self) -> Streams {
        self.wait();
        let mut streams = self.hub.streams();
        let mirrors = streams.iter_mut().filter(|((account, _), _)| *account == Account::Readers);
        mirrors.for_each(|(_, mirror)| mirror.holds = Value::Null);
        streams
    }

    /// How the streams differ from what they were.
    pub(crate) fn changes(&self, before: &Streams) -> BTreeSet<Change> {
        changes(before, &self.streams())
    }

    /// The settings of an account's streams, by name.
    pub(crate) fn settings(&self, account: Account) -> BTreeMap<String, Value> {
        let streams = self.hub.streams().into_iter().filter(|((of, _), _)| *of == account);
        streams.map(|((_, name), stream)| (name, stream.settings)).collect()
    }

    pub(crate) fn raw(&self, actor: &Actor) -> Raw {
        Raw::connect(self.hub.server.port(), &actor.creds).unwrap()
    }

    pub(crate) fn actor(&self, role: Role) -> Actor {
        Actor::of(&self.hub, role)
    }
}

impl Barrier {
    fn new(hub: &Guarded, role: Role, subjects: &'static [&'static str]) -> Self {
        let actor = Actor::of(hub, role);
        let mut raw = Raw::connect(hub.server.port(), &actor.creds).unwrap();
        let reply = format!("{}.barrier", actor.inbox());
        raw.subscribe(&reply, 1);
        Self { role, raw, reply, subjects }
    }

    fn wait(&mut self) {
        if self.role == Role::Ingest {
            for _ in 0..REQUESTS {
                let answer = self.raw.ask(NOTHING_TO_DELETE, &self.reply, "");
                assert!(answer.contains("10014"), "{answer}");
            }
        }
        for subject in self.subjects {
            let answer = self.raw.ask_with(subject, &self.reply, REFUSED, "");
            assert!(answer.contains("10071"), "{subject}: {answer}");
        }
    }
}

async fn serve(
    bus: &Bus,
    name: &'static str,
    subjects: &[&'static str],
    asked: &Arc<Mutex<Vec<Requester>>>,
) -> Serving {
    let endpoint = |subject: &&'static str| EndpointSpec {
        name: subject.rsplit('.').next().unwrap(),
        subject: (*subject).to_owned(),
    };
    let endpoints = subjects.iter().map(endpoint).collect();
    let spec = ServiceSpec { name, version: "1.0.0", description: "answers", endpoints };
    let asked = Arc::clone(asked);
    let answer = move |call: Call| {
        asked.lock().unwrap().push(call.requester);
        async { Ok("an answer".into()) }
    };
    bus.serve(spec, answer).await.unwrap()
}
