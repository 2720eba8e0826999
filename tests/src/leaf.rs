//! A site with a server of its own: a leaf node of a [`Guarded`] hub, with what `muster auth leaf` made for it.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::PathBuf;
use std::time::Duration;

use muster_bus::BusConfig;
use muster_contract::{DeviceKey, SiteId};

use crate::guarded::Guarded;
use crate::server::{Server, Setup};

/// The server of a site.
pub struct Site {
    /// The server.
    pub server: Server,
    creds: PathBuf,
}

impl Site {
    /// The server of a site that the hub knows, with a JetStream domain of its own.
    pub fn start(hub: &Guarded, site: &SiteId) -> Self {
        let folder = hub.auth().join("leaves").join(site.as_str());
        let creds = folder.join("leaf.creds");
        let store = hub.dir().join(format!("streams-{site}"));
        // By its path from the server's own folder, which is beside the hub's.
        let name = hub.dir().file_name().unwrap().to_str().unwrap();
        let more = format!(
            "include \"../{name}/auth/leaves/{site}/nats-server.conf\"\n\
             jetstream {{ domain: {site}, store_dir: \"{}\" }}\n{}",
            store.display(),
            remote(hub, "account: $DEVICES,", &creds)
        );
        let server = Server::start_with(Setup { jetstream: false, more, ..Setup::default() });
        Self { server, creds }
    }

    /// A server of an attacker who has a site's credentials: it has no rules, and every client may do everything on it.
    pub fn taken_over(hub: &Guarded, site: &SiteId) -> Self {
        let creds = hub.auth().join("leaves").join(site.as_str()).join("leaf.creds");
        let store = hub.dir().join(format!("streams-of-a-thief-{site}"));
        let jetstream = format!("jetstream {{ domain: thief, store_dir: \"{}\" }}\n", store.display());
        let more = jetstream + &remote(hub, "", &creds);
        let server = Server::start_with(Setup { jetstream: false, more, ..Setup::default() });
        Self { server, creds }
    }

    /// By which it comes in at the hub.
    pub const fn creds(&self) -> &PathBuf {
        &self.creds
    }

    /// The settings of a device that connects to the site's server and that the hub's operator has enrolled.
    pub fn device_config(&self, hub: &Guarded, key: &DeviceKey) -> BusConfig {
        BusConfig { url: self.server.url(), tls_ca: None, ..hub.device_config(key) }
    }
}

fn remote(hub: &Guarded, account: &str, creds: &std::path::Path) -> String {
    let (port, creds) = (hub.leaf_port(), creds.display());
    let url = format!("nats-leaf://127.0.0.1:{port}");
    format!(
        "ping_interval: \"500ms\"\n\
         leafnodes {{ reconnect: \"{}ms\", remotes: [{{ urls: [\"{url}\"], {account} credentials: \"{creds}\" }}] }}\n",
        Duration::from_millis(200).as_millis()
    )
}
