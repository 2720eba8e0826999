//! The roles with their names, accounts and connection limits. [`rights`](crate::rights) lists the subjects of each, and
//! [`exchange`](crate::exchange) the subjects that accounts share.

use muster_contract::limits::{CONNECTIONS_PER_KEY_MAX, CONNECTIONS_PER_SERVICE_KEY_MAX};
use nkeys::{KeyPair, KeyPairType};

use crate::exchange::Account;

/// The server's value for "no limit".
pub(crate) const UNLIMITED: i64 = -1;

/// The role of a user on the bus, which decides its rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// One device; its rights cover only its own subjects.
    Device,
    /// `muster-publisher`.
    Publisher,
    /// `muster-ingest`.
    Ingest,
    /// `muster-rollup`.
    Rollup,
    /// `muster-renewer`.
    Renewer,
    /// The task of `muster-rollup` that keeps the mirrors of READERS.
    Keeper,
    /// A person who updates streams after an upgrade; credentials are made on demand, for an hour.
    Maintainer,
    /// The listener of devices of `muster-gateway`: reports, heartbeats and numbers of the sites that its token names.
    Margo,
    /// `muster-planner`, which follows LEDGER like a subscriber, and asks the publisher to release held changes.
    Planner,
    /// The task of `muster-planner` that keeps plans: it writes PLANS, and answers requests about plans.
    Scheduler,
    /// The people's side of `muster-gateway`: it reads, and asks for changes on behalf of people who have logged in.
    Gateway,
    /// A person or program that puts packages into the hub's object store, and removes them.
    Packager,
    /// A program that answers the planner's questions of checks and of hooks, and can do nothing else.
    Checker,
    /// A person or program that uses the query service and the views.
    Viewer,
    /// A person or program that approves and rejects operations and waves, with the rights of a viewer beside that.
    Approver,
    /// A program that reads LEDGER or the views itself.
    Subscriber,
    /// A person who runs the fleet, with the rights that the `muster` command needs.
    Operator,
}

impl Role {
    /// All of them, the device first.
    pub const ALL: [Self; 17] = [
        Self::Device,
        Self::Publisher,
        Self::Ingest,
        Self::Rollup,
        Self::Renewer,
        Self::Keeper,
        Self::Maintainer,
        Self::Margo,
        Self::Planner,
        Self::Scheduler,
        Self::Gateway,
        Self::Packager,
        Self::Checker,
        Self::Viewer,
        Self::Approver,
        Self::Subscriber,
        Self::Operator,
    ];

    /// Its name in files, tags and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Publisher => "publisher",
            Self::Ingest => "ingest",
            Self::Rollup => "rollup",
            Self::Renewer => "renewer",
            Self::Keeper => "keeper",
            Self::Maintainer => "maintainer",
            Self::Margo => "margo",
            Self::Planner => "planner",
            Self::Scheduler => "scheduler",
            Self::Gateway => "gateway",
            Self::Packager => "packager",
            Self::Checker => "checker",
            Self::Viewer => "viewer",
            Self::Approver => "approver",
            Self::Subscriber => "subscriber",
            Self::Operator => "operator",
        }
    }

    /// The account that its users belong to.
    pub const fn account(self) -> Account {
        match self {
            // A gateway acts for devices, and reaches nothing of HUB that devices do not.
            Self::Device | Self::Margo => Account::Devices,
            Self::Publisher
            | Self::Ingest
            | Self::Rollup
            | Self::Renewer
            | Self::Scheduler
            | Self::Maintainer => Account::Hub,
            Self::Keeper => Account::Readers,
            Self::Checker => Account::Checkers,
            Self::Planner
            | Self::Gateway
            | Self::Packager
            | Self::Viewer
            | Self::Approver
            | Self::Subscriber
            | Self::Operator => Account::People,
        }
    }

    /// Whether `muster auth init` makes credentials of the role together with the keys: those of a device and of a gateway for
    /// devices name sites, and those of a maintainer end after an hour.
    pub const fn is_everyday(self) -> bool {
        !matches!(self, Self::Device | Self::Margo | Self::Maintainer)
    }

    /// Whether people have the role, and may log in to a gateway with it.
    pub const fn is_of_people(self) -> bool {
        matches!(self, Self::Viewer | Self::Approver | Self::Subscriber | Self::Operator)
    }

    /// Whether its token names the signing keys of the roles of people, by which it derives the role of a person.
    pub(crate) const fn knows_signers(self) -> bool {
        matches!(self.account(), Account::Hub) || matches!(self, Self::Gateway)
    }

    /// Limit of open connections with one key of the role. The replicas of a service share a key.
    pub const fn connections_max(self) -> usize {
        match (self, self.account()) {
            // Any number of gateways share a key.
            (Self::Margo | Self::Gateway, _) | (_, Account::Hub | Account::Readers) => {
                CONNECTIONS_PER_SERVICE_KEY_MAX
            }
            (_, Account::Devices | Account::People | Account::Checkers) => CONNECTIONS_PER_KEY_MAX,
        }
    }

    /// The role of a name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

