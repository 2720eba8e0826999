//! The requests that devices, viewers and another site may not make on the mirrors, as a list written by hand. The expectation of
//! [`matrix`](crate::matrix) follows from the table of rights; this list does not, so a right that somebody adds to the
//! wrong role fails here, and a right of subscribers that the list does not name fails as well.

use std::time::Duration;

use muster_bus::BusConfig;
use muster_identity::Role;
use muster_tests::leaf::Site;
use muster_tests::raw::Raw;
use muster_tests::wait::until;

use crate::connect;
use crate::matrix::stage::Stage;
use crate::matrix::subjects::{covers, pull_consumer};

/// The requests that a subscriber may make of the mirrors, each once. Devices and viewers may not, nor may a site.
const OF_SUBSCRIBERS: [&str; 27] = [
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.INFO.LEDGER",
    "$JS.API.STREAM.INFO.KV_views",
    "$JS.API.STREAM.MSG.GET.LEDGER",
    "$JS.API.STREAM.MSG.GET.KV_views",
    "$JS.API.DIRECT.GET.LEDGER",
    "$JS.API.DIRECT.GET.LEDGER.muster.status.plant7.press-4.web",
    "$JS.API.DIRECT.GET.KV_views",
    "$JS.API.DIRECT.GET.KV_views.other",
    "$JS.API.CONSUMER.CREATE.LEDGER",
    "$JS.API.CONSUMER.CREATE.LEDGER.CONSUMER",
    "$JS.API.CONSUMER.CREATE.LEDGER.CONSUMER.muster.status.>",
    "$JS.API.CONSUMER.CREATE.KV_views",
    "$JS.API.CONSUMER.CREATE.KV_views.CONSUMER",
    "$JS.API.CONSUMER.CREATE.KV_views.CONSUMER.$KV.views.>",
    "$JS.API.CONSUMER.DURABLE.CREATE.LEDGER.CONSUMER",
    "$JS.API.CONSUMER.INFO.LEDGER.CONSUMER",
    "$JS.API.CONSUMER.INFO.KV_views.CONSUMER",
    "$JS.API.CONSUMER.DELETE.LEDGER.CONSUMER",
    "$JS.API.CONSUMER.DELETE.KV_views.CONSUMER",
    "$JS.API.CONSUMER.MSG.NEXT.LEDGER.CONSUMER",
    "$JS.API.CONSUMER.MSG.NEXT.KV_views.CONSUMER",
    "$JS.ACK.LEDGER.CONSUMER.1.1.1.1.1",
    "$JS.ACK.hub.A.LEDGER.CONSUMER.1.1.1.1.1",
    "$JS.FC.LEDGER.CONSUMER.1",
];
/// Requests that a subscriber may make of the hub's notices, and so may a viewer. Devices may not, nor may a site.
const OF_NOTICES: [&str; 1] = ["$JS.API.DIRECT.GET.NOTICES.muster.notice.x"];
/// How long a site waits for an answer of the hub.
const PATIENCE: Duration = Duration::from_secs(1);

fn all_of_subscribers() -> Vec<&'static str> {
    [&OF_SUBSCRIBERS[..], &OF_NOTICES].concat()
}

fn payload(subject: &str) -> String {
    let stream = if subject.contains("KV_views") { "KV_views" } else { "LEDGER" };
    if subject.contains("CREATE") { pull_consumer(stream, None) } else { String::new() }
}

#[test]
fn the_list_by_hand_names_every_request_of_subscribers() {
    let rights = Role::Subscriber.rights().publish;
    for right in rights.iter().filter(|right| right.starts_with("$JS.")) {
        let named = all_of_subscribers().iter().any(|subject| covers(right, subject));
        assert!(named, "{right}: add an example of it to OF_SUBSCRIBERS in {}", file!());
    }
    for subject in all_of_subscribers() {
        assert!(rights.iter().any(|right| covers(right, subject)), "{subject} is no right of subscribers");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_and_a_viewer_are_refused_every_request_of_the_mirrors() {
    let stage = Stage::start().await;
    let before = stage.streams();
    for role in [Role::Device, Role::Viewer] {
        let mut raw = stage.raw(&stage.actor(role));
        let notices = if role == Role::Device { &OF_NOTICES[..] } else { &[] };
        let refused = [&OF_SUBSCRIBERS[..], notices].concat();
        for subject in &refused {
            let said = raw.publish(subject, "", &payload(subject)).join("\n");
            let is_refused = said.contains("Permissions Violation") && said.contains(subject);
            assert!(is_refused, "{role:?}: {subject}: {said}");
        }
        for subject in
            [&["$KV.views.>", "muster.status.>", "$JS.>", "muster.notice.>"][..], &refused].concat()
        {
            let said = raw.subscribe(subject, 1).join("\n");
            assert!(said.contains("Permissions Violation"), "{role:?} subscribes to {subject}: {said}");
        }
    }
    assert!(stage.changes(&before).is_empty(), "{:?}", stage.changes(&before));
    // The premise: the same requests of a subscriber are let through.
    let mut raw = stage.raw(&stage.actor(Role::Subscriber));
    for subject in all_of_subscribers() {
        let said = raw.publish(subject, "", &payload(subject)).join("\n");
        assert!(!said.contains("Permissions Violation"), "{subject}: {said}");
    }
}

/// Whether an answer has content or settings of a stream. The site's own JetStream has no stream, and the server's word that
/// nobody answers repeats the subject.
fn is_of_the_hub(line: &str) -> bool {
    let is_nobody = line.contains("NATS/1.0 503");
    !is_nobody && ["plant7", "\"config\"", "\"LEDGER\""].iter().any(|held| line.contains(held))
}

/// A holder of a site's server is a subscriber there and may send anything. Its own JetStream answers under the same
/// subjects.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_at_another_site_gains_nothing_by_any_request() {
    let stage = Stage::start().await;
    let site = Site::taken_over(&stage.hub, &"plant7".parse().unwrap());
    let attacker = connect(BusConfig::service(site.server.url(), "attacker")).await;
    let own = async || {
        attacker.request("muster.fetch.desired.plant7.press-4", Default::default(), PATIENCE).await.ok()
    };
    until("the site's own documents", own, Option::is_some).await.unwrap();
    // An answer to a request of OF_NOTICES would have it.
    let rollup = connect(stage.hub.config(Role::Rollup)).await;
    rollup.notice_put(&"x".parse().unwrap(), r#"{"site":"plant7"}"#.into(), None, 0).await.unwrap();
    let before = stage.streams();
    let mut raw = Raw::anonymous(site.server.port()).unwrap();
    raw.subscribe("_INBOX.attacker", 1);
    for subject in all_of_subscribers() {
        let mut said = raw.publish(subject, "_INBOX.attacker", &payload(subject));
        for domain in ["$JS.hub.API", "hub.api"] {
            let there = subject.replacen("$JS.API", domain, 1);
            said.extend(raw.publish(&there, "_INBOX.attacker", &payload(subject)));
        }
        assert_eq!(said.iter().find(|line| is_of_the_hub(line)), None, "{subject}");
    }
    until("the site's own documents again", own, Option::is_some).await.unwrap();
    let said = raw.publish("_INBOX.nobody", "", "");
    assert_eq!(said.iter().find(|line| is_of_the_hub(line)), None, "{said:?}");
    assert!(stage.changes(&before).is_empty(), "{:?}", stage.changes(&before));
}
