//! Reads the federation's settings: the hubs and how to reach each.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use muster_bus::BusConfig;
use muster_contract::HubName;
use muster_contract::parts::HUBS_MAX;
use muster_service::config::{Common, CommonArgs, NatsUrl, Problems};
use muster_service::version::VERSION;

use crate::timing::{LEASE_MAX, LEASE_MIN, Timing};

/// The federation's name at the NATS servers.
pub const NAME: &str = "muster-federation";

const GUIDE: &str = "\
A hub is a NATS server (or an account of one) with its own publisher, ingest and rollup, for the devices of some sites. The
federation follows the views of each hub, adds their counts, and writes views of all hubs to the bucket 'views' of its
own NATS (--nats-url): no hub, but a server or an account for itself. There it answers questions (NATS service
'muster-query'): about the fleet, deployments, sites and groups by itself, for lists of devices and targets, reasons
and what was at a time by asking every hub concerned, about one site by passing them on to the hub that has it.
`muster --nats-url TOP status` and the like ask there.

A hub that is not heard for as long as the lease counts with everything stale and nothing known. Nothing is published before
every hub was read once. A second federation with the same settings is a hot standby.

Credentials: at a hub those of its role 'subscriber', at the top those of its role 'rollup', and with
--readers-creds those of the keeper (`muster auth init` makes all of them).

Examples:
  muster-federation --nats-url nats://top:4222 --hub north=nats://north:4222 --hub south=nats://south:4222
  muster-federation --hub north=tls://north:4222 --hub-creds north=/etc/muster/north.creds \\
      --hub-tls-ca north=/etc/muster/north.pem --creds /etc/muster/top.creds --http-addr 127.0.0.1:9105
  MUSTER_HUB=north=nats://n-1:4222,nats://n-2:4222,south=nats://s:4222 muster-federation

Exit codes: 0 stopped when asked to; 1 something failed; 2 a setting cannot be used.";

/// Adds the counts of several hubs to views of all of them
#[derive(Debug, Parser)]
#[command(name = "muster-federation", version = VERSION, after_help = GUIDE)]
pub struct Cli {
    /// A hub: its name and its NATS servers, several separated by commas; once for each hub
    #[arg(
        long = "hub",
        env = "MUSTER_HUB",
        // They may hold passwords, which `--help` must not show.
        hide_env_values = true,
        value_name = "NAME=URL"
    )]
    hubs: Vec<String>,

    /// File with the NATS credentials to log in with at a hub
    #[arg(long, env = "MUSTER_HUB_CREDS", value_name = "NAME=FILE", value_delimiter = ',')]
    hub_creds: Vec<String>,

    /// File with the certificates (PEM) of the authority that vouches for a hub's NATS server
    #[arg(long, env = "MUSTER_HUB_TLS_CA", value_name = "NAME=FILE", value_delimiter = ',')]
    hub_tls_ca: Vec<String>,

    /// Silence of a hub after which its devices count as stale
    #[arg(long, env = "MUSTER_LEASE", value_name = "DURATION", default_value = "90s")]
    lease: String,

    /// File with the credentials of the keeper at the top (creds/keeper.creds there): the federation then keeps
    /// the mirror of the bucket views that people read on a server with accounts
    #[arg(long, env = "MUSTER_READERS_CREDS", value_name = "FILE")]
    readers_creds: Option<String>,

    #[command(flatten)]
    common: CommonArgs,
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Settings common to all services; this NATS is the top's.
    pub common: Common,
    /// How to reach each hub; at least one.
    pub hubs: BTreeMap<HubName, BusConfig>,
    /// The intervals at which a hub is asked, and its lease.
    pub timing: Timing,
    /// The keeper's credentials at the top; no mirror if none.
    pub readers_creds: Option<PathBuf>,
}

impl Cli {
    /// The settings, checked.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn check(self) -> Result<Config, Problems> {
        let mut problems = Problems::default();
        let common = self.common.check(&mut problems);
        let mut hubs = hubs(&mut problems, &self.hubs);
        for (name, path) in files(&mut problems, "--hub-creds", &self.hub_creds, &hubs) {
            hubs.entry(name).and_modify(|hub| hub.creds = Some(path));
        }
        for (name, path) in files(&mut problems, "--hub-tls-ca", &self.hub_tls_ca, &hubs) {
            hubs.entry(name).and_modify(|hub| hub.tls_ca = Some(path));
        }
        let lease = problems.duration("--lease", &self.lease, LEASE_MIN..=LEASE_MAX);
        let readers = problems.optional("--readers-creds", self.readers_creds.as_deref(), Problems::file);
        if let Some(common) = &common {
            refuse_the_top(&mut problems, common, &hubs);
        }
        problems.finish(|| {
            Some(Config { common: common?, hubs, timing: Timing::of(lease?), readers_creds: readers? })
        })
    }
}

/// Every hub that is named, by name.
fn hubs(problems: &mut Problems, texts: &[String]) -> BTreeMap<HubName, BusConfig> {
    const FLAG: &str = "--hub";
    let (mut hubs, mut named) = (BTreeMap::new(), false);
    for (name, url) in texts.iter().flat_map(|text| servers(text)) {
        named = true;
        let Some(name) = named_hub(problems, FLAG, &name) else { continue };
        // The refusal shows no more of an address than it may: a password stays hidden.
        match NatsUrl::from_str(&url) {
            Err(rule) => problems.refuse(FLAG, format!("{name}=…"), rule),
            Ok(_) if hubs.contains_key(&name) => {
                problems.refuse(FLAG, format!("{name}=…"), "is named twice; each hub has a name of its own");
            }
            Ok(url) => _ = hubs.insert(name, BusConfig::service(url.as_str(), NAME)),
        }
    }
    if hubs.len() > HUBS_MAX {
        problems.refuse(FLAG, format!("{} hubs", hubs.len()), format!("{HUBS_MAX} are allowed"));
    }
    if !named {
        problems.required::<()>(FLAG, None, |_, _, _| None);
    }
    hubs
}

