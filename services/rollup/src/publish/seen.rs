//! Views as the writer sees them at one look at the fold. It decides and writes nothing.

use bytes::Bytes;
use muster_contract::canonical::Digest;
use muster_contract::decode::{Document, to_bytes};
use muster_contract::subjects::ViewKey;
use muster_domain::fold::{Fleet, Shown, Unsigned};

/// A view as it is seen at one look.
pub(super) enum Seen {
    /// Its digest and, to be written when the fold goes on, its document; nothing where there is no such view.
    Whole(Option<Box<dyn FnOnce() -> (Digest, Bytes)>>),
    /// One whose digest takes so long that nobody shall wait for it.
    Unsigned(Unsigned),
    /// It cannot be told yet.
    NotYet,
}

pub(super) fn show(fleet: &Fleet, key: &ViewKey) -> Seen {
    Seen::Whole(match key {
        ViewKey::Deployment(id) => fleet.deployment_view(id).map(|view| whole(view.digest, view)),
        ViewKey::Site(id) => fleet.site_view(id).map(|view| whole(view.tally.digest, view)),
        ViewKey::Fleet => {
            let view = fleet.fleet_view();
            Some(whole(view.tally.digest, view))
        }
        ViewKey::Group(label, value) => {
            fleet.group_view(label, value).map(|view| whole(view.tally.digest, view))
        }
        ViewKey::Defined(name) => match fleet.defined_view(name) {
            Shown::View(view) => return Seen::Unsigned(view),
            Shown::Absent => None,
            Shown::NotYet => return Seen::NotYet,
        },
    })
}

fn whole(digest: Digest, view: impl Document + 'static) -> Box<dyn FnOnce() -> (Digest, Bytes)> {
    Box::new(move || (digest, to_bytes(&view).into()))
}
