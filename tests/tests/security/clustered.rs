//! Services on a cluster with accounts, as processes: the rollup that moves the mirrors to the servers with a tag, and the
//! watcher that counts the connections of a key over all servers.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use muster_bus::{Bus, BusConfig, Connection, MIRRORED, Start};
use muster_contract::limits::CONNECTIONS_PER_KEY_MAX;
use muster_identity::Role;
use muster_simulator::child::{Child, Spec};
use muster_tests::cluster::{Cluster, ELECTION_DEADLINE, SERVERS, leader};
use muster_tests::raw::Raw;
use muster_tests::system::{INGEST, ROLLUP, program};
use muster_tests::wait::{soon, within};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::mirrors::{FACTS, TAG, connect, start, write};

/// Connections that one key opens at each server.
const AT_EACH_SERVER: usize = 3;

const _: () =
    assert!(AT_EACH_SERVER < CONNECTIONS_PER_KEY_MAX && AT_EACH_SERVER * SERVERS > CONNECTIONS_PER_KEY_MAX);

fn creds(dir: &Path, name: &str) -> String {
    dir.join(format!("auth/creds/{name}.creds")).display().to_string()
}

fn service(cluster: &Cluster, dir: &Path, (name, role): (&str, Role), more: &[&str]) -> Child {
    let (url, own) = (cluster.url(), creds(dir, role.as_str()));
    let args = [&["--nats-url", &url, "--creds", &own], more].concat();
    let args = args.into_iter().map(str::to_owned).collect();
    Child::start(Spec { name: name.to_owned(), program: program(name), args }, dir).unwrap()
}

/// Enrols a device without a server; returns its credentials.
fn enroll(dir: &Path, device: &str) -> std::path::PathBuf {
    let file = dir.join(format!("{}.creds", device.replace('/', "_")));
    let mut command = Command::new(program("muster"));
    let command =
        command.args(["enroll", device, "--dir"]).arg(dir.join("auth")).arg("--creds-file").arg(&file);
    let made = command.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    file
}

async fn converged(cluster: &Cluster, dir: &Path) -> Bus {
    let ingest = connect(cluster, dir, Role::Ingest).await;
    within(ELECTION_DEADLINE, "the streams", async || ingest.converge().await, Result::is_ok).await.unwrap();
    ingest
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollup_with_a_readers_tag_moves_the_mirrors_while_it_and_readers_run() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(dir.path());
    let ingest = converged(&cluster, dir.path()).await;
    write(&ingest).await;
    let (data, keeper) = (dir.path().join("rollup").display().to_string(), creds(dir.path(), "keeper"));
    let anywhere = ["--data-dir", &data, "--readers-creds", &keeper];
    let rollup = service(&cluster, dir.path(), (ROLLUP, Role::Rollup), &anywhere);
    let subscriber = connect(&cluster, dir.path(), Role::Subscriber).await;
    let reading = async || subscriber.replay("LEDGER", &[], Start::First).await;
    let mut ledger = within(ELECTION_DEADLINE, "a mirror", reading, Result::is_ok).await.unwrap();
    // The mirror of LEDGER has its first facts before it moves.
    let mut sequences = BTreeSet::new();
    while sequences.len() < FACTS as usize {
        let batch = timeout(ELECTION_DEADLINE, ledger.next_batch(100)).await.expect("facts").unwrap();
        sequences.extend(batch.iter().map(|fact| fact.stream_seq));
    }
    assert_eq!(rollup.stop().await.unwrap().code(), Some(0));

    let tagged = [&anywhere[..], &["--readers-tag", TAG]].concat();
    let _rollup = service(&cluster, dir.path(), (ROLLUP, Role::Rollup), &tagged);
    let keeper = connect(&cluster, dir.path(), Role::Keeper).await;
    let target = cluster.names().pop().unwrap();
    for stream in MIRRORED {
        let place = async || leader(&keeper, stream).await;
        within(ELECTION_DEADLINE, "a mirror on the server with the tag", place, |name| *name == target).await;
    }
    write(&ingest).await;
    let wanted = (1..=2 * FACTS).collect::<BTreeSet<_>>();
    while !sequences.is_superset(&wanted) {
        // The consumer moves with its mirror: a reader notices that after 12 s of silence, opens the next one once the mirror has
        // a leader, and misses nothing.
        match timeout(ELECTION_DEADLINE, ledger.next_batch(100)).await.expect("facts") {
            Ok(batch) => sequences.extend(batch.iter().map(|fact| fact.stream_seq)),
            Err(_) => ledger = within(ELECTION_DEADLINE, "a mirror", reading, Result::is_ok).await.unwrap(),
        }
    }
}

async fn open_of(system: &Bus, name: &str) -> Vec<Connection> {
    let all = soon("the connections", system.connections()).await.unwrap();
    let mut own: Vec<_> = all.into_iter().filter(|connection| connection.name == name).collect();
    own.sort_by_key(|connection| connection.started_at);
    own
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_one_key_at_several_servers_are_counted_together() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(dir.path());
    let _streams = converged(&cluster, dir.path()).await;
    let watcher = creds(dir.path(), "watcher");
    let config = BusConfig { creds: Some(watcher.clone().into()), ..cluster.config("test") };
    let stop = CancellationToken::new();
    let system = soon("a connection", Box::pin(Bus::connect(config, &stop))).await.unwrap();

    // Each server numbers its connections from 1: the same numbers mean others elsewhere.
    let (greedy, good) = (enroll(dir.path(), "plant7/greedy"), enroll(dir.path(), "plant7/good"));
    let (mut held, mut kept) = (Vec::new(), Vec::new());
    for port in cluster.ports() {
        held.extend((0..AT_EACH_SERVER).map(|_| Raw::connect(port, &greedy).unwrap()));
        kept.push(Raw::connect(port, &good).unwrap());
    }
    let open = async || open_of(&system, "plant7/greedy").await;
    let all = AT_EACH_SERVER * SERVERS;
    let before = within(ELECTION_DEADLINE, "all of them", open, |open| open.len() == all).await;
    let servers: BTreeSet<_> = before.iter().map(|connection| &connection.id.server).collect();
    assert_eq!(servers.len(), SERVERS);

    let _ingest = service(&cluster, dir.path(), (INGEST, Role::Ingest), &["--system-creds", &watcher]);
    let is_bounded = |open: &Vec<Connection>| open.len() <= CONNECTIONS_PER_KEY_MAX;
    let after = within(ELECTION_DEADLINE, "the bound", open, is_bounded).await;
    assert_eq!(after, before[all - CONNECTIONS_PER_KEY_MAX..], "the newest stay, wherever they are");
    assert_eq!(open_of(&system, "plant7/good").await.len(), SERVERS, "a connection of another key was ended");
    drop((held, kept));
}
