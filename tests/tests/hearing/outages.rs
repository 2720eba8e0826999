//! Tests outages that no fact in LEDGER records: a LEDGER that accepts no fact, a rollup that is dead or cut off from LEDGER, and an
//! ingest that has not finished its start. No reader shows the fleet as current then, and each outage ends by itself. Notices
//! report the outages that facts record.

use std::net::SocketAddr;
use std::process::Stdio;

use muster_contract::lag::AnswerLag;
use muster_contract::notify::Notice;
use muster_contract::validity::valid_until;
use muster_simulator::child::Spec;
use muster_simulator::http;
use muster_simulator::link::{Link, Shape};
use muster_tests::server::{Server, Setup, free_port};
use muster_tests::system::{DEADLINE, program};
use muster_tests::wait::{soon, within};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use super::*;

/// The shortest validity of views, as the rollup's setting and as a time.
const VALIDITY: (&str, Duration) = ("10s", Duration::from_secs(10));
/// Time in which a reader looks at its clock again: the example in Python does so every five seconds.
const LOOKED_WITHIN: Duration = Duration::from_secs(8);
/// Delay of each direction of a link over which a start of ingest takes far longer than a lease.
const HELD_BY: Duration = Duration::from_millis(700);

/// Until when a view of the bucket may be believed.
async fn valid_to(system: &System, key: &str) -> Timestamp {
    let entry = system.bus.view_get(key).await.unwrap().unwrap();
    valid_until(&entry.value.unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_refuses_facts_ends_the_validity_of_views_meanwhile() {
    let (mut system, device) = converged_on_one().await;
    let mut watch = Watch::start(&system, &[]);
    watch.line_with("converged").await;
    assert!(valid_to(&system, "deployment.web").await > Timestamp::now());
    set(&system, "max_msgs", json!(1)).await;
    system.kill(&agent_name(&device)).await;
    let begun = Instant::now();
    for key in ["deployment.web", "site.plant7", "fleet"] {
        while valid_to(&system, key).await > Timestamp::now() {
            assert!(begun.elapsed() < SHOWN_WITHIN, "{key}: {}\n{}", view(&system).await, system.log(ROLLUP));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    // The view equals LEDGER, and every reader of the bucket is warned.
    assert_eq!(view(&system).await["verdict"], "converged");
    watch.says("was not renewed").await;

    set(&system, "max_msgs", json!(-1)).await;
    system.start_again(&agent_name(&device));
    let is_valid = || valid_to(&system, "deployment.web");
    within(DEADLINE, "the views are renewed", is_valid, |until| *until > Timestamp::now()).await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    rebuilt(&system).await;
}

/// Subjects that only ingest writes to LEDGER, and those of all that is written there.
const OF_INGEST: [&str; 5] =
    ["muster.hub.>", "muster.status.>", "muster.liveness.>", "muster.device.>", "muster.incident.>"];
const OF_LEDGER: [&str; 6] =
    [OF_INGEST[0], OF_INGEST[1], OF_INGEST[2], OF_INGEST[3], OF_INGEST[4], "muster.hearing.>"];

/// Settings of the server by which it accepts every client, and denies publishes to these subjects.
fn everybody_but(denied: &[&str]) -> String {
    let denied = denied.iter().map(|subject| format!("\"{subject}\"")).collect::<Vec<_>>().join(", ");
    let user = format!("{{ user: any, password: any, permissions: {{ publish: {{ deny: [{denied}] }} }} }}");
    format!("authorization {{ users: [{user}] }}\nno_auth_user: any\n")
}

/// How long LEDGER takes no fact, or none of ingest.
enum Refusing {
    /// The server denies publishes to these subjects, until the test gives the right back.
    Right(&'static [&'static str]),
    /// LEDGER is sealed, for ever.
    Sealed,
}

/// The reason for which a reader of the bucket does not believe a view now; `None` if the reader believes it.
async fn disbelief(system: &System, key: &str) -> Option<&'static str> {
    let entry = system.bus.view_get(key).await.unwrap().unwrap();
    let view: Value = serde_json::from_slice(&entry.value.unwrap()).unwrap();
    let is_unheard = view["hub"]["unheard"].as_array().is_some_and(|unheard| !unheard.is_empty());
    if is_unheard {
        return Some("unheard");
    }
    (valid_to(system, key).await <= Timestamp::now()).then_some("not valid")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_view_is_believed_ten_seconds_after_the_last_lease_of_ingest() {
    let server = Server::start_with(Setup { more: everybody_but(&[]), ..Setup::default() });
    let (mut system, device) = converged(System::start_on(server, &[]).await).await;
    for (name, refusing, shown) in [
        ("the right of ingest is gone", Refusing::Right(&OF_INGEST), "unheard"),
        ("nobody may write to LEDGER", Refusing::Right(&OF_LEDGER), "not valid"),
        ("LEDGER is sealed", Refusing::Sealed, "not valid"),
    ] {
        let begun = Instant::now();
        match refusing {
            Refusing::Right(subjects) => system.server.reload_with(&everybody_but(subjects)),
            Refusing::Sealed => set(&system, "sealed", json!(true)).await,
        }
        for key in ["deployment.web", "site.plant7", "fleet"] {
            let found = within(SHOWN_WITHIN, name, || disbelief(&system, key), Option::is_some).await;
            assert_eq!(found, Some(shown), "{name}: {key}");
        }
        assert!(begun.elapsed() < SHOWN_WITHIN, "{name}: {:?}", begun.elapsed());
        let (has_converged, text) =
            muster(&system, &["watch", "web", "--until", "converged", "--within", "2s"]).await;
        assert!(!has_converged, "{name}: {text}");
        if let Refusing::Right(_) = refusing {
            system.server.reload_with(&everybody_but(&[]));
            for key in ["deployment.web", "site.plant7", "fleet"] {
                within(DEADLINE, key, || disbelief(&system, key), Option::is_none).await;
            }
            verdict(&system, "web", 1, Verdict::Converged).await;
            let partition = partition_of(&device);
            system.eventually("a current pulse", async || current_pulse(&system, partition).await).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn notices_tell_that_the_hub_stopped_listening_and_that_it_resumed() {
    let (mut system, device) = converged_on_one().await;
    let mut watch = Watch::start(&system, &["web", "--format", "json"]);
    let hub = |notice: &Notice| notice.state.as_ref().map(|state| state.hub.clone()).unwrap_or_default();
    let verdict_of = |notice: &Notice| {
        let view = notice.state.as_ref().and_then(|state| state.view.as_ref());
        view.map(|view| view.verdict)
    };
    watch.notices(|notice| verdict_of(notice) == Some(Verdict::Converged)).await;
    system.kill(INGEST).await;
    let begun = Instant::now();
    let partition = partition_of(&device);
    let is_stopped = |notice: &Notice| hub(notice).unheard.iter().any(|of| of.partition == partition);
    let notices = watch.notices(is_stopped).await;
    assert!(begun.elapsed() < SHOWN_WITHIN, "{:?}", begun.elapsed());
    assert_eq!(verdict_of(notices.last().unwrap()), Some(Verdict::ConvergedStale));

    system.start_again(INGEST);
    let begun = Instant::now();
    let notices = watch.notices(|notice| hub(notice).is_whole()).await;
    assert!(begun.elapsed() < SHOWN_WITHIN, "{:?}", begun.elapsed());
    assert_eq!(verdict_of(notices.last().unwrap()), Some(Verdict::Converged));
}

/// An answer to a question.
async fn answer(system: &System, subject: &str, question: &Value) -> String {
    let asked = Bytes::from(question.to_string());
    let answer = system.bus.request(subject, asked, Duration::from_secs(5)).await;
    answer.map_or_else(|error| error.to_string(), |answer| String::from_utf8_lossy(&answer).into_owned())
}

async fn fleet(system: &System) -> String {
    answer(system, "muster.query.fleet", &json!({})).await
}

/// The subjects that a service of the rollup answers, as the service itself lists them.
async fn endpoints(system: &System, service: &str) -> Vec<String> {
    let info: Value =
        serde_json::from_str(&answer(system, &format!("$SRV.INFO.{service}"), &json!({})).await).unwrap();
    let subject = |endpoint: &Value| endpoint["subject"].as_str().unwrap().to_owned();
    info["endpoints"].as_array().unwrap().iter().map(subject).collect()
}

/// A question for a subject of the rollup.
fn question(subject: &str) -> Value {
    match subject {
        "muster.query.deployment" | "muster.query.why" => json!({ "id": "web" }),
        "muster.query.device" => json!({ "site": "plant7", "device": "press-1" }),
        "muster.query.site" => json!({ "site": "plant7" }),
        "muster.query.parts" => json!({ "keys": ["fleet"] }),
        "muster.notify.content" => json!({ "subscription": { "name": "all" } }),
        "muster.notify.confirm" => json!({ "name": "all", "number": 0 }),
        "muster.notify.subscribe" | "muster.notify.unsubscribe" | "muster.notify.missed" => {
            json!({ "name": "all" })
        }
        _ => json!({}),
    }
}

/// Subjects that refuse the question asked here.
const REFUSED: [&str; 15] = [
    "muster.notify.missed",
    "muster.query.actions",
    "muster.query.moment",
    "muster.query.digests",
    "muster.query.diff",
    "muster.query.changes",
    "muster.query.verify",
    "muster.query.groups",
    "muster.query.group",
    "muster.query.view",
    "muster.notify.webhook-register",
    "muster.notify.webhook-remove",
    "muster.notify.webhook-due",
    "muster.notify.webhook-result",
    "muster.notify.webhook-revoke",
];

/// The words for people of a rollup that cannot read LEDGER.
const CUT_OFF: &str = "muster-rollup is cut off from LEDGER";

/// The lag that an answer names; none where there is no answer.
fn lag_in(answer: &str) -> Option<AnswerLag> {
    serde_json::from_str(answer).ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollup_that_is_cut_off_from_ledger_says_so_in_every_answer() {
    let everybody = |rights: &str| {
        format!("authorization {{ users: [{{ user: any, password: any {rights} }}] }}\nno_auth_user: any\n")
    };
    let server = Server::start_with(Setup { more: everybody(""), ..Setup::default() });
    let (mut system, _) = converged(System::start_on(server, &[]).await).await;
    let named = answer(&system, "muster.notify.subscribe", &question("muster.notify.subscribe")).await;
    assert!(!named.contains("error"), "{named}");
    let mut subjects = Vec::new();
    for service in ["muster-query", "muster-query-incidents", "muster-notify"] {
        subjects.extend(endpoints(&system, service).await);
    }
    // This one takes the subscription of the others away.
    subjects.sort_by_key(|subject| subject.ends_with("unsubscribe"));
    // An operator takes away every right to read LEDGER, and no other right.
    let denied =
        ["STREAM.INFO.LEDGER", "CONSUMER.*.LEDGER.>", "CONSUMER.MSG.NEXT.LEDGER.>", "DIRECT.GET.LEDGER.>"];
    let denied = denied.map(|subject| format!("\"$JS.API.{subject}\"")).join(", ");
    let begun = Instant::now();
    system.server.reload_with(&everybody(&format!(", permissions: {{ publish: {{ deny: [{denied}] }} }}")));
    let is_cut_off = |said: AnswerLag| said.lag().is_some_and(|lag| lag.cut_off_since.is_some());
    let is_said = |answer: &String| lag_in(answer).is_some_and(is_cut_off);
    within(SHOWN_WITHIN, "fleet", || fleet(&system), is_said).await;
    assert!(begun.elapsed() < SHOWN_WITHIN, "{:?}", begun.elapsed());
    assert!(subjects.len() > REFUSED.len(), "{subjects:?}");
    for subject in &subjects {
        let given = answer(&system, subject, &question(subject)).await;
        assert!(is_said(&given), "{subject}: {given}");
        let refusal = serde_json::from_str::<Value>(&given).unwrap()["error"]["message"].take();
        let is_told = refusal.as_str().is_some_and(|message| message.contains(CUT_OFF));
        assert!(refusal.is_null() || is_told && REFUSED.contains(&&**subject), "{subject}: {given}");
    }
    for words in [&["status"][..], &["status", "--site", "plant7"], &["devices"], &["why", "web"]] {
        let (_, text) = muster(&system, words).await;
        let is_answered = text.contains("web") || text.contains(DEVICE);
        assert!(is_answered && text.contains(CUT_OFF), "{words:?}: {text}");
        assert!(!text.contains("all known and fresh"), "{words:?}: {text}");
    }
    let (is_found, text) = muster(&system, &["status", "another"]).await;
    assert!(!is_found && text.contains(CUT_OFF), "{text}");
    let (has_converged, text) =
        muster(&system, &["watch", "web", "--until", "converged", "--within", "2s"]).await;
    assert!(!has_converged && text.contains("cut off"), "{text}");

    system.server.reload_with(&everybody(""));
    let is_whole = |answer: &String| lag_in(answer).is_some_and(|said| said.lag().is_none());
    within(DEADLINE, "LEDGER is read again", || fleet(&system), is_whole).await;
    verdict(&system, "web", 1, Verdict::Converged).await;
}

/// The subscriber's example in Python, and what it prints.
fn python_watch(system: &System) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = Command::new(interpreter());
    command.arg(schemas::folder().join("examples/watch.py")).args(["--url", &system.server.url()]);
    command.env("PYTHONDONTWRITEBYTECODE", "1").stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

/// Waits for the row of `web` with these words.
async fn row_with(lines: &mut Lines<BufReader<ChildStdout>>, words: &str) {
    loop {
        let line = soon(words, lines.next_line()).await.unwrap().expect("it goes on");
        if line.starts_with("web ") && line.contains(words) {
            return;
        }
    }
}

/// Starts a gateway; its address.
fn start_gateway(system: &mut System) -> SocketAddr {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let words =
        ["--nats-url", &system.server.url(), "--insecure-http", "--people-addr", &address.to_string()];
    let (name, args) = ("muster-gateway", words.map(str::to_owned).to_vec());
    system.start_own(Spec { name: name.to_owned(), program: program(name), args });
    address
}

/// Waits until a page has this status and these words.
async fn page_says(address: SocketAddr, status: u16, words: &str) {
    let page = || async { http::get(address, "/").await.map(|answer| (answer.status, answer.body)) };
    let is_so = |page: &std::io::Result<(u16, String)>| {
        page.as_ref().is_ok_and(|(found, body)| *found == status && body.contains(words))
    };
    within(DEADLINE, words, page, is_so).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_reader_of_the_bucket_shows_a_killed_rollup_within_the_validity() {
    let (mut system, _) = converged_with(&[(ROLLUP, &["--view-validity", VALIDITY.0])]).await;
    let mut watch = Watch::start(&system, &[]);
    watch.line_with("converged").await;
    let (_python, mut rows) = python_watch(&system);
    row_with(&mut rows, "converged").await;
    let gateway = start_gateway(&mut system);
    page_says(gateway, 200, "/deployments/web").await;
    // A rollup that runs renews: the view is valid long after its first validity.
    tokio::time::sleep(VALIDITY.1 + Duration::from_secs(1)).await;
    assert!(valid_to(&system, "deployment.web").await > Timestamp::now());

    system.kill(ROLLUP).await;
    let killed = Instant::now();
    let until = valid_to(&system, "deployment.web").await;
    assert!(until.duration_since(Timestamp::now()).as_secs() <= VALIDITY.1.as_secs().cast_signed());
    watch.says("was not renewed").await;
    row_with(&mut rows, "OLD").await;
    page_says(gateway, 503, "not renewed").await;
    let took = killed.elapsed();
    assert!(took < VALIDITY.1 + LOOKED_WITHIN, "{took:?}");
    assert_eq!(valid_to(&system, "deployment.web").await, until, "nobody renews it");
    let (is_right, text) = muster(&system, &["audit"]).await;
    assert!(!is_right, "{text}");

    system.start_again(ROLLUP);
    row_with(&mut rows, "converged").await;
    page_says(gateway, 200, "/deployments/web").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingest_that_has_not_finished_its_start_is_shown_as_unheard() {
    let (mut system, device) = converged_on_one().await;
    system.kill(INGEST).await;
    let link = Link::open(system.address()).await.unwrap();
    link.shape(Shape::PLAIN.late(HELD_BY, Duration::ZERO));
    let health = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (url, http_addr) = (format!("nats://{}", link.address()), health.to_string());
    let args = ["--nats-url", &url, "--lease", "3s", "--http-addr", &http_addr].map(str::to_owned).to_vec();
    system.start_own(Spec { name: INGEST.to_owned(), program: program(INGEST), args });
    let begun = Instant::now();
    unheard_in_time(&system, &device, begun).await;
    everything_says_so(&system, &device, 1).await;
    let ready = http::get(health, "/ready").await.unwrap();
    assert!(ready.status == 503 && ready.body.contains("reading LEDGER"), "{} {}", ready.status, ready.body);

    link.shape(Shape::PLAIN);
    verdict(&system, "web", 1, Verdict::Converged).await;
    assert!(view(&system).await["hub"].is_null());
    rebuilt(&system).await;
}
