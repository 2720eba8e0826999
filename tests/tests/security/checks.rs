//! Checks over NATS on a secured hub: a checker answers the planner and can do nothing else, and nobody else hears a question or
//! answers one.

use std::time::Duration;

use muster_bus::{Bus, Start};
use muster_contract::rollout::CHECK_TIMEOUT;
use muster_contract::subjects::{self, stream};
use muster_identity::Role;
use muster_simulator::repository::{BRANCH, Repository, write_devices};
use muster_tests::guarded::Guarded;
use muster_tests::raw::Raw;
use muster_tests::rollouts::PLANNER;
use muster_tests::server::device;
use muster_tests::system::{INGEST, PUBLISHER, ROLLUP};
use muster_tests::wait::until;

use crate::fleet::{Agent, WEB, asked, start_service};
use crate::matrix::table::{Actor, DEVICE};
use crate::{connect, ingest};

const CHECK: &str = "muster.check.smoke";
const ROLLOUT: &str = "\
apiVersion: muster/v1
kind: Rollout
waves:
  - {name: canary, devices: [plant7/press-4], checks: [{request: muster.check.smoke, interval: 1s}]}
";
/// Roles that neither hear nor answer a check: all of PEOPLE but the planner, and devices.
const OTHERS: [Role; 7] = [
    Role::Viewer,
    Role::Approver,
    Role::Subscriber,
    Role::Operator,
    Role::Packager,
    Role::Gateway,
    Role::Device,
];

/// A planner that has asked nothing yet, and the reply subject of its questions.
fn planner(hub: &Guarded) -> (Raw, String) {
    let actor = Actor::of(hub, Role::Planner);
    let mut raw = Raw::connect(hub.server.port(), &actor.creds).unwrap();
    let reply = format!("{}.1", actor.inbox());
    raw.subscribe(&reply, 1);
    (raw, reply)
}

/// A checker that hears every question.
fn checker(hub: &Guarded) -> Raw {
    let mut raw = Raw::connect(hub.server.port(), &hub.creds(Role::Checker)).unwrap();
    raw.subscribe("muster.check.>", 1);
    raw
}

/// The next question that a checker hears, and the subject of its answer.
fn heard(checker: &mut Raw) -> (String, String) {
    let message = checker.message();
    let (head, body) = message.split_once('\n').unwrap();
    // After the headers of the server.
    let question = body.rsplit("\r\n").next().unwrap();
    let reply = head.split(' ').nth(3).unwrap_or_else(|| panic!("no reply subject: {head}"));
    (question.to_owned(), reply.to_owned())
}

/// Whether the server refuses a message.
fn is_refused(raw: &mut Raw, subject: &str) -> bool {
    raw.publish(subject, "", "{}").iter().any(|line| line.contains("Permissions Violation"))
}

