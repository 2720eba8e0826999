//! Limits of the server itself: connections of an account, subscriptions of a connection, bytes of a message. A client that
//! reaches a limit is refused, and no other client is.

use std::path::Path;

use muster_bus::{Link, Outgoing, PublishErrorKind};
use muster_contract::limits::{
    BATCH_BYTES_MAX, DEVICE_MESSAGE_BYTES_MAX, HEARTBEAT_BYTES_MAX, REPORT_BYTES_MAX, REPORT_HEADER_BYTES_MAX,
};
use muster_contract::subjects::{self, stream};
use muster_identity::{Role, creds, jwt};
use muster_tests::guarded::Guarded;
use muster_tests::raw::Raw;
use muster_tests::server::device;
use muster_tests::wait::{soon, until};

use crate::{connect, ingest};

/// Connections that the accounts of devices and of people may have in these tests; the signed ones are thousands.
const CONNECTIONS: usize = 24;

/// Connects until the server lets nobody of the account in.
fn fill(hub: &Guarded, creds: &Path) -> Vec<Raw> {
    let mut held = Vec::new();
    loop {
        match Raw::connect(hub.server.port(), creds) {
            Ok(raw) => held.push(raw),
            Err(words) => {
                assert!(words.contains("maximum account active connections exceeded"), "{words}");
                return held;
            }
        }
        assert!(held.len() <= CONNECTIONS, "accepted beyond the limit of the account");
    }
}

