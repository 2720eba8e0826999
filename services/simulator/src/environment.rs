//! What the processes of a run inherit of the caller's environment: everything but what would lead them elsewhere.
//!
//! A shell may hold `MUSTER_CREDS` and `MUSTER_TLS_CA` for the fleet one looks after, which are nothing for a fleet on
//! this machine; and git calls its hooks with `GIT_DIR`, with which a commit goes to the repository that is being pushed.
//! The publisher keeps a list of git's variables instead, because some say how to reach its repository. Here every
//! repository is on this disk: nothing of git's is needed, and what git adds one day is kept out as well.

use std::ffi::OsStr;

use tokio::process::Command;

/// How the names begin of what is not handed on.
const KEPT_OUT: [&str; 2] = ["GIT_", "MUSTER_"];
/// Handed on all the same: what is logged leads nobody elsewhere, and who plays a trial again wants to see more of it.
const LOG: &str = "MUSTER_LOG";

/// A program that gets the caller's environment without that.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.as_encoded_bytes();
        if name != LOG && KEPT_OUT.iter().any(|beginning| text.starts_with(beginning.as_bytes())) {
            command.env_remove(name);
        }
    }
    command
}
