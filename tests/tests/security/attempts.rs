//! Attempts of a device: it has its own credentials and speaks the protocol itself.

use muster_bus::{Bus, Outgoing, Start};
use muster_contract::subjects::{self, stream};
use muster_identity::Role;
use muster_tests::guarded::Guarded;
use muster_tests::raw::Raw;
use muster_tests::server::device;
use muster_tests::wait::{soon, until};

use crate::{connect, ingest};

/// The desired state of the other device: no third one may read it.
const SECRET: &str = "what press-5 shall run";

/// A hub with a device that attacks and one that is attacked.
struct Stage {
    hub: Guarded,
    ingest: Bus,
    attacker: Raw,
    asked: u32,
}

impl Stage {
    async fn start() -> Self {
        let hub = Guarded::start_plain();
        let ingest = ingest(&hub).await;
        let publisher = connect(hub.config(Role::Publisher)).await;
        publisher.publish(Outgoing::new(subjects::desired(&device("press-5")), SECRET)).await.unwrap();
        publisher.publish(Outgoing::new(subjects::desired(&device("press-4")), "own")).await.unwrap();
        let creds = hub.enroll(&device("press-4"), "1h");
        let attacker = Raw::connect(hub.server.port(), &creds).unwrap();
        Self { hub, ingest, attacker, asked: 100 }
    }

    fn cannot_publish(&mut self, subjects: &[&str]) {
        for subject in subjects {
            let said = self.attacker.publish(subject, "_INBOX_plant7_press-4.x", "{}").join("\n");
            assert!(said.contains("Permissions Violation for Publish"), "{subject}: {said}");
        }
    }

    fn cannot_subscribe(&mut self, subjects: &[&str]) {
        for subject in subjects {
            let said = self.attacker.subscribe(subject, 9).join("\n");
            assert!(said.contains("Permissions Violation for Subscription"), "{subject}: {said}");
        }
    }

    /// The answer to a permitted request.
    fn asked(&mut self, subject: &str, header: Option<&str>, payload: &str) -> String {
        self.asked += 1;
        let inbox = &format!("_INBOX_plant7_press-4.{}", self.asked);
        let said = self.attacker.subscribe(inbox, self.asked);
        assert!(said.is_empty(), "{said:?}");
        let said = match header {
            Some(header) => self.attacker.publish_with(subject, inbox, header, payload),
            None => self.attacker.publish(subject, inbox, payload),
        };
        // The answer may come before the server's answer to the ping.
        if said.iter().any(|line| line.starts_with("MSG") || line.starts_with("HMSG")) {
            return said.join("\n");
        }
        assert!(said.is_empty(), "{said:?}");
        self.attacker.message()
    }

    async fn held(&self, stream: &str) -> u64 {
        self.ingest.stream_state(stream).await.unwrap().messages
    }
}

#[tokio::test]
async fn a_device_cannot_read_anothers_desired_state() {
    let mut stage = Stage::start().await;
    stage.cannot_publish(&[
        "$JS.API.DIRECT.GET.DOWNLINK.muster.desired.plant7.press-5",
        "$JS.API.DIRECT.GET.DOWNLINK.muster.receipt.plant7.press-5",
        "$JS.API.DIRECT.GET.DOWNLINK.muster.credential.plant7.press-5",
        "$JS.API.DIRECT.GET.DOWNLINK",
        "$JS.API.STREAM.MSG.GET.DOWNLINK",
        "$JS.API.DIRECT.GET.LEDGER.muster.desired.plant7.press-5",
    ]);
    stage.cannot_subscribe(&[
        "muster.live.*.plant7.press-5",
        "muster.live.>",
        "muster.live.notice.*",
        "muster.>",
        ">",
        "muster.desired.*.*",
    ]);
    let own = "$JS.API.DIRECT.GET.DOWNLINK.muster.desired.plant7.press-4";
    assert!(stage.asked(own, None, "").contains("own"));
    for body in [
        r#"{"last_by_subj":"muster.desired.plant7.press-5"}"#,
        r#"{"seq":1}"#,
        r#"{"multi_last":["muster.>"]}"#,
    ] {
        let answer = stage.asked(own, None, body);
        assert!(!answer.contains(SECRET), "{body}: {answer}");
    }
}