/// The text of a device's newest desired state.
async fn desired(ingest: &Bus, name: &str) -> String {
    let last = ingest.last(stream::DOWNLINK, &subjects::desired(&device(name))).await.ok().flatten();
    last.map(|last| String::from_utf8_lossy(&last.payload).into_owned()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checker_answers_the_planner_and_opens_the_gate_of_a_wave() {
    let hub = Guarded::start_plain();
    let ingest_bus = ingest(&hub).await;
    let repository = Repository::create(hub.dir().join("repository")).await.unwrap();
    write_devices(&repository, &[device("press-4"), device("press-5")]).unwrap();
    repository.write("fleet/web.yaml", WEB).unwrap();
    repository.write("fleet/rollout.yaml", ROLLOUT).unwrap();
    repository.commit("web").await.unwrap();
    let git = repository.dir().display().to_string();
    let args = ["--git-url", &git, "--git-branch", BRANCH, "--git-poll", "200ms"];
    let _publisher = start_service(&hub, Role::Publisher, PUBLISHER, &args);
    let _ingest = start_service(&hub, Role::Ingest, INGEST, &["--lease", "5s"]);
    let rollup_data = hub.dir().join("rollup").display().to_string();
    let keeper = hub.creds(Role::Keeper).display().to_string();
    let rollup_args = ["--data-dir", &rollup_data, "--readers-creds", &keeper];
    let _rollup = start_service(&hub, Role::Rollup, ROLLUP, &rollup_args);
    let _planner = start_service(&hub, Role::Planner, PLANNER, &["--every", "200ms"]);
    let _agents = ["press-4", "press-5"].map(|name| Agent::start(&hub, &device(name)));

    let shown =
        async || asked(&hub, Role::Operator, &["rollout", "show", "web"]).map(|shown| shown.to_string());
    let waits = |shown: &Result<String, String>| {
        shown.as_ref().is_ok_and(|shown| shown.contains("no service answers there"))
    };
    until("the gate waits for the check", shown, waits).await.unwrap();
    assert!(desired(&ingest_bus, "press-4").await.contains("web"));
    assert!(!desired(&ingest_bus, "press-5").await.contains("web"), "no answer is no pass");
    let bus = connect(hub.config(Role::Checker)).await;
    let _responder = bus.respond(CHECK, |_| br#"{"result":"pass"}"#.as_slice().into()).await.unwrap();
    let released = async || desired(&ingest_bus, "press-5").await;
    until("the other device gets the content", released, |text| text.contains("web")).await;
    let refused = hub.server.log().lines().find(|line| line.contains("ermissions")).map(str::to_owned);
    assert_eq!(refused, None, "nobody lacked a right");
}

/// A viewer who answers `pass` would open gates.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_but_a_checker_hears_a_question_or_answers_it() {
    let hub = Guarded::start_plain();
    let ingest = ingest(&hub).await;
    hub.enroll(&device(DEVICE), "1h");
    let ((mut planner, reply), mut checker) = (planner(&hub), checker(&hub));
    let mut others = OTHERS.map(|role| {
        let mut raw = Raw::connect(hub.server.port(), &Actor::of(&hub, role).creds).unwrap();
        for subject in [CHECK, "muster.check.>", "muster.check.> group", "muster.check.*", "muster.>"] {
            let said = raw.subscribe(subject, 1).join("\n");
            assert!(said.contains("Permissions Violation"), "{role:?} hears {subject}: {said}");
        }
        (role, raw)
    });
    planner.publish(CHECK, &reply, "the question");
    let (question, answer) = heard(&mut checker);
    assert_eq!(question, "the question");
    assert!(answer.starts_with("_R_."), "the server chooses the reply subject: {answer}");
    for (role, raw) in &mut others {
        for subject in [&answer, &reply, CHECK] {
            assert!(is_refused(raw, subject), "{role:?} writes to {subject}");
        }
        let said = raw.publish("_INBOX.nobody", "", "");
        assert!(!said.iter().any(|line| line.contains("the question")), "{role:?} hears it: {said:?}");
    }
    // The server's answer to an operator, sent to the subject of a check, reaches no checker.
    let mut operator = Raw::connect(hub.server.port(), &hub.creds(Role::Operator)).unwrap();
    operator.publish("muster.credential.plant7.press-4", CHECK, "a token");
    let stored = async || ingest.stream_state(stream::DOWNLINK).await.unwrap().messages;
    until("the token is stored", stored, |count| *count == 1).await;
    assert!(!is_refused(&mut checker, &answer));
    assert!(planner.message().ends_with("{}"), "the first answer is the checker's");
    planner.publish(CHECK, &reply, "another question");
    assert_eq!(heard(&mut checker).0, "another question");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checker_publishes_one_answer_in_time_and_nothing_else() {
    let hub = Guarded::start_plain();
    let ingest = ingest(&hub).await;
    let ((mut planner, reply), mut checker) = (planner(&hub), checker(&hub));
    planner.publish(CHECK, &reply, "the question");
    let (_, answer) = heard(&mut checker);
    assert!(!is_refused(&mut checker, &answer));
    assert!(planner.message().contains(&reply));
    assert!(is_refused(&mut checker, &answer), "a second answer");
    for other in [&reply, CHECK, "_R_.another", "muster.publisher.decide", "muster.planner.plan-approve"] {
        assert!(is_refused(&mut checker, other), "{other}");
    }
    for read in ["$JS.API.STREAM.INFO.LEDGER", "$JS.API.STREAM.MSG.GET.LEDGER", "$JS.API.INFO", "$SRV.PING"] {
        assert!(is_refused(&mut checker, read), "{read}");
    }
    // A planner names a subject of PEOPLE, to which operators alone may publish.
    let before = ingest.stream_state(stream::DOWNLINK).await.unwrap();
    planner.publish(CHECK, "muster.credential.plant7.press-4", "a question with a foreign reply");
    let (_, foreign) = heard(&mut checker);
    assert!(foreign.starts_with("_R_."), "{foreign}");
    assert!(!is_refused(&mut checker, &foreign));
    planner.publish(CHECK, &reply, "a question without an answer in time");
    let (_, late) = heard(&mut checker);
    tokio::time::sleep(CHECK_TIMEOUT + Duration::from_secs(1)).await;
    assert!(is_refused(&mut checker, &late), "a late answer");
    assert_eq!(ingest.stream_state(stream::DOWNLINK).await.unwrap(), before, "the answer was stored");
    let bus = connect(hub.config(Role::Checker)).await;
    assert!(bus.replay(stream::LEDGER, &[], Start::First).await.is_err());
    assert!(bus.view_get("fleet").await.is_err());
}
