//! The command line of `muster auth`, `enroll` and `revoke`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use muster_client::time::distance_seconds;
use muster_contract::http_device::ClientIdentity;
use muster_contract::limits::{HEARTBEAT_LEASE_MS_MAX, POLL_LEASE_MS_MIN};
use muster_contract::profile::parse_duration;
use muster_contract::{DeviceId, DeviceKey, SiteId};
use muster_identity::Role;

pub(super) const AUTH_EXAMPLES: &str = "\
DIR holds the keys that decide who may do what: keep it on one machine, readable by one person, with a backup.

The way, once:
  muster auth init --dir DIR                        keys, credentials of every role, and nats-server.conf to include
  nats-server -c hub.conf                           with `include`, a jetstream and a tls block; the path of the
                                                    included file counts from the including one
  muster-ingest --creds DIR/creds/ingest.creds --tls-ca ca.pem --nats-url tls://hub:4222
                                                    and so on for each service, with its own credentials;
                                                    muster-rollup also with --readers-creds DIR/creds/keeper.creds
Then for each device:
  muster-agent key --data-dir DATA                  on the device: creates its key, prints the public one
  muster enroll plant7/press-4 --key U… -o press-4.jwt
  muster-agent accept --data-dir DATA press-4.jwt   on the device
And for each person who asks:
  muster auth creds viewer --name anna -o anna.creds --valid 90d
And for each program that answers checks of rollouts or hooks of plans over NATS, and does nothing else:
  muster auth creds checker --name smoke -o smoke.creds
A site with a server of its own, to which its devices connect instead of the hub:
  muster auth leaf plant7                           an account at the hub, and leaves/plant7 for the site's server
A directory of an older release:
  muster auth upgrade --dir DIR                     says what to do next";

pub(super) const ENROLL_EXAMPLES: &str = "\
The device's seed stays on the device; what is written here is no secret. Run it again before the end to renew: the
agent takes a newer JWT up by itself, without a restart.

Examples:
  muster enroll plant7/press-4 --key U… -o press-4.jwt      first time
  muster enroll plant7/press-4 --send                       renew, for the key that is recorded, over the hub
  muster enroll plant7/press-4 -o press-4.jwt               the same in a file, as for one whose JWT has ended
  muster enroll plant7/press-4 --key U… --replace           a device with a new key; the old one is revoked
  muster enroll plant7/press-4 --creds-file press-4.creds   for a lab: creates the key here as well
A device that speaks Margo's HTTP API has a certificate instead of a key; the hub records the accepted ones:
  muster enroll plant7/press-4 --spiffe spiffe://example.org/margo/wfm/main/client/press-4 --creds operator.creds
  muster enroll plant7/gw --spiffe spiffe://example.org/margo/wfm/main/client/gw --children press-a,press-b
  muster enroll plant7/press-4 --spiffe spiffe://… --poll-lease 3h     it polls once an hour";

pub(super) const REVOKE_EXAMPLES: &str = "\
It is recorded first, then sent to the running servers, which end the connection within 5 seconds of confirming it
and refuse what was issued before. `muster enroll DEVICE --key KEY` enrols the device again, also with the
same key; without --key a revoked device is refused.

Examples:
  muster revoke plant7/press-4
  muster revoke --key U…                                    one key, of a device, a service or a person
  muster revoke --spiffe spiffe://…                         a certificate of Margo's HTTP API, at its next request
  muster revoke --spiffe spiffe://… --child press-a         only its right to speak for a device behind it
  muster auth push                                          later, when no server could be reached";

/// The directory of keys.
#[derive(Debug, Clone, Args)]
pub struct VaultArgs {
    /// The directory that `muster auth init` created
    #[arg(long, env = "MUSTER_AUTH_DIR", value_name = "DIR")]
    pub dir: PathBuf,
}

