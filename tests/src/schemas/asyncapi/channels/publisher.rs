//! Channels of requests to the publisher.

use muster_contract::subjects;

use super::{Channel, request};

pub(super) fn list() -> Vec<Channel> {
    let publisher = subjects::PUBLISHER_PREFIX;
    vec![
        request("publisherApply", publisher, "apply", &["ApplyRequest"], "A device shall run these as well."),
        request(
            "publisherRemove",
            publisher,
            "remove",
            &["RemoveRequest"],
            "Takes back what was applied so.",
        ),
        request(
            "publisherRetire",
            publisher,
            "retire",
            &["RetireRequest"],
            "Takes a device out of the fleet.",
        ),
        request(
            "publisherTargets",
            publisher,
            "targets",
            &["TargetsQuery"],
            "The devices that a rollout governs, with the content of a deployment that each has and shall have, page by page.",
        ),
        request(
            "publisherRelease",
            publisher,
            "release",
            &["ReleaseRequest"],
            "Governed devices get a content of a deployment. The same request again changes nothing.",
        ),
        request(
            "publisherDecide",
            publisher,
            "decide",
            &["DecideRequest"],
            "Records a decision about a rollout: begin, check, ready, approve, pause, resume, stop, rollback, retry, finish. The same decision \
             again changes nothing.",
        ),
        request(
            "publisherStatus",
            publisher,
            "status",
            &["PublisherQuery"],
            "How the publisher's sources are, and where a commit is.",
        ),
    ]
}
