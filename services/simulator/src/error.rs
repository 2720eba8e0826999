//! The errors of a simulated fleet.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// A failure of the simulation itself, not of what it simulates.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory of the fleet.
    #[error("could not prepare {}: is its directory writable, and is there room on the disk?", path.display())]
    Prepare {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The directory has files that the simulator did not create.
    #[error("{} is not empty and was not made by the simulator: it would be emptied; name another with --dir", dir.display())]
    Occupied {
        /// Which.
        dir: PathBuf,
    },
    /// Another run uses the directory now.
    #[error("a run is under way in {} ({holder}): end it, or name another directory with --dir", dir.display())]
    InUse {
        /// Which.
        dir: PathBuf,
        /// The process of the other run.
        holder: String,
    },
    /// The planner does not accept a request about the plan of a run.
    #[error("the planner does not accept a request that it must accept: {words}; its log says more")]
    Plan {
        /// Its answer, or why there is none.
        words: String,
    },
    /// A program is not where it should be.
    #[error("there is no {} in {}: build it with `cargo build --release --bins`, or name its directory with --bin-dir", name, dir.display())]
    NoProgram {
        /// Which.
        name: String,
        /// Where it was looked for.
        dir: PathBuf,
    },
    /// No nats-server.
    #[error("there is no nats-server at {}: fetch one with `make tools`, or name one with --nats-server", path.display())]
    NoServer {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A process could not be started.
    #[error("could not start {}", program.display())]
    Start {
        /// Which.
        program: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A process could not be watched.
    #[error("could not wait for {name}")]
    Watch {
        /// Which.
        name: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A process ended by itself.
    #[error("{name} ended by itself ({status}); its output is in {}", log.display())]
    Ended {
        /// Which.
        name: String,
        /// How.
        status: ExitStatus,
        /// Its output.
        log: PathBuf,
    },
    /// A process that was asked to end did not.
    #[error("{name} was asked to end and runs still after {waited:?}; its output is in {}", log.display())]
    Stays {
        /// Which.
        name: String,
        /// How long it was given.
        waited: Duration,
        /// Its output.
        log: PathBuf,
    },
    /// A process did not become ready.
    #[error("{name} is not ready after {waited:?}: {last}; its output is in {}", log.display())]
    NotReady {
        /// Which.
        name: String,
        /// How long it was given.
        waited: Duration,
        /// Its last answer.
        last: String,
        /// Its output.
        log: PathBuf,
    },
    /// The network.
    #[error("could not open {what}")]
    Network {
        /// What.
        what: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A name without an address.
    #[error("cannot find an address of {client}: name its IP address, or a name that this machine resolves")]
    NoAddress {
        /// The client of a link.
        client: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A cut of a link's client.
    #[error("cannot change the cut {}: name the link's folder of cuts with --cuts, and run the command as its user", path.display())]
    Cut {
        /// The file of the cut.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The disk of a device.
    #[error("the disk of {name} cannot be filled or emptied")]
    Disk {
        /// Whose.
        name: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Git.
    #[error("`git {args}` failed: {output}; is git installed?")]
    Git {
        /// The command.
        args: String,
        /// Its output.
        output: String,
    },
    /// A program of the lab.
    #[error("`{what}` refused: {said}")]
    Refused {
        /// The command.
        what: String,
        /// Its output.
        said: String,
    },
    /// The hub's certificate.
    #[error("no certificate can be made for {names}: are these host names or IP addresses?")]
    Certificate {
        /// The names.
        names: String,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// The bus.
    #[error("could not reach the fleet's own NATS server")]
    Bus(#[source] muster_bus::ConnectError),
}
