//! Follows the views of sites in the bucket `views`, because no question lists all sites. It shows nothing.
//!
//! A role without the right to follow views gets the cause in place of a list.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_bus::{ReadError, ViewEntry};
use muster_contract::subjects::ViewKey;
use muster_contract::validity::valid_until;
use muster_contract::view::SiteView;
use muster_contract::{SiteId, Timestamp};
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio::sync::mpsc;
use tokio::time::{interval, sleep};

use super::model::Update;
use super::poll::ASK_EVERY;
use crate::ask::Hub;

/// The views of all sites.
const EVERY_SITE: &str = "site.*";
/// Entries read at once.
const BATCH: usize = 256;

/// Sends all sites again and again until the screen is gone.
pub(super) async fn follow(hub: Hub, clock: Arc<dyn Clock>, updates: mpsc::Sender<Update>) {
    while let Err(error) = send_all(&hub, &*clock, &updates).await {
        let cause = format!(
            "the views of sites cannot be read, for which a subscriber or operator has the right: {}",
            chain(&error)
        );
        if updates.send(Update::Sites(Err(cause), clock.now())).await.is_err() {
            return;
        }
        sleep(ASK_EVERY).await;
    }
}

/// Ends without an error when the screen is gone.
async fn send_all(hub: &Hub, clock: &dyn Clock, updates: &mpsc::Sender<Update>) -> Result<(), ReadError> {
    let mut watch = hub.bus().view_watch(EVERY_SITE).await?;
    let mut sites = SiteViews::default();
    while let Some(entries) = watch.next_present(BATCH).await? {
        sites.apply(&entries);
    }
    let mut ticks = interval(ASK_EVERY);
    loop {
        tokio::select! {
            entries = watch.next_batch(BATCH) => sites.apply(&entries?),
            _ = ticks.tick() => {
                let now = clock.now();
                if updates.send(Update::Sites(sites.all(now), now)).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}

/// The newest view of each site.
#[derive(Default)]
struct SiteViews {
    views: BTreeMap<SiteId, Result<SiteView, String>>,
    /// End of the validity of the view written last: one writer renews them all.
    until: Option<Timestamp>,
}

impl SiteViews {
    fn apply(&mut self, entries: &[ViewEntry]) {
        for entry in entries {
            let Some(ViewKey::Site(site)) = ViewKey::parse(&entry.key) else { continue };
            self.until = entry.value.as_deref().and_then(valid_until).or(self.until);
            match &entry.value {
                Some(value) => {
                    let view = serde_json::from_slice(value);
                    let view =
                        view.map_err(|error| format!("the view of site {site} is not readable: {error}"));
                    self.views.insert(site, view);
                }
                None => _ = self.views.remove(&site),
            }
        }
    }

    /// All sites, or why the views are not current.
    fn all(&self, now: Timestamp) -> Result<Vec<SiteView>, String> {
        match self.until.filter(|until| *until < now) {
            Some(until) => Err(format!(
                "the views of sites expired at {until} and were not renewed: does muster-rollup run?"
            )),
            None => self.views.values().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::validity::valid_to;

    use super::*;

    fn entry(site: &str, value: Option<&[u8]>) -> ViewEntry {
        let value = value.map(|value| value.to_vec().into());
        ViewEntry { key: format!("site.{site}"), value, revision: 1, read_to: None, pending: 0 }
    }

    #[test]
    fn an_expired_or_unreadable_view_of_a_site_is_an_error() {
        let view = include_bytes!("../../../../schemas/examples/good/SiteView.plant7.json");
        let mut value: serde_json::Value = serde_json::from_slice(view).unwrap();
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut sites = SiteViews::default();
        for name in ["plant7", "plant8"] {
            value["site"] = name.into();
            sites.apply(&[entry(name, Some(&valid_to(value.to_string().as_bytes(), at(100))))]);
        }
        assert_eq!(sites.all(at(100)).unwrap().len(), 2);
        assert!(sites.all(at(101)).unwrap_err().contains("were not renewed"));
        sites.apply(&[entry("plant8", None)]);
        assert_eq!(sites.all(at(100)).unwrap()[0].site.as_str(), "plant7");
        sites.apply(&[entry("plant9", Some(b"{}"))]);
        assert!(sites.all(at(100)).unwrap_err().starts_with("the view of site plant9 is not readable"));
    }
}
