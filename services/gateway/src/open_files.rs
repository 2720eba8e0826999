//! The process's limit of open files: each connection is one. It raises the limit; it does not count files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::listener::Limits;

/// Files besides connections of clients: the connection to NATS, stores, certificates, calls of webhooks.
const OTHERS: usize = 1_000;
/// Enough for the connections of every listener.
const WANTED: u64 =
    (Limits::PEOPLE.connections + Limits::DEVICES.connections + Limits::GRPC.connections + OTHERS) as u64;

/// Raises the limit to [`WANTED`], or to what the system permits. Logs a limit below it: connections beyond it would be refused
/// without an answer.
pub(crate) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= WANTED) {
        return;
    }
    let raised = maximum.map_or(WANTED, |maximum| maximum.min(WANTED));
    let set = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum });
    if let Err(error) = &set {
        tracing::warn!(%error, limit = current, "cannot raise the limit of open files");
    } else if raised < WANTED {
        tracing::warn!(
            limit = raised,
            wanted = WANTED,
            "the limit of open files is below that of connections; raise LimitNOFILE= or `ulimit -Hn`"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_raised_to_what_connections_need() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(256), maximum }).unwrap();
        raise_limit();
        let raised = getrlimit(Resource::Nofile).current;
        assert_eq!(raised, Some(maximum.map_or(WANTED, |maximum| maximum.min(WANTED))));
    }
}
