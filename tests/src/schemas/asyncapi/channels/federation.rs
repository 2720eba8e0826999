//! Channels of a federation of hubs: what a hub gives to it, and whose counts it adds. What else a federation sends and
//! answers has the shapes and subjects of a hub.

use muster_bus::topology::VIEWS_STREAM;
use muster_contract::parts::HUBS_KEY;
use muster_contract::subjects::{QUERY_PREFIX, stream};

use super::Channel;

/// The answers to these requests.
pub(super) const ANSWERS: [&str; 2] = ["PartsAnswer", "HubList"];

pub(super) fn list() -> Vec<Channel> {
    let hubs = format!("$KV.{}.{HUBS_KEY}", stream::VIEWS_BUCKET);
    let ask = |verb: &str| format!("{QUERY_PREFIX}.{verb}");
    vec![
        Channel::new(
            "hubList",
            &hubs,
            Some(VIEWS_STREAM),
            &["HubList"],
            "Key `hubs` of a federation's bucket `views`: the hubs whose counts are added, and which of them are heard.",
        ),
        Channel::new(
            "queryParts",
            &ask("parts"),
            None,
            &["PartsQuery"],
            "The parts that a hub has in views, unabridged: those of hubs whose sites are disjoint add up to the views of one \
             hub with all those sites.",
        ),
        Channel::new(
            "queryHubs",
            &ask("hubs"),
            None,
            &["Query"],
            "The hubs of a federation; only a federation answers.",
        ),
    ]
}
