//! The settings of `muster-simulator link`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use muster_service::config::{Common, Problems};

use super::cut::CUTS_DEFAULT;
use super::log::LogArgs;
use super::run;
use crate::link::{Profile, Sharing};

/// Shown below the help.
pub(super) const EXAMPLES: &str = "\
Profiles:
  steady      nothing goes wrong
  flapping    fast, and cut or stalled for up to 5 s every few seconds
  flaky       fast, and every kind of fault for up to 12 s every few seconds
  thin        16 KiB/s up, 64 KiB/s down, 80 ms; cut for seconds every few minutes
  satellite   32 KiB/s up, 256 KiB/s down, 600 ms; dark for up to minutes
  mobile      256 KiB/s up, 1 MiB/s down, 60 ms, all of it changing; away for up to minutes

Up is from the client to --to. All connections of a link share its rates. The same seed gives the same schedule.
With --each every client, identified by its address, has a link of its own, which breaks by a schedule of its own.

Examples:
  muster-simulator link --listen 0.0.0.0:4222 --to nats:4222 --profile satellite --seed 7
  MUSTER_LINK_PROFILE=thin muster-simulator link --listen 127.0.0.1:4223 --to 127.0.0.1:4222

Exit codes: 0 stopped when asked to; 1 something failed; 2 a setting cannot be used.";

/// `link`, as typed.
#[derive(Debug, Args)]
pub(crate) struct LinkArgs {
    /// Where clients connect to
    #[arg(
        long = "link-listen",
        visible_alias = "listen",
        env = "MUSTER_LINK_LISTEN",
        value_name = "IP:PORT"
    )]
    listen: Option<String>,
    /// The server, looked up anew for every connection
    #[arg(long = "link-to", visible_alias = "to", env = "MUSTER_LINK_TO", value_name = "HOST:PORT")]
    to: Option<String>,
    /// Profile of the link; see below
    #[arg(
        long = "link-profile",
        visible_alias = "profile",
        env = "MUSTER_LINK_PROFILE",
        value_name = "NAME",
        default_value = "steady"
    )]
    profile: String,
    /// Seed of its faults; drawn and logged if left out
    #[arg(long = "link-seed", visible_alias = "seed", env = "MUSTER_LINK_SEED", value_name = "N")]
    seed: Option<String>,
    /// Folder of cuts made by hand: see `muster-simulator cut`
    #[arg(
        long = "link-cuts",
        visible_alias = "cuts",
        env = "MUSTER_LINK_CUTS",
        value_name = "DIR",
        default_value = CUTS_DEFAULT
    )]
    cuts: PathBuf,
    /// Give each client a link of its own
    #[arg(long = "link-each", visible_alias = "each", env = "MUSTER_LINK_EACH")]
    each: bool,
    /// Where to serve /live, /ready and /metrics, such as 127.0.0.1:9100; port 0 takes any free one
    #[arg(long, env = "MUSTER_HTTP_ADDR", value_name = "IP:PORT")]
    http_addr: Option<String>,
    #[command(flatten)]
    log: LogArgs,
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct LinkProxyConfig {
    /// Where clients connect to.
    pub listen: SocketAddr,
    /// The server.
    pub to: Server,
    /// The profile of the link.
    pub profile: Profile,
    /// Seed of its faults.
    pub seed: u64,
    /// Which clients share a link.
    pub sharing: Sharing,
    /// The folder of cuts made by hand.
    pub cuts: PathBuf,
    /// The settings of every service.
    pub common: Common,
}

/// `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server(pub String);

/// It is not of that form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be HOST:PORT, such as nats:4222 or 127.0.0.1:4222")]
pub struct NoServer;

impl FromStr for Server {
    type Err = NoServer;

    fn from_str(text: &str) -> Result<Self, NoServer> {
        let (host, port) = text.rsplit_once(':').ok_or(NoServer)?;
        let named = !host.is_empty() && !host.contains(['/', ' ', '@']);
        let ported = port.parse::<u16>().is_ok_and(|port| port > 0);
        if named && ported { Ok(Self(text.to_owned())) } else { Err(NoServer) }
    }
}

impl LinkArgs {
    pub(super) fn check(self, seed: u64) -> Result<LinkProxyConfig, Problems> {
        let mut problems = Problems::default();
        let listen = problems.required("--link-listen", self.listen.as_deref(), Problems::address);
        let to = problems.required("--link-to", self.to.as_deref(), Problems::parse);
        let profile = problems.parse("--link-profile", &self.profile);
        let seed = run::seed(&mut problems, "--link-seed", self.seed.as_deref(), seed);
        let http_addr = problems.optional("--http-addr", self.http_addr.as_deref(), Problems::address);
        let common = self.log.check(&mut problems);
        let sharing = if self.each { Sharing::Each } else { Sharing::All };
        let cuts = self.cuts;
        problems.finish(|| {
            let common = Common { http_addr: http_addr?, ..common? };
            Some(LinkProxyConfig {
                listen: listen?,
                to: to?,
                profile: profile?,
                seed: seed?,
                sharing,
                cuts,
                common,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Settings, tests::check};
    use super::*;

    fn link_proxy(words: &[&str]) -> Result<LinkProxyConfig, Problems> {
        match check(&[&["link"], words].concat())? {
            Settings::Link(config) => Ok(config),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn two_addresses_are_enough() {
        let config = link_proxy(&["--listen", "127.0.0.1:0", "--to", "nats:4222"]).unwrap();
        assert_eq!((config.profile, config.seed, config.to.0.as_str()), (Profile::STEADY, 7, "nats:4222"));
        assert_eq!(config.sharing, Sharing::All);
    }

    #[test]
    fn every_bad_setting_is_named_at_once() {
        let words = ["--listen=here", "--to=nats", "--profile=perfect", "--seed=x", "--http-addr=there"];
        let shown = link_proxy(&words).unwrap_err().to_string();
        for part in ["here (MUSTER_LINK_LISTEN)", "MUSTER_LINK_TO", "satellite", "MUSTER_LINK_SEED", "there"]
        {
            assert!(shown.contains(part), "{part} is not in:\n{shown}");
        }
    }

    #[test]
    fn the_help_names_every_profile_as_it_is() {
        for Profile { name, about, .. } in Profile::ALL {
            let line = format!("  {name:<10}  {about}\n");
            assert!(EXAMPLES.contains(&line), "{line}");
        }
    }
}