/// The hubs of one text, `NAME=URL` each: a part after a comma without a name is one more server of the hub
/// before it.
fn servers(text: &str) -> Vec<(String, String)> {
    let mut hubs: Vec<(String, String)> = Vec::new();
    for piece in text.split(',').map(str::trim) {
        let named = piece.split_once('=').filter(|(name, _)| !name.contains([':', '/', '@']));
        match (named, hubs.last_mut()) {
            (Some((name, url)), _) => hubs.push((name.to_owned(), url.to_owned())),
            (None, Some((_, url))) => *url = format!("{url},{piece}"),
            (None, None) => hubs.push((String::new(), piece.to_owned())),
        }
    }
    hubs
}

fn named_hub(problems: &mut Problems, flag: &'static str, name: &str) -> Option<HubName> {
    if name.is_empty() {
        problems.refuse(flag, "…", "must begin with the name of a hub, as in north=nats://north:4222");
        return None;
    }
    name.parse().map_err(|rule| problems.refuse(flag, format!("{name}=…"), rule)).ok()
}

/// The files of hubs, `NAME=FILE` each.
fn files(
    problems: &mut Problems,
    flag: &'static str,
    texts: &[String],
    hubs: &BTreeMap<HubName, BusConfig>,
) -> Vec<(HubName, PathBuf)> {
    let mut files = BTreeMap::new();
    for text in texts {
        let Some((name, path)) = text.split_once('=') else {
            problems.refuse(flag, text, "must be NAME=FILE, with the name of a hub");
            continue;
        };
        let Some(name) = named_hub(problems, flag, name) else { continue };
        if !hubs.contains_key(&name) {
            problems.refuse(flag, text, format!("names no hub; give --hub {name}=URL too"));
            continue;
        }
        let Some(path) = problems.file(flag, path) else { continue };
        if files.insert(name, path).is_some() {
            problems.refuse(flag, text, "is the second file of this hub");
        }
    }
    files.into_iter().collect()
}

/// The top is no hub: two would write views of different fleets under the same keys. Accounts of one server have one address
/// and differ by their credentials.
fn refuse_the_top(problems: &mut Problems, common: &Common, hubs: &BTreeMap<HubName, BusConfig>) {
    for (name, hub) in hubs {
        if hub.url == common.nats_url.as_str() && hub.creds == common.creds {
            let rule =
                format!("is the hub {name} itself; the federation needs a server or an account of its own");
            problems.refuse("--nats-url", &common.nats_url, rule);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory;

    use super::*;

    fn check(words: &[&str]) -> Result<Config, Problems> {
        let top = ["muster-federation", "--nats-url", "nats://top"];
        Cli::try_parse_from([&top, words].concat()).unwrap().check()
    }

    fn urls(words: &[&str]) -> Vec<(String, String)> {
        let hubs = check(words).unwrap().hubs;
        hubs.into_iter().map(|(name, hub)| (name.to_string(), hub.url)).collect()
    }

    #[test]
    fn a_hub_is_a_name_and_its_servers_wherever_it_is_named() {
        let wanted = [("north", "nats://n-1:4222,nats://n-2"), ("south", "tls://s")];
        let wanted = wanted.map(|(name, url)| (name.to_owned(), url.to_owned()));
        assert_eq!(urls(&["--hub", "north=nats://n-1:4222,n-2", "--hub", "south=tls://s"]), wanted);
        assert_eq!(urls(&["--hub", "north=nats://n-1:4222,nats://n-2,south=tls://s"]), wanted);
    }

    #[test]
    fn a_lease_and_the_time_between_two_questions_go_together() {
        let config = check(&["--hub", "north=n"]).unwrap();
        assert_eq!(config.timing.lease, Duration::from_secs(90));
        assert_eq!(
            check(&["--hub", "north=n", "--lease", "3s"]).unwrap().timing.lease,
            Duration::from_secs(3)
        );
    }

    #[test]
    fn everything_wrong_is_said_at_once_and_no_password() {
        let shown = check(&[
            "--hub=nats://secret@nameless",
            "--hub=North=nats://n",
            "--hub=south=http://me:secret@s",
            "--hub=east=nats://me:secret@e,east=nats://me:secret@e",
            "--hub=top=nats://top",
            "--hub-creds=west=/etc/hosts",
            "--hub-creds=east",
            "--hub-tls-ca=east=/no/such/file",
            "--lease=1ms",
        ])
        .unwrap_err()
        .to_string();
        for part in [
            "must begin with the name of a hub",
            "North=…",
            "http://***@s",
            "east=…",
            "is the hub top itself",
            "west=/etc/hosts",
            "must be NAME=FILE",
            "/no/such/file",
            "--lease",
        ] {
            assert!(shown.contains(part), "{part} is missing:\n{shown}");
        }
        assert!(!shown.contains("secret"), "{shown}");
        let many: Vec<String> = (0..=HUBS_MAX).map(|n| format!("hub-{n}=nats://h")).collect();
        assert!(check(&["--hub", &many.join(",")]).unwrap_err().to_string().contains("65 hubs"));
        assert!(check(&[]).unwrap_err().to_string().contains("--hub"));
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
