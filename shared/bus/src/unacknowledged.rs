//! Finds a connection on which the peer acknowledges nothing any more, by the kernel's table of TCP connections: the kernel repeats
//! a segment without an answer. That costs no byte, where a ping with its answer costs two hundred. Where the table cannot be read,
//! nothing is found, and pings must find it: [`is_supported`].
//!
//! It does not find a hub that has gone behind a proxy which acknowledges in its place; rare pings do.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::time::Duration;

use async_nats::Client;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// The tables of this network namespace's TCP connections.
const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
/// A read of a table that returns fewer bytes was the last one: the kernel fills at least a page of 4 KiB with lines of 150 bytes.
/// To read once more would make it search the whole table again for a further line.
const LAST_READ_BYTES: usize = 3_900;
/// Bytes of one read: more than a page of any kernel.
const READ_BYTES: usize = 64 * 1024;

/// How often the table is read within the time after which a connection counts as lost.
const CHECKS: u32 = 8;
/// The state of an open connection in the table.
const ESTABLISHED: &str = "01";
/// The timer of a connection that repeats a segment.
const REPEATS: &str = "01";
/// The timer of a connection that cannot send because the peer has no room or this machine has no route. An answer ends its count
/// of probes.
const PROBES: &str = "04";

/// Whether the kernel's table can be read.
pub fn is_supported() -> bool {
    own_sockets().is_some() && table(TABLES[0]).is_some()
}

/// Makes a new connection when bytes stay unacknowledged for `unacknowledged_max`; ends with `stop`.
pub(crate) async fn watch(
    client: Client,
    ports: Vec<u16>,
    unacknowledged_max: Duration,
    stop: CancellationToken,
) {
    let mut check = interval(unacknowledged_max / CHECKS);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut silence = UnacknowledgedSince::default();
    while stop.run_until_cancelled(check.tick()).await.is_some() {
        let written = client.statistics().out_bytes.load(std::sync::atomic::Ordering::Relaxed);
        if !silence.needs_check(written) {
            continue;
        }
        let lasting = silence.update(&waiting_sockets(&ports), written, Instant::now());
        if lasting.is_some_and(|lasting| lasting >= unacknowledged_max) {
            silence = UnacknowledgedSince::default();
            tracing::warn!(
                unacknowledged.seconds = unacknowledged_max.as_secs_f64(),
                "reconnecting: the NATS server acknowledges no bytes"
            );
            // An error means that the connection has ended already.
            let _ = client.force_reconnect().await;
        }
    }
}

/// Since when a socket has repeated bytes without an acknowledgement.
#[derive(Debug, Default)]
struct UnacknowledgedSince {
    socket: Option<(u64, Instant)>,
    /// Bytes that were written when every socket had its acknowledgements.
    acknowledged: Option<u64>,
}

impl UnacknowledgedSince {
    /// Whether anything was written that is not known to be acknowledged.
    fn needs_check(&self, written: u64) -> bool {
        self.acknowledged != Some(written)
    }

    /// Takes the sockets that wait for an acknowledgement, each with whether it repeats; returns how long one has repeated.
    fn update(&mut self, waiting: &[(u64, bool)], written: u64, now: Instant) -> Option<Duration> {
        self.acknowledged = waiting.is_empty().then_some(written);
        let repeats = |socket| waiting.contains(&(socket, true));
        self.socket = self.socket.filter(|(socket, _)| repeats(*socket));
        if self.socket.is_none() {
            self.socket = waiting.iter().find(|(_, repeats)| *repeats).map(|(socket, _)| (*socket, now));
        }
        self.socket.map(|(_, since)| now.saturating_duration_since(since))
    }
}

/// The sockets of this process to one of these ports that wait for an acknowledgement, each with whether it repeats a segment. They
/// are all in one of the tables.
fn waiting_sockets(ports: &[u16]) -> Vec<(u64, bool)> {
    let Some(own) = own_sockets() else { return Vec::new() };
    for path in TABLES {
        let table = table(path).unwrap_or_default();
        let connections = table.lines().filter_map(|line| connection(line, ports));
        let own: Vec<_> = connections.filter(|connection| own.contains(&connection.socket)).collect();
        if !own.is_empty() {
            let waiting = own.into_iter().filter(|connection| connection.waits);
            return waiting.map(|TableConnection { socket, repeats, .. }| (socket, repeats)).collect();
        }
    }
    Vec::new()
}

/// An open connection.
#[derive(Debug, PartialEq, Eq)]
struct TableConnection {
    /// Inode of its socket.
    socket: u64,
    /// Whether bytes are not acknowledged.
    waits: bool,
    /// Whether the kernel repeats a segment, and none of its repetitions was answered.
    repeats: bool,
}

