//! The command line of `muster package`.

use std::path::PathBuf;

use clap::Subcommand;
use muster_contract::packages::ObjectName;

pub(super) const PACKAGE_EXAMPLES: &str = "\
The hub keeps packages in the bucket packages of NATS's object store. A component names one with
packageLocation: nats://packages/NAME and, so that its content is fixed, packageDigest: sha256:…; devices fetch it over
their own connection, also through a leaf node. On a hub with keys, the role packager alone may put and remove:
  muster auth creds packager --dir DIR -o packager.creds

Examples:
  muster package put web-2.4.0.tar.gz --creds packager.creds
  muster package put build/web.tar.gz --name plant7/web-2.4.0.tar.gz
  muster package put web-2.4.0.tar.gz.sig            its signature, as `cosign sign-blob` made it (.asc: `gpg`)
  muster package list --format json | jq .packages
  muster package remove web-2.3.0.tar.gz

A package has 64 MiB at most, and all together 256 MiB. Exit code 1: a package to remove is not there.";

/// `muster package`
#[derive(Debug, Subcommand)]
pub enum PackageCommand {
    /// Put an archive (.tar.gz) or its signature (.sig, .asc); one of the same name is replaced once the new one is whole
    Put {
        /// The file
        file: PathBuf,
        /// The name in the hub [default: that of the file]
        #[arg(long)]
        name: Option<ObjectName>,
    },
    /// The packages, with their sizes and digests
    List,
    /// Remove packages; devices that have fetched them keep them
    Remove {
        /// The packages
        #[arg(required = true, value_name = "NAME")]
        names: Vec<ObjectName>,
    },
}
