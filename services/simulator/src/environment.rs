//! The environment of the processes of a run: that of the caller without the variables of Muster and of git.
//!
//! A shell may have `MUSTER_CREDS` and `MUSTER_TLS_CA` for another fleet. Git calls its hooks with `GIT_DIR`, which would
//! send a commit to the repository that is being pushed. The publisher has a list of git's variables instead, because some
//! of them say how to reach its repository. Here every repository is on this disk, so all of git's variables are removed,
//! also future ones.

use std::ffi::OsStr;

use tokio::process::Command;

/// Prefixes of the variables that a program does not get.
const KEPT_OUT: [&str; 2] = ["GIT_", "MUSTER_"];
/// The one variable of Muster that a program gets: it only sets the log, and a person who repeats a run may want more of it.
const LOG: &str = "MUSTER_LOG";

/// A program that gets the caller's environment without these variables.
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