/// `muster auth`
#[derive(Debug, Subcommand)]
pub enum AuthCommand {
    /// Create the operator, the accounts, and the keys and credentials of every role
    Init(InitArgs),
    /// List the enrolled and revoked users, and when their tokens expire
    List(VaultArgs),
    /// Create or renew the credentials of a service or a person
    Creds(CredsArgs),
    /// Create or renew the files of a site with a server of its own: a leaf node, to which its devices connect
    Leaf(LeafArgs),
    /// List the accepted and revoked certificates of Margo's HTTP API, as the hub has them
    Clients,
    /// Send the accounts, with all revocations, to the running servers
    Push(VaultArgs),
    /// Replace the signing key of a role; tokens of the former key are refused after `muster auth push`
    Rotate(RotateArgs),
    /// Give a directory of an older release the accounts and keys of this one; no device needs a new key or token
    Upgrade(VaultArgs),
}

/// `muster auth rotate`
#[derive(Debug, Args)]
pub struct RotateArgs {
    /// The role whose signing key is replaced, such as viewer, ingest or device
    #[arg(value_parser = any_role)]
    pub role: Role,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub vault: VaultArgs,
}

/// `muster auth leaf`
#[derive(Debug, Args)]
pub struct LeafArgs {
    /// The site
    pub site: SiteId,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub vault: VaultArgs,
}

/// `muster auth init`
#[derive(Debug, Args)]
pub struct InitArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub vault: VaultArgs,
    /// Name of the account, for people
    #[arg(long, default_value = "fleet")]
    pub name: String,
    /// Where nats-server keeps accounts: a folder that it may write, seen from where it runs
    #[arg(long, value_name = "DIR", default_value = "muster-accounts")]
    pub resolver_dir: String,
}

/// `muster auth creds`
#[derive(Debug, Args)]
pub struct CredsArgs {
    /// publisher, ingest, rollup, renewer, keeper, maintainer, margo, planner, gateway, viewer, approver, subscriber or operator
    #[arg(value_parser = role)]
    pub role: Role,
    /// For whom [default: the role's name]
    #[arg(long)]
    pub name: Option<String>,
    /// The credentials file [default: creds/NAME.creds in DIR]; one that exists is renewed for its own key
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// For the role margo: a site whose devices the gateway serves; may be repeated [default: all sites]
    #[arg(long = "site", value_name = "SITE")]
    pub sites: Vec<SiteId>,
    /// How long they are valid, such as 90d [default: without an end]
    #[arg(long, value_name = "TIME")]
    pub valid: Option<Valid>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub vault: VaultArgs,
}

/// `muster enroll`
#[derive(Debug, Args)]
pub struct EnrollArgs {
    /// The device, as SITE/DEVICE
    pub device: DeviceKey,
    /// Its public key, as `muster-agent key` prints it [default: the one that is recorded]
    #[arg(long, value_name = "KEY", conflicts_with = "creds_file")]
    pub key: Option<String>,
    /// Time for which it is enrolled, such as 30d, 12h or 90m
    #[arg(long, value_name = "TIME", default_value = "30d")]
    pub valid: Valid,
    /// Where to write the JWT, in the place of an older one [default: standard output]
    #[arg(short, long, value_name = "FILE", conflicts_with = "creds_file")]
    pub output: Option<PathBuf>,
    /// Put another key of this device out
    #[arg(long)]
    pub replace: bool,
    /// Hand the JWT to the device over the hub, which needs no person to carry it; for one that is in already
    #[arg(long, conflicts_with_all = ["replace", "creds_file"])]
    pub send: bool,
    /// Make the key here too, and write key and JWT to a credentials file; one that exists is renewed
    #[arg(long, value_name = "FILE")]
    pub creds_file: Option<PathBuf>,
    /// Accept a client certificate of Margo's HTTP API as the device, by its SPIFFE id; the hub records it, not DIR
    #[arg(long, value_name = "ID", conflicts_with_all = ["key", "output", "send", "creds_file"])]
    pub spiffe: Option<ClientIdentity>,
    /// With --spiffe, for a gateway: the devices of its site for which it speaks, besides its own; they replace those before
    #[arg(long, value_name = "DEVICE", value_delimiter = ',', requires = "spiffe")]
    pub children: Vec<DeviceId>,
    /// The same from a file, a name in each line; # begins a comment
    #[arg(long, value_name = "FILE", requires = "spiffe", conflicts_with = "children")]
    pub children_file: Option<PathBuf>,
    /// With --spiffe, for a device that polls more rarely than every 90s: the time for which it is fresh after a request, more than 90s
    /// and up to 24h, or none for the lease of muster-ingest. Absent: unchanged. Deadlines of deployments and rollouts must be longer
    /// than the time between two polls
    #[arg(long, value_name = "DURATION", requires = "spiffe")]
    pub poll_lease: Option<PollLease>,
    /// The directory that `muster auth init` created
    #[arg(long, env = "MUSTER_AUTH_DIR", value_name = "DIR", required_unless_present = "spiffe")]
    pub dir: Option<PathBuf>,
}