/// The prefix of the reply subjects of a user with a role.
pub fn inbox(public_key: &str) -> String {
    format!("_INBOX.{public_key}")
}

/// Whether a subject is in the inbox of a user with a role. The server lets only the holder of that key subscribe there.
pub fn is_inbox_of_user(subject: &str) -> bool {
    let parts = subject.strip_prefix("_INBOX.").and_then(|rest| rest.split_once('.'));
    parts.is_some_and(|(key, rest)| {
        let is_user = |pair: KeyPair| matches!(pair.key_pair_type(), KeyPairType::User);
        !rest.is_empty() && KeyPair::from_public_key(key).is_ok_and(is_user)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::exchange::{Crossing, OFFERS};
    use crate::rights::Rights;

    #[test]
    fn a_device_has_exactly_the_rights_of_the_contract() {
        let rights = Rights::of_device(&"plant7/press-4".parse().unwrap());
        let publish = [
            "$JS.API.DIRECT.GET.DOWNLINK.muster.credential.plant7.press-4",
            "$JS.API.DIRECT.GET.DOWNLINK.muster.desired.plant7.press-4",
            "$JS.API.DIRECT.GET.DOWNLINK.muster.receipt.plant7.press-4",
            "$JS.API.DIRECT.GET.OBJ_packages",
            "muster.presence.plant7.press-4",
            "muster.report.plant7.press-4",
        ];
        assert_eq!(rights.publish, publish);
        assert_eq!(rights.subscribe, ["_INBOX_plant7_press-4.>", "muster.live.*.plant7.press-4"]);
    }

    #[test]
    fn no_role_has_a_right_to_everything() {
        for role in Role::ALL {
            let Rights { publish, subscribe } = role.rights();
            for subject in publish.iter().chain(&subscribe) {
                for all in [">", "*", "$JS.>", "$JS.API.>", "$JS.ACK.>", "$SYS.>", "$KV.>", "muster.>"] {
                    assert_ne!(subject, all, "{role:?}");
                }
            }
            assert!(
                !subscribe.iter().any(|subject| subject == "_INBOX.>" || subject == "_R_.>"),
                "{role:?} reads the answers to others"
            );
        }
    }

    /// Elsewhere a requester would choose where the answer is published. In CHECKERS every question comes from another account,
    /// so its reply subject is the server's.
    #[test]
    fn only_a_checker_answers_by_permission_of_the_question_and_once() {
        let answers = |role: &Role| role.template().get("resp").is_some();
        assert_eq!(Role::ALL.into_iter().filter(answers).collect::<Vec<_>>(), [Role::Checker]);
        assert_eq!(Role::Checker.template()["resp"], json!({ "max": 1, "ttl": 10_000_000_000_u64 }));
        let of_checkers = |role: &Role| role.account() == Account::Checkers;
        assert_eq!(Role::ALL.into_iter().filter(of_checkers).collect::<Vec<_>>(), [Role::Checker]);
        assert!(
            OFFERS.iter().all(|offer| offer.to != Account::Checkers),
            "a foreign message reaches checkers"
        );
    }

    #[test]
    fn a_role_without_a_subject_to_publish_to_is_denied_every_subject() {
        for role in Role::ALL {
            let (rights, template) = (role.rights(), role.template());
            assert_eq!(template["pub"].get("deny").is_some(), rights.publish.is_empty(), "{role:?}");
            assert!(!rights.subscribe.is_empty(), "{role:?} may subscribe to everything");
        }
        assert_eq!(Role::Checker.template()["pub"], json!({ "allow": [], "deny": [">"] }));
    }

    #[test]
    fn neither_device_nor_viewer_creates_consumers_or_streams() {
        for role in [Role::Device, Role::Viewer] {
            let rights = role.rights();
            let creates = |subject: &&String| subject.contains(".CREATE") || subject.contains("STREAM");
            assert_eq!(rights.publish.iter().find(creates), None, "{role:?}");
        }
    }

    #[test]
    fn only_the_keeper_deletes_streams_and_only_of_readers() {
        let deletes = |role: &Role| role.rights().publish.iter().any(|right| right.contains("STREAM.DELETE"));
        assert_eq!(Role::ALL.into_iter().filter(deletes).collect::<Vec<_>>(), [Role::Keeper]);
        assert_eq!(Role::Keeper.account(), Account::Readers);
    }

    #[test]
    fn people_may_use_only_what_their_account_imports() {
        for role in Role::ALL.into_iter().filter(|role| role.account() == Account::People) {
            for right in role.rights().publish {
                let covers = |offer: &&str| covers(offer, &right);
                let imported = OFFERS.iter().filter(|offer| offer.to == Account::People);
                let services = imported.filter(|offer| offer.crossing != Crossing::Messages);
                let found = services.map(|offer| offer.subject).find(covers);
                assert!(found.is_some() || right == "$JS.FC.>", "{role:?}: {right} leads nowhere");
            }
        }
    }

    /// Whether every subject of a pattern is one of another pattern's.
    fn covers(pattern: &str, subject: &str) -> bool {
        let mut subject = subject.split('.');
        for token in pattern.split('.') {
            match (token, subject.next()) {
                (">", Some(_)) => return true,
                ("*", Some(given)) if given != ">" => {}
                (token, Some(given)) if token == given => {}
                _ => return false,
            }
        }
        subject.next().is_none()
    }

    #[test]
    fn only_its_role_writes_each_kind_of_document() {
        for (subject, writers) in [
            ("muster.desired.*.*", &[Role::Publisher][..]),
            // A token needs no protected subject: its device accepts only tokens of its signer.
            ("muster.credential.*.*", &[Role::Renewer, Role::Operator]),
            ("muster.rollout.*", &[Role::Publisher]),
            ("muster.receipt.*.*", &[Role::Ingest]),
            ("muster.status.*.*.*", &[Role::Ingest]),
            ("muster.device.*.*", &[Role::Ingest]),
            ("muster.liveness.*.*", &[Role::Ingest]),
            ("muster.deadline.*.*.*", &[Role::Ingest]),
            ("muster.incident.*.*", &[Role::Ingest]),
            ("muster.quarantine.*.*", &[Role::Ingest]),
            ("muster.verdict.*.*", &[Role::Ingest]),
            ("muster.rejected.*.*", &[Role::Ingest]),
            ("$JS.API.DIRECT.GET.QUARANTINE", &[Role::Ingest]),
            ("$JS.API.STREAM.MSG.DELETE.QUARANTINE", &[Role::Ingest]),
            ("muster.owner.*.*", &[Role::Ingest]),
            ("muster.hub.*", &[Role::Ingest]),
            ("muster.hearing.*", &[Role::Rollup]),
            // An operator may ask the publisher for anything, and so may a gateway on behalf of one.
            ("muster.publisher.release", &[Role::Planner]),
            // An approver may decide to approve: the publisher refuses it other decisions.
            ("muster.publisher.decide", &[Role::Planner, Role::Approver]),
            ("muster.publisher.apply", &[Role::Planner]),
            ("muster.publisher.remove", &[Role::Planner]),
            ("muster.check.>", &[Role::Planner]),
            ("muster.plan.*", &[Role::Scheduler]),
            ("muster.instance.*.*", &[Role::Scheduler]),
            ("muster.inventory.>", &[Role::Scheduler]),
            ("muster.planner.operation-approve", &[Role::Approver]),
            ("muster.planner.operation-reject", &[Role::Approver]),
            ("muster.planner.plan-approve", &[Role::Approver]),
            // The planner refuses a gateway that asks for nobody.
            ("muster.planner.*", &[Role::Gateway, Role::Operator]),
            ("muster.publisher.*", &[Role::Gateway, Role::Operator]),
            ("muster.view.*", &[Role::Gateway, Role::Operator]),
            ("$KV.http_devices.{site}.*", &[Role::Margo]),
            ("$KV.http_devices.*", &[Role::Operator]),
            ("$O.packages.C.*", &[Role::Packager]),
            ("$O.packages.M.*", &[Role::Packager]),
            ("$KV.views.>", &[Role::Rollup]),
            ("muster.notice.*", &[Role::Rollup]),
            ("muster.subscription.*", &[Role::Rollup]),
            ("$JS.API.STREAM.PURGE.UPLINK", &[Role::Ingest]),
        ] {
            let may = |role: &Role| role.rights().publish.iter().any(|right| right == subject);
            assert_eq!(Role::ALL.into_iter().filter(may).collect::<Vec<_>>(), writers, "{subject}");
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for role in Role::ALL {
            assert_eq!(Role::of(role.as_str()), Some(role));
        }
        assert_eq!(Role::of("root"), None);
    }
}