/// The audit line: nats-server writes it to its log, with the key of the client that tried. Nothing comes over the wire, not
/// even to the system account.
#[tokio::test]
async fn an_attempt_beyond_a_devices_rights_is_in_the_servers_log_alone() {
    let mut stage = Stage::start().await;
    let creds = std::fs::read_to_string(stage.hub.dir().join("plant7_press-4.creds")).unwrap();
    let key = muster_identity::jwt::read(muster_identity::creds::token(&creds).unwrap()).unwrap().sub;
    stage.cannot_publish(&["muster.report.plant7.press-5"]);
    stage.cannot_subscribe(&["muster.live.*.plant7.press-5"]);
    let log = async || stage.hub.server.log();
    for (kind, subject) in [
        ("Publish Violation", "muster.report.plant7.press-5"),
        ("Subscription Violation", "muster.live.*.plant7.press-5"),
    ] {
        let line = |log: &String| {
            log.lines().any(|line| line.contains(kind) && line.contains(subject) && line.contains(&key))
        };
        until("the server's log has it", log, line).await;
    }
}

#[tokio::test]
async fn a_device_cannot_write_anothers_report_or_heartbeat() {
    let mut stage = Stage::start().await;
    stage.cannot_publish(&[
        "muster.report.plant7.press-5",
        "muster.presence.plant7.press-5",
        "muster.report.plant8.press-4",
        "muster.report.7.plant7.press-5",
        "muster.report.7.plant7.press-4",
    ]);
    assert_eq!((stage.held(stream::UPLINK).await, stage.held(stream::PRESENCE).await), (0, 0));
}

#[tokio::test]
async fn a_device_cannot_forge_a_receipt_a_desired_state_or_a_fact() {
    let mut stage = Stage::start().await;
    let before = (stage.held(stream::DOWNLINK).await, stage.held("KV_views").await);
    stage.cannot_publish(&[
        "muster.receipt.plant7.press-4",
        "muster.receipt.plant7.press-5",
        "muster.desired.plant7.press-4",
        "muster.desired.plant7.press-5",
        "muster.credential.plant7.press-4",
        "muster.credential.plant7.press-5",
        "muster.live.desired.plant7.press-5",
        "muster.status.plant7.press-4.web",
        "muster.device.plant7.press-4",
        "muster.liveness.plant7.press-4",
        "muster.quarantine._._",
        "muster.rejected.plant7.press-4",
        "$KV.views.fleet",
        "muster.publisher.apply",
        "muster.query.devices",
        "muster.notify.subscribe",
        "muster.notify.missed",
        "muster.subscription.mine",
        "muster.notice.mine",
    ]);
    assert_eq!((stage.held(stream::DOWNLINK).await, stage.held("KV_views").await), before);
}

#[tokio::test]
async fn a_device_cannot_list_devices_or_streams() {
    let mut stage = Stage::start().await;
    stage.cannot_publish(&[
        "$JS.API.INFO",
        "$JS.API.STREAM.NAMES",
        "$JS.API.STREAM.LIST",
        "$JS.API.STREAM.INFO.DOWNLINK",
        "$JS.API.STREAM.INFO.UPLINK",
        "$JS.API.CONSUMER.LIST.UPLINK",
        "$JS.API.CONSUMER.NAMES.LEDGER",
        "$SRV.PING",
        "$SYS.REQ.USER.INFO",
        "$SYS.REQ.ACCOUNT.PING.CONNZ",
        "$SYS.REQ.SERVER.PING",
        "$SYS.REQ.CLAIMS.UPDATE",
    ]);
}

#[tokio::test]
async fn a_device_cannot_read_anothers_inbox() {
    let mut stage = Stage::start().await;
    stage.cannot_subscribe(&[
        "_INBOX_plant7_press-5.>",
        "_INBOX.>",
        "_INBOX.*.*",
        "*.>",
        "*.*",
        "_R_.>",
        "$JS.>",
        "$SYS.>",
    ]);
}

#[tokio::test]
async fn a_device_cannot_purge_delete_or_change_a_stream() {
    let mut stage = Stage::start().await;
    let before = stage.held(stream::DOWNLINK).await;
    stage.cannot_publish(&[
        "$JS.API.STREAM.PURGE.UPLINK",
        "$JS.API.STREAM.PURGE.DOWNLINK",
        "$JS.API.STREAM.DELETE.LEDGER",
        "$JS.API.STREAM.UPDATE.DOWNLINK",
        "$JS.API.STREAM.CREATE.MINE",
        "$JS.API.STREAM.MSG.DELETE.DOWNLINK",
        "$JS.API.STREAM.SNAPSHOT.LEDGER",
    ]);
    assert_eq!(stage.held(stream::DOWNLINK).await, before);
}