/// `muster revoke`
#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// The device, as SITE/DEVICE
    #[arg(required_unless_present_any = ["key", "spiffe"], conflicts_with_all = ["key", "spiffe"])]
    pub device: Option<DeviceKey>,
    /// A public key
    #[arg(long, value_name = "KEY", conflicts_with = "spiffe")]
    pub key: Option<String>,
    /// The SPIFFE id of a client certificate of Margo's HTTP API
    #[arg(long, value_name = "ID")]
    pub spiffe: Option<ClientIdentity>,
    /// With --spiffe: only its right to speak for this device; the client and its other devices keep theirs
    #[arg(long, value_name = "DEVICE", requires = "spiffe")]
    pub child: Option<DeviceId>,
    /// The directory that `muster auth init` created
    #[arg(long, env = "MUSTER_AUTH_DIR", value_name = "DIR", required_unless_present = "spiffe")]
    pub dir: Option<PathBuf>,
}

/// A validity in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Valid(pub u64);

impl FromStr for Valid {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rule = "must be a time such as 30d, 12h, 90m or 45s, up to 3650d";
        distance_seconds(text).map(Self).ok_or(rule)
    }
}

/// The lease of polls in milliseconds; `None` for that of the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollLease(pub Option<u64>);

impl FromStr for PollLease {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self(None));
        }
        let lease = parse_duration(text).ok().and_then(|lease| u64::try_from(lease.as_millis()).ok());
        let lease = lease.filter(|lease| (POLL_LEASE_MS_MIN..=HEARTBEAT_LEASE_MS_MAX).contains(lease));
        lease
            .map(|lease| Self(Some(lease)))
            .ok_or("must be more than 90s and up to 24h, such as 90m, or none")
    }
}

fn any_role(name: &str) -> Result<Role, String> {
    let all = || Role::ALL.map(Role::as_str).join(", ");
    Role::of(name).ok_or_else(|| format!("must be one of {}", all()))
}

fn role(name: &str) -> Result<Role, &'static str> {
    let rule = "must be publisher, ingest, rollup, renewer, keeper, maintainer, margo, planner, scheduler, gateway, \
                packager, checker, viewer, approver, subscriber or operator; `muster enroll` is for devices";
    Role::of(name).filter(|role| *role != Role::Device).ok_or(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 60 * 60;

    #[test]
    fn a_poll_lease_is_above_that_of_the_hub_and_fits_a_heartbeat() {
        for (text, lease) in
            [("90m", Some(5_400_000)), ("91s", Some(91_000)), ("24h", Some(86_400_000)), ("none", None)]
        {
            assert_eq!(text.parse(), Ok(PollLease(lease)), "{text}");
        }
        for bad in ["", "0s", "90s", "1441m", "soon", "None"] {
            assert!(bad.parse::<PollLease>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_validity_has_a_unit() {
        for (text, seconds) in
            [("30d", 30 * DAY), ("12h", 43_200), ("90m", 5_400), ("45s", 45), ("3650d", 3650 * DAY)]
        {
            assert_eq!(text.parse(), Ok(Valid(seconds)));
        }
        for bad in ["", "d", "0s", "3651d", "30", "-1d", "99999999999999999999d", "1w"] {
            assert!(bad.parse::<Valid>().is_err(), "{bad}");
        }
    }
}
