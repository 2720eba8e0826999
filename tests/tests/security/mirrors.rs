//! The mirrors that people read, in a cluster with accounts: they move to the servers with a tag while everything runs, so
//! that readers cost the hub's own servers nothing but one delivery of each message.

use std::cell::Cell;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use muster_bus::{
    ApiError, Bus, BusConfig, MIRRORED, MirrorMemory, MirrorSettings, MirrorState, Outgoing, Start,
};
use muster_identity::Role;
use muster_tests::cluster::{Cluster, ELECTION_DEADLINE, SERVERS, leader};
use muster_tests::system::program;
use muster_tests::wait::{soon, within};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Facts written before the mirrors move, and as many after.
pub(crate) const FACTS: u64 = 200;
pub(crate) const TAG: &str = "readers";

/// A cluster with accounts, whose last server has the tag.
pub(crate) fn start(dir: &Path) -> Cluster {
    let (auth, resolver) = (dir.join("auth"), dir.join("accounts"));
    let made = Command::new(program("muster"))
        .args(["auth", "init", "--resolver-dir"])
        .arg(&resolver)
        .arg("--dir")
        .arg(&auth)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let accounts = std::fs::read_to_string(auth.join("nats-server.conf")).unwrap();
    Cluster::start_with(|number| {
        let own = dir.join(format!("accounts-{number}")).display().to_string();
        let tags = if number == SERVERS - 1 { format!("server_tags: [\"{TAG}\"]\n") } else { String::new() };
        accounts.replace(&resolver.display().to_string(), &own) + &tags
    })
}

pub(crate) async fn connect(cluster: &Cluster, dir: &Path, role: Role) -> Bus {
    let creds = Some(dir.join(format!("auth/creds/{}.creds", role.as_str())));
    let config = BusConfig { creds, replicas: 1, ..cluster.config(role.as_str()) };
    let stop = CancellationToken::new();
    soon("a connection", Box::pin(Bus::connect(config, &stop))).await.unwrap()
}

pub(crate) async fn write(ingest: &Bus) {
    for number in 0..FACTS {
        let fact = Outgoing::new(format!("muster.status.plant7.press-{number}.web"), "a fact");
        ingest.publish(fact).await.unwrap();
    }
}

/// Checks of one mirror, each a second after the one before by their clock: a mirror that nats-server has left is replaced soon.
struct Checks<'a> {
    keeper: &'a Bus,
    stream: &'a str,
    state: Cell<(MirrorMemory, Instant)>,
}

impl<'a> Checks<'a> {
    fn new(keeper: &'a Bus, stream: &'a str) -> Self {
        Self { keeper, stream, state: Cell::new((MirrorMemory::default(), Instant::now())) }
    }

    async fn next(&self, settings: &MirrorSettings) -> Result<MirrorState, ApiError> {
        let (memory, before) = self.state.get();
        let now = before + Duration::from_secs(1);
        let look = self.keeper.keep_mirror(self.stream, settings, memory, now).await;
        self.state.set((look.as_ref().map_or(memory.after_failure(), |(_, next)| *next), now));
        look.map(|(state, _)| state)
    }

    /// Checks the mirror until it is so.
    async fn until(&self, settings: &MirrorSettings, what: &str, is_so: impl Fn(&MirrorState) -> bool) {
        let look = async || self.next(settings).await;
        let holds = |look: &Result<MirrorState, _>| look.as_ref().is_ok_and(&is_so);
        within(ELECTION_DEADLINE, what, look, holds).await.unwrap();
    }

