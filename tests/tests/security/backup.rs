//! A hub with keys is copied and made again by a maintainer alone, and everybody's credentials work at the new one.

use muster_contract::subjects::stream;
use muster_identity::Role;
use muster_tests::guarded::Guarded;
use muster_tests::wait::soon;

use super::{connect, ingest};

#[tokio::test(flavor = "multi_thread")]
async fn a_maintainer_alone_copies_a_hub_with_keys_and_makes_it_again() {
    let hub = Guarded::start_plain();
    let _streams = ingest(&hub).await;
    let backup = hub.dir().join("backup");
    let (to, keys) = (backup.display().to_string(), hub.auth().display().to_string());
    for role in [Role::Operator, Role::Viewer, Role::Subscriber] {
        let creds = hub.creds(role).display().to_string();
        let said = hub.muster(&["backup", "-o", &to, "--creds", &creds, "--timeout", "2s"]);
        assert!(!said.status.success() && !backup.exists(), "{role:?} {said:?}");
    }
    let maintainer = hub.dir().join("maintainer.creds").display().to_string();
    hub.decide(&["auth", "creds", "maintainer", "--valid", "1h", "-o", &maintainer]);
    let said = hub.muster(&["backup", "-o", &to, "--creds", &maintainer, "--keys", &keys]);
    assert!(said.status.success(), "{said:?}");

    let again = Guarded::start_from(&backup);
    let said = again.muster(&["restore", "--from", &to, "--streams", "--creds", &maintainer]);
    assert!(said.status.success(), "{said:?}");
    let service = connect(again.config(Role::Ingest)).await;
    soon("LEDGER, before any service makes it", service.stream_state(stream::LEDGER)).await.unwrap();
    let _streams = ingest(&again).await;
}