/// The connection of a line of a table, if it is open and to one of the ports.
fn connection(line: &str, ports: &[u16]) -> Option<TableConnection> {
    let mut fields = line.split_ascii_whitespace().skip(2);
    let (_, port) = fields.next()?.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    if fields.next()? != ESTABLISHED || !ports.contains(&port) {
        return None;
    }
    let (unacknowledged, _) = fields.next()?.split_once(':')?;
    let (timer, _) = fields.next()?.split_once(':')?;
    let repetitions = u64::from_str_radix(fields.next()?, 16).ok()?;
    let probes: u64 = fields.nth(1)?.parse().ok()?;
    Some(TableConnection {
        socket: fields.next()?.parse().ok()?,
        waits: unacknowledged.bytes().any(|digit| digit != b'0'),
        repeats: timer == REPEATS && repetitions > 0 || timer == PROBES && probes > 0,
    })
}

/// A table of TCP connections.
fn table(path: &str) -> Option<String> {
    let (mut file, mut text, mut bytes) = (File::open(path).ok()?, Vec::new(), vec![0; READ_BYTES]);
    loop {
        let count = file.read(&mut bytes).ok()?;
        text.extend_from_slice(&bytes[..count]);
        if count < LAST_READ_BYTES {
            return String::from_utf8(text).ok();
        }
    }
}

/// The inodes of this process's sockets.
fn own_sockets() -> Option<HashSet<u64>> {
    let links =
        fs::read_dir("/proc/self/fd").ok()?.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    let inode = |target: std::path::PathBuf| {
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    Some(links.filter_map(inode).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_shows_a_socket_that_repeats_unacknowledged_bytes() {
        let probing = |probes: u32| {
            format!(
                "   3: 0100007F:A3D2 0200000A:107E 01 0000002C:00000000 04:00000237 00000000     0        {probes} 48291 2 000000003fb2 20 4 31 17 -1"
            )
        };
        let line = |remote: &str, state: &str, queues: &str, timer: &str, repetitions: &str| {
            format!(
                "   3: 0100007F:A3D2 {remote} {state} {queues} {timer} {repetitions}     0        0 48291 3 000000003fb2 214 4 0 10 -1"
            )
        };
        let (hub, queued) = ("0200000A:107E", "0000002C:00000000");
        let found = |waits, repeats| Some(TableConnection { socket: 48_291, waits, repeats });
        let all = [
            (line(hub, "01", queued, "01:000001A0", "00000005"), found(true, true)),
            (line(hub, "01", queued, "01:00000010", "00000000"), found(true, false)),
            // A peer without room answers probes, so it is alive; without a route nothing answers.
            (probing(0), found(true, false)),
            (probing(2), found(true, true)),
            (line(hub, "01", "00000000:00000000", "00:00000000", "00000000"), found(false, false)),
            (line("0200000A:01BB", "01", queued, "01:000001A0", "00000005"), None),
            (line(hub, "08", queued, "01:000001A0", "00000005"), None),
            (
                "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid"
                    .to_owned(),
                None,
            ),
            (String::new(), None),
        ];
        for (line, wanted) in all {
            assert_eq!(connection(&line, &[4222]), wanted, "{line}");
        }
        let v6 = "   0: 00000000000000000000000001000000:CB4E 00000000000000000000000001000000:107E 01 00000001:00000000 01:00000014 00000002     0        0 77 1 0 20 4 30 10 -1";
        let wanted = Some(TableConnection { socket: 77, waits: true, repeats: true });
        assert_eq!(connection(v6, &[1, 4222]), wanted);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_socket_that_repeats_all_the_time_counts() {
        let (mut silence, second) = (UnacknowledgedSince::default(), Duration::from_secs(1));
        let mut update = async |waiting: &[(u64, bool)], written| {
            tokio::time::advance(second).await;
            silence.needs_check(written).then(|| silence.update(waiting, written, Instant::now()))
        };
        assert_eq!(update(&[(7, false)], 10).await, Some(None), "under way");
        assert_eq!(update(&[(7, true)], 10).await, Some(Some(Duration::ZERO)));
        assert_eq!(update(&[(7, true), (8, true)], 20).await, Some(Some(second)));
        assert_eq!(update(&[(7, false), (8, true)], 30).await, Some(Some(Duration::ZERO)), "7 was answered");
        assert_eq!(update(&[], 30).await, Some(None));
        assert_eq!(update(&[], 30).await, None, "nothing was written since");
        assert_eq!(update(&[(7, true)], 40).await, Some(Some(Duration::ZERO)));
    }

    #[test]
    fn the_kernels_table_is_read_to_its_end() {
        assert!(is_supported());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // Sixty lines are more than the kernel returns at once.
        let mut open = Vec::new();
        for _ in 0..60 {
            open.push((
                std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap(),
                listener.accept().unwrap(),
            ));
            let (own, table) = (own_sockets().unwrap(), table(TABLES[0]).unwrap());
            let found = table.lines().filter_map(|line| connection(line, &[port]));
            assert_eq!(found.filter(|found| own.contains(&found.socket)).count(), open.len());
        }
    }
}