    /// Checks the mirror until it holds what its origin holds.
    async fn whole(&self, settings: &MirrorSettings) {
        self.until(settings, "a whole mirror", |state| matches!(state, MirrorState::Kept { lag: 0, .. }))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mirrors_move_to_the_servers_with_a_tag_while_everything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(dir.path());
    let ingest = connect(&cluster, dir.path(), Role::Ingest).await;
    within(ELECTION_DEADLINE, "the streams", async || ingest.converge().await, Result::is_ok).await.unwrap();
    write(&ingest).await;
    let keeper = connect(&cluster, dir.path(), Role::Keeper).await;
    let mirrors = MIRRORED.map(|stream| Checks::new(&keeper, stream));
    for mirror in &mirrors {
        mirror.whole(&MirrorSettings::default()).await;
    }
    let moved = MirrorSettings { tag: Some(TAG.to_owned()), replicas: 1 };
    for mirror in &mirrors {
        mirror.whole(&moved).await;
    }
    let target = cluster.names().pop().unwrap();
    for stream in MIRRORED {
        let place = async || leader(&keeper, stream).await;
        within(ELECTION_DEADLINE, "a mirror on the server with the tag", place, |name| *name == target).await;
    }
    write(&ingest).await;
    for mirror in &mirrors {
        mirror.whole(&moved).await;
    }
    let subscriber = connect(&cluster, dir.path(), Role::Subscriber).await;
    let mut ledger = soon("LEDGER", subscriber.replay("LEDGER", &[], Start::First)).await.unwrap();
    let mut read = Vec::new();
    while (read.len() as u64) < 2 * FACTS {
        read.extend(soon("facts", ledger.next_batch(100)).await.unwrap());
    }
    let sequences: Vec<_> = read.iter().map(|fact| fact.stream_seq).collect();
    assert_eq!(sequences, (1..=2 * FACTS).collect::<Vec<_>>(), "the sequence numbers of LEDGER itself");
}

/// Facts that are written while a mirror moves.
const BESIDE_A_MOVE: u64 = 3_000;

/// A mirror whose tag changes to that of its own server gets a new Raft group there. A fact that comes before the group has a leader
/// may end the mirror's consumer for good: the keeper then replaces the mirror.
#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_that_moves_to_its_own_server_beside_facts_becomes_whole() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(dir.path());
    let ingest = connect(&cluster, dir.path(), Role::Ingest).await;
    within(ELECTION_DEADLINE, "the streams", async || ingest.converge().await, Result::is_ok).await.unwrap();
    let keeper = connect(&cluster, dir.path(), Role::Keeper).await;
    let (tagged, anywhere) =
        (MirrorSettings { tag: Some(TAG.to_owned()), replicas: 1 }, MirrorSettings::default());
    let mirror = Checks::new(&keeper, "LEDGER");
    mirror.whole(&tagged).await;
    // Without a tag it stays where it is.
    mirror.whole(&anywhere).await;
    let writing = tokio::spawn(async move {
        for number in 0..BESIDE_A_MOVE {
            let fact = Outgoing::new(format!("muster.status.plant7.press-{}.web", number % FACTS), "a fact");
            ingest.publish(fact).await.unwrap();
        }
    });
    let has_begun = |state: &MirrorState| matches!(state, MirrorState::Kept { last_seq: 1.., .. });
    mirror.until(&anywhere, "the first facts", has_begun).await;
    mirror.until(&tagged, "the new tag", |state| *state == MirrorState::Updated).await;
    writing.await.unwrap();
    let is_whole =
        |state: &MirrorState| matches!(state, MirrorState::Kept { last_seq: BESIDE_A_MOVE.., lag: 0, .. });
    mirror.until(&tagged, "a whole mirror", is_whole).await;
    let subscriber = connect(&cluster, dir.path(), Role::Subscriber).await;
    let mut ledger = soon("LEDGER", subscriber.replay("LEDGER", &[], Start::First)).await.unwrap();
    let mut read = Vec::new();
    while (read.len() as u64) < BESIDE_A_MOVE {
        read.extend(soon("facts", ledger.next_batch(500)).await.unwrap());
    }
    let sequences: Vec<_> = read.iter().map(|fact| fact.stream_seq).collect();
    assert_eq!(sequences, (1..=BESIDE_A_MOVE).collect::<Vec<_>>(), "the sequence numbers of LEDGER itself");
}
