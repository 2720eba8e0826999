//! Sites with a server of their own: the files of those servers, by `muster auth leaf`, and the settings with which the
//! hub's server accepts them.

use muster_contract::SiteId;

use super::prepare::{ACCOUNTS, certify, copy};
use super::{PUBLIC, SECRET, folder, keep, muster};
use crate::config::lab::Prepare;
use crate::error::Error;

/// The folder with the prepared files of a site's server, in its container.
const FOLDER: &str = "/data/leaf";
/// The file of the authority of the hub's certificate, in the container.
const HUB_AUTHORITY: &str = "/data/trust/ca.pem";
/// The data directory of the server, in the container.
const DATA: &str = "/data/state";
/// By which it comes in at the hub.
const CREDS: &str = "leaf.creds";
/// Interval of the pings at both ends of an uplink: after two without an answer it counts as down.
const PINGS: &str = "ping_interval: \"5s\"\nping_max: 2\n";

/// Creates the files of the servers of all sites.
pub(super) async fn prepare(config: &Prepare) -> Result<(), Error> {
    for site in &config.sites {
        one(config, site).await?;
    }
    Ok(())
}

async fn one(config: &Prepare, site: &SiteId) -> Result<(), Error> {
    let lab = &config.lab;
    let (auth, own) = (lab.auth(), lab.leaf(site));
    folder(&own)?;
    let made = auth.join("leaves").join(site.as_str());
    if !made.join(CREDS).exists() {
        let dir = auth.display().to_string();
        muster(&["auth", "leaf", site.as_str(), "--dir", &dir]).await?;
        tracing::info!(site = %site, "made the settings of the site's server");
    }
    certify(&[format!("leaf-{site}"), "127.0.0.1".to_owned()], &own, &lab.authority_of(site))?;
    copy(&made.join(ACCOUNTS), &own.join(ACCOUNTS), PUBLIC)?;
    copy(&made.join(CREDS), &own.join(CREDS), SECRET)?;
    keep(&own.join("leaf.conf"), &leaf_config(site, &config.uplink.0), PUBLIC)
}

/// The configuration of a site's server: devices connect to it with TLS, and it connects to the hub with TLS.
fn leaf_config(site: &SiteId, uplink: &str) -> String {
    format!(
        "# The server of site {site} in this lab, for nats-server. Made anew at every start.\n\
         server_name: leaf-{site}\n\
         listen: \"0.0.0.0:4222\"\n\
         http: \"0.0.0.0:8222\"\n\
         {PINGS}\
         jetstream {{ domain: {site}, store_dir: \"{DATA}/jetstream\" }}\n\
         tls {{ cert_file: \"{FOLDER}/cert.pem\", key_file: \"{FOLDER}/key.pem\" }}\n\
         include \"{ACCOUNTS}\"\n\
         leafnodes {{\n\
         \x20 reconnect: \"1s\"\n\
         \x20 remotes: [{{\n\
         \x20   urls: [\"tls://{uplink}\"], account: $DEVICES, credentials: \"{FOLDER}/{CREDS}\"\n\
         \x20   tls {{ ca_file: \"{HUB_AUTHORITY}\" }}\n\
         \x20 }}]\n\
         }}\n"
    )
}

/// The part of the configuration with which the hub's server accepts servers of sites.
pub(super) fn at_the_hub(tls: &str) -> String {
    format!("{PINGS}leafnodes {{ listen: \"0.0.0.0:7422\", {tls} }}\n")
}