#[tokio::test]
async fn a_device_cannot_create_use_or_acknowledge_consumers() {
    let mut stage = Stage::start().await;
    stage.cannot_publish(&[
        "$JS.API.CONSUMER.CREATE.DOWNLINK",
        "$JS.API.CONSUMER.CREATE.DOWNLINK.mine",
        "$JS.API.CONSUMER.CREATE.DOWNLINK.mine.muster.desired.plant7.press-4",
        "$JS.API.CONSUMER.DURABLE.CREATE.DOWNLINK.mine",
        "$JS.API.CONSUMER.MSG.NEXT.UPLINK.ingest-0",
        "$JS.API.CONSUMER.DELETE.UPLINK.ingest-0",
        "$JS.API.CONSUMER.PAUSE.UPLINK.ingest-0",
        "$JS.ACK.UPLINK.ingest-0.1.1.1.1.1",
    ]);
}

#[tokio::test]
async fn a_device_cannot_empty_a_stream_or_set_a_life_span_with_a_header() {
    let mut stage = Stage::start().await;
    let own = "muster.report.plant7.press-4";
    assert!(stage.asked(own, None, "{}").contains("\"seq\":1"));
    for (header, code) in
        [("Nats-Rollup: all", "10111"), ("Nats-Rollup: sub", "10111"), ("Nats-TTL: 1s", "10166")]
    {
        let answer = stage.asked(own, Some(header), "{}");
        assert!(answer.contains(code), "{header}: {answer}");
    }
    for header in [
        "Nats-Schedule: @at 2030-01-01T00:00:00Z\r\nNats-Schedule-Target: muster.report.plant7.press-5",
        "Nats-Incr: +1",
    ] {
        let answer = stage.asked(own, Some(header), "{}");
        assert!(answer.contains("\"error\""), "{header}: {answer}");
    }
    assert_eq!(stage.held(stream::UPLINK).await, 1);
}

#[tokio::test]
async fn a_device_cannot_have_the_server_write_where_it_may_not() {
    let mut stage = Stage::start().await;
    let before = stage.held(stream::DOWNLINK).await;
    // Answers of the server go to whatever subject a request names.
    for target in
        ["muster.desired.plant7.press-5", "muster.receipt.plant7.press-5", "muster.report.plant7.press-5"]
    {
        for asked in
            ["muster.report.plant7.press-4", "$JS.API.DIRECT.GET.DOWNLINK.muster.desired.plant7.press-4"]
        {
            stage.attacker.publish(asked, target, "");
        }
    }
    // The answer to the earlier request is its place once a later report is stored.
    stage.asked("muster.report.plant7.press-4", None, "{}");
    let report = stage.ingest.last(stream::DOWNLINK, "muster.desired.plant7.press-5").await.unwrap().unwrap();
    assert_eq!((&report.payload[..], stage.held(stream::DOWNLINK).await), (SECRET.as_bytes(), before));
    assert_eq!(stage.held(stream::UPLINK).await, 4, "its own reports and nobody else's");
}

#[tokio::test]
async fn guessed_message_ids_silence_nobody() {
    let mut stage = Stage::start().await;
    let (key, own) = (device("press-5"), "muster.report.plant7.press-4");
    stage.hub.enroll(&key, "1h");
    // The premise: an id belongs to the stream, whichever user sent it.
    let mut is_known = |nth: u32| {
        let id = format!("Nats-Msg-Id: known-{nth}");
        assert!(stage.asked(own, Some(&id), "{}").contains("\"seq\""));
        stage.asked(own, Some(&id), "{}").contains("duplicate")
    };
    // The stream forgets an id soon; a slow machine takes more than one attempt to be in time.
    assert!((0..50).any(&mut is_known));
    for seq in 1..200 {
        for id in [format!("press-5-{seq}"), format!("plant7.press-5.{seq}"), format!("{seq}")] {
            stage.attacker.publish_with(own, "", &format!("Nats-Msg-Id: {id}"), "{}");
        }
    }
    let agent = crate::fleet::Agent::start(&stage.hub, &key);
    let stored = async || agent.reports(&stage.ingest).await;
    until("reports of press-5", stored, |reports: &Vec<String>| !reports.is_empty()).await;
    let subject = format!("muster.report.*.{}.{}", key.site, key.device);
    let mut replay = stage.ingest.replay(stream::UPLINK, &[&subject], Start::First).await.unwrap();
    for report in soon("reports", replay.next_batch(1_000)).await.unwrap() {
        assert_eq!(report.headers.get("Nats-Msg-Id"), None, "an id could be used up");
    }
    stage.cannot_publish(&[
        "$JS.API.DIRECT.GET.UPLINK.muster.report.*.plant7.press-5",
        "$JS.API.STREAM.MSG.GET.UPLINK",
    ]);
}