fn is_let_in(hub: &Guarded, creds: &Path) -> bool {
    Raw::connect(hub.server.port(), creds).is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn full_accounts_of_devices_and_people_keep_no_service_out() {
    let hub = Guarded::start_with_connections(&[("devices", CONNECTIONS), ("people", CONNECTIONS)]);
    let _streams = ingest(&hub).await;
    let (greedy, good) = (device("press-4"), device("press-5"));
    let (creds, good_creds) = (hub.enroll(&greedy, "1h"), hub.enroll(&good, "1h"));
    let good_bus = connect(hub.device_config(&good)).await;
    let devices = fill(&hub, &creds);
    assert_eq!(devices.len(), CONNECTIONS - 1, "all but that of the good device");
    let people = fill(&hub, &hub.creds(Role::Viewer));
    assert_eq!(people.len(), CONNECTIONS);
    assert!(!is_let_in(&hub, &good_creds) && !is_let_in(&hub, &hub.creds(Role::Operator)));

    for role in [Role::Publisher, Role::Ingest, Role::Rollup, Role::Keeper] {
        assert!(is_let_in(&hub, &hub.creds(role)), "{role:?} is kept out");
    }
    for name in ["push", "watcher"] {
        let creds = hub.auth().join(format!("creds/{name}.creds"));
        assert!(is_let_in(&hub, &creds), "{name} of the system account is kept out");
    }
    // Connected clients work on, and a client that leaves makes room.
    soon("UPLINK", good_bus.publish(Outgoing::new(subjects::report(&good), "{}"))).await.unwrap();
    drop((devices, people));
    for creds in [good_creds, hub.creds(Role::Operator)] {
        until("room again", async || is_let_in(&hub, &creds), |is_in| *is_in).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_beyond_its_subscriptions_is_refused_them_and_stays() {
    let hub = Guarded::start_plain();
    let _streams = ingest(&hub).await;
    let own = hub.enroll(&device("press-4"), "1h");
    let people = [(Role::Viewer, 64), (Role::Subscriber, 256), (Role::Operator, 256)];
    let people = people.map(|(role, most)| {
        let text = std::fs::read_to_string(hub.creds(role)).unwrap();
        let key = jwt::read(creds::token(&text).unwrap()).unwrap().sub;
        (hub.creds(role), format!("_INBOX.{key}"), most)
    });
    let of_device = (own, "_INBOX_plant7_press-4".to_owned(), 16);
    for (creds, inbox, most) in people.into_iter().chain([of_device]) {
        let mut raw = Raw::connect(hub.server.port(), &creds).unwrap();
        for number in 1..=most {
            assert_eq!(raw.subscribe(&format!("{inbox}.{number}"), number), [""; 0], "{inbox}: {number}");
        }
        let said = raw.subscribe(&format!("{inbox}.more"), most + 1).join("\n");
        assert!(said.to_lowercase().contains("maximum subscriptions exceeded"), "{inbox}: {said}");
        assert!(!said.contains("hung up"), "{inbox}: the connection ended");
        raw.unsubscribe(1);
        assert_eq!(raw.subscribe(&format!("{inbox}.again"), most + 2), [""; 0], "{inbox}: room again");
        // The bound is one connection's: it takes nothing from another of the same key.
        let mut other = Raw::connect(hub.server.port(), &creds).unwrap();
        assert_eq!(other.subscribe(&format!("{inbox}.x"), 1), [""; 0], "{inbox}");
    }
}

/// A header that with its frame has so many bytes.
fn header_of(bytes: usize) -> String {
    let frame = "NATS/1.0\r\ntraceparent: \r\n\r\n".len();
    format!("traceparent: {}", "0".repeat(bytes - frame))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_above_a_devices_largest_report_ends_its_connection_alone() {
    let hub = Guarded::start_plain();
    let bus = ingest(&hub).await;
    let key = device("press-4");
    let creds = hub.enroll(&key, "1h");
    let held = async || bus.stream_state(stream::UPLINK).await.unwrap().messages;
    let (report, presence) = (subjects::report(&key), subjects::presence(&key));
    let headers = header_of(REPORT_HEADER_BYTES_MAX);

    let own = connect(hub.device_config(&key)).await;
    let mut raw = Raw::connect(hub.server.port(), &creds).unwrap();
    // The largest of each kind that a device may publish, with the largest headers.
    for (subject, headers, bytes) in [
        (&report, &headers, REPORT_BYTES_MAX),
        (&report, &headers, BATCH_BYTES_MAX),
        (&presence, &header_of(64), HEARTBEAT_BYTES_MAX - 64),
    ] {
        assert_eq!(raw.publish_with(subject, "", headers, &"x".repeat(bytes)), [""; 0], "{bytes}");
    }
    until("UPLINK holds the report and the batch", held, |held| *held == 2).await;
    let beats = async || bus.stream_state(stream::PRESENCE).await.unwrap().messages;
    until("PRESENCE holds the heartbeat", beats, |beats| *beats == 1).await;

    // One byte more, of payload or of headers, and on any subject, though UPLINK and PRESENCE would refuse it as well.
    let longer = header_of(REPORT_HEADER_BYTES_MAX + 1);
    for (subject, headers, bytes) in [
        (&report, &headers, REPORT_BYTES_MAX + 1),
        (&report, &longer, REPORT_BYTES_MAX),
        (&presence, &headers, REPORT_BYTES_MAX + 1),
    ] {
        let mut raw = Raw::connect(hub.server.port(), &creds).unwrap();
        let said = raw.publish_with(subject, "", headers, &"x".repeat(bytes)).join("\n");
        assert!(said.contains("Maximum Payload Violation") && said.contains("hung up"), "{bytes}: {said}");
    }
    assert_eq!((held().await, beats().await), (2, 1), "not a byte of them is stored");

    // The agent's bus never hands it to the connection: the report is refused for good, and the link stands.
    let large = Outgoing::new(report.clone(), vec![b'x'; DEVICE_MESSAGE_BYTES_MAX + 1]);
    let refused = soon("a refusal", own.publish(large)).await.unwrap_err();
    assert!(refused.kind == PublishErrorKind::Permanent && refused.is_of_the_message(), "{refused}");
    soon("the next report", own.publish(Outgoing::new(report, "{}"))).await.unwrap();
    assert_eq!((*own.link().borrow(), held().await), (Link::Up { since_count: 1 }, 3));
}
