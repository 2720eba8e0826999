//! The settings of `muster-simulator cut` and `muster-simulator mend`.

use std::path::PathBuf;

use clap::Args;
use muster_service::config::{Common, Problems};

use super::log::LogArgs;

/// Shown below the help.
pub(super) const EXAMPLES: &str = "\
The link reads its folder of cuts (--cuts) every second: a line is cut from then on until it is mended, whatever the profile
of the link does. Run the command on the link's machine, with the same folder. Without --each a cut is one of all clients.

Examples:
  muster-simulator cut 172.20.0.7
  docker compose exec link /bin/muster-simulator cut 3f2a9c0b7d1e
  docker compose exec link /bin/muster-simulator mend 3f2a9c0b7d1e";
/// The folder of cuts unless another is named.
pub(super) const CUTS_DEFAULT: &str = "/tmp/muster-cuts";

/// `cut` and `mend`, as typed.
#[derive(Debug, Args)]
pub(crate) struct CutArgs {
    /// The client: its address, or a name that has one here, such as that of its container
    client: String,
    /// Folder of the link's cuts
    #[arg(
        long = "link-cuts",
        visible_alias = "cuts",
        env = "MUSTER_LINK_CUTS",
        value_name = "DIR",
        default_value = CUTS_DEFAULT
    )]
    cuts: PathBuf,
    #[command(flatten)]
    log: LogArgs,
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct CutConfig {
    /// The client.
    pub client: String,
    /// Its line is cut; otherwise it is mended.
    pub is_cut: bool,
    /// The folder of cuts.
    pub dir: PathBuf,
    /// The settings of every service.
    pub common: Common,
}

impl CutArgs {
    pub(super) fn check(self, is_cut: bool) -> Result<CutConfig, Problems> {
        let mut problems = Problems::default();
        let common = self.log.check(&mut problems);
        problems.finish(|| Some(CutConfig { client: self.client, is_cut, dir: self.cuts, common: common? }))
    }
}
