//! Collects the views that the writer reads from the fold at once. It decides and writes nothing.

use bytes::Bytes;
use muster_contract::canonical::Digest;
use muster_contract::decode::{Document, to_bytes};
use muster_contract::subjects::ViewKey;
use muster_domain::fold::{Fleet, Shown, Unsigned};

/// A view as read from the fold.
pub(super) enum ViewRead {
    /// Its digest and its document, to be serialized after the read; none where there is no such view.
    Whole(Option<Box<dyn FnOnce() -> (Digest, Bytes)>>),
    /// A view whose digest takes so long that the fold must not wait for it.
    Unsigned(Unsigned),
    /// The view cannot be built yet.
    NotYet,
}

pub(super) fn show(fleet: &Fleet, key: &ViewKey) -> ViewRead {
    ViewRead::Whole(match key {
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
            Shown::View(view) => return ViewRead::Unsigned(view),
            Shown::Absent => None,
            Shown::NotYet => return ViewRead::NotYet,
        },
    })
}

fn whole(digest: Digest, view: impl Document + 'static) -> Box<dyn FnOnce() -> (Digest, Bytes)> {
    Box::new(move || (digest, to_bytes(&view).into()))
}
