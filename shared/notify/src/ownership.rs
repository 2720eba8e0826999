//! Decides who owns a subscription and how many one requester may have. It is pure.
//!
//! A name belongs to the user who created its subscription, as long as the subscription lasts. A subscription
//! without a proven requester has no owner: anyone may change it, as on an open server.

use std::collections::BTreeMap;

use muster_bus::{Requester, RequesterBounds};
use muster_contract::SubscriptionName;
use muster_contract::notify::{
    LEASE_OTHERS_MAX_SECONDS, SUBSCRIPTIONS_MAX, SUBSCRIPTIONS_OF_USER_IF_SCARCE, SUBSCRIPTIONS_OF_USER_MAX,
    SUBSCRIPTIONS_OPERATOR_RESERVE, SUBSCRIPTIONS_SCARCE_FROM, Subscription, SubscriptionOwner,
};
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::question::bad;
use muster_service::fair::{Exceeded, Share};

/// Subscriptions: in all, of one user, and for operators alone.
const BOUNDS: RequesterBounds =
    RequesterBounds::new(SUBSCRIPTIONS_MAX, SUBSCRIPTIONS_OF_USER_MAX, SUBSCRIPTIONS_OPERATOR_RESERVE);

// Three operators have their whole share of the reserve.
const _: () = assert!(3 * SUBSCRIPTIONS_OF_USER_MAX <= SUBSCRIPTIONS_OPERATOR_RESERVE);
// Once subscriptions are scarce, fifty more users have some.
const _: () = assert!(
    SUBSCRIPTIONS_SCARCE_FROM + 50 * SUBSCRIPTIONS_OF_USER_IF_SCARCE
        <= SUBSCRIPTIONS_MAX - SUBSCRIPTIONS_OPERATOR_RESERVE
);

/// A requester's action on a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Make it again, or confirm a notice of it.
    Change,
    /// See it in the list.
    List,
    /// End it.
    End,
}

/// The owner of a requester's subscription; none where the requester is not proven.
pub(crate) fn owner_of(requester: &Requester) -> Option<SubscriptionOwner> {
    match requester {
        Requester::User { key, name, .. } => Some(SubscriptionOwner { key: key.clone(), name: name.clone() }),
        Requester::Represented { person, .. } => {
            Some(SubscriptionOwner { key: person.key.clone(), name: person.name.clone().unwrap_or_default() })
        }
        Requester::Unverified => None,
    }
}

/// Whether a requester may do this to a subscription of that owner.
pub(crate) fn is_allowed(requester: &Requester, owner: Option<&SubscriptionOwner>, action: Action) -> bool {
    let Some(owner) = owner else { return true };
    requester.key() == Some(owner.key.as_str()) || requester.is_operator() && action != Action::Change
}

/// The requested lease, if it is within the limit.
pub(crate) fn check_lease(requester: &Requester, wanted: &Subscription) -> Result<(), ErrorBody> {
    let is_bounded = requester.key().is_some() && !requester.is_operator();
    if is_bounded && wanted.lease_seconds > LEASE_OTHERS_MAX_SECONDS {
        let message = format!(
            "leaseSeconds: {} is more than {LEASE_OTHERS_MAX_SECONDS}, which is the most for a user who is no operator; subscribe again before it is over",
            wanted.lease_seconds
        );
        return Err(bad(message));
    }
    Ok(())
}

/// The limits of a requester while there are `total` subscriptions: its own, and that of all. The last subscriptions for
/// users who are no operators go to those who have few.
pub(crate) fn share(requester: &Requester, total: usize) -> Share {
    let share = BOUNDS.share(requester);
    let is_bounded = requester.key().is_some() && !requester.is_operator();
    if is_bounded && total >= SUBSCRIPTIONS_SCARCE_FROM {
        return Share { of_key: SUBSCRIPTIONS_OF_USER_IF_SCARCE, ..share };
    }
    share
}

/// The refusal of one more.
pub(crate) fn too_many(exceeded: Exceeded) -> ErrorBody {
    let message = match exceeded {
        Exceeded::Key(bound) if bound < SUBSCRIPTIONS_OF_USER_MAX => format!(
            "few subscriptions are left, and those are for users with fewer than {bound}; end one of your own, or ask an operator to end some"
        ),
        Exceeded::Key(bound) => format!(
            "you have {bound} subscriptions, and one user may have no more; end one of them (`muster subscription list` names them)"
        ),
        Exceeded::All(bound) if bound < SUBSCRIPTIONS_MAX => format!(
            "there are {bound} subscriptions, and the remaining ones are reserved for operators; end one of your own, or ask an operator to end some"
        ),
        Exceeded::All(bound) => {
            format!(
                "there are {bound} subscriptions, and no more may be; `muster subscription list` names them, and an operator may end any"
            )
        }
    };
    ErrorBody { code: ErrorCode::Conflict, message }
}

/// The refusal for another user's subscription.
pub(crate) fn not_yours(name: &SubscriptionName) -> ErrorBody {
    let message = format!("subscription '{name}' belongs to another user: take another name");
    ErrorBody { code: ErrorCode::Conflict, message }
}

/// Subscriptions that are on their way into the stream: they count before they have come back from it.
#[derive(Debug, Default)]
pub(crate) struct Reserved(BTreeMap<SubscriptionName, Option<SubscriptionOwner>>);

impl Reserved {
    /// Reserves a name.
    pub(crate) fn insert(&mut self, name: SubscriptionName, owner: Option<SubscriptionOwner>) {
        self.0.insert(name, owner);
    }

    /// Releases a name: its subscription was read from the stream, or was never stored.
    pub(crate) fn remove(&mut self, name: &SubscriptionName) {
        self.0.remove(name);
    }

    /// Reserved names and their owners.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&SubscriptionName, Option<&SubscriptionOwner>)> {
        self.0.iter().map(|(name, owner)| (name, owner.as_ref()))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use muster_bus::Role;

    use super::*;

    pub(crate) fn user(key: &str, role: &str) -> Requester {
        Requester::User { key: key.to_owned(), name: format!("the {key}"), role: Role::of(role) }
    }

    #[test]
    fn a_name_is_its_owners_and_operators_may_list_and_end_it() {
        let (alice, bob, ops) = (user("A", "viewer"), user("B", "viewer"), user("O", "operator"));
        let of_alice = owner_of(&alice);
        // requester, owner, may change, list, end
        let table = [
            (&alice, &of_alice, [true, true, true]),
            (&bob, &of_alice, [false, false, false]),
            (&ops, &of_alice, [false, true, true]),
            (&Requester::Unverified, &of_alice, [false, false, false]),
            (&bob, &None, [true, true, true]),
            (&Requester::Unverified, &None, [true, true, true]),
        ];
        for (requester, owner, wanted) in table {
            let actions = [Action::Change, Action::List, Action::End];
            let allowed = actions.map(|action| is_allowed(requester, owner.as_ref(), action));
            assert_eq!(allowed, wanted, "{requester:?} {owner:?}");
        }
        assert_eq!(owner_of(&Requester::Unverified), None);
        // The key is proven; anyone may use the name.
        let namesake = Requester::User { key: "B".into(), name: "the A".into(), role: Some(Role::Viewer) };
        assert!(!is_allowed(&namesake, of_alice.as_ref(), Action::End));
    }

    #[test]
    fn scarce_subscriptions_are_left_to_those_who_have_few() {
        let (alice, ops, few) = (user("A", "viewer"), user("O", "operator"), SUBSCRIPTIONS_OF_USER_IF_SCARCE);
        let of_key = |requester: &Requester, total| share(requester, total).of_key;
        assert_eq!(of_key(&alice, SUBSCRIPTIONS_SCARCE_FROM - 1), SUBSCRIPTIONS_OF_USER_MAX);
        assert_eq!(of_key(&alice, SUBSCRIPTIONS_SCARCE_FROM), few);
        assert_eq!(of_key(&ops, SUBSCRIPTIONS_SCARCE_FROM), SUBSCRIPTIONS_OF_USER_MAX);
        assert_eq!(of_key(&Requester::Unverified, SUBSCRIPTIONS_SCARCE_FROM), SUBSCRIPTIONS_MAX);
        let refused = share(&alice, SUBSCRIPTIONS_SCARCE_FROM).check(few, SUBSCRIPTIONS_SCARCE_FROM);
        let message = too_many(refused.unwrap_err()).message;
        assert!(message.contains("users with fewer than 4;"), "{message}");
    }

    #[test]
    fn leases_of_others_than_operators_have_a_bound_of_their_own() {
        let long = Subscription {
            lease_seconds: LEASE_OTHERS_MAX_SECONDS + 1,
            ..Subscription::named("a".parse().unwrap())
        };
        let refused = check_lease(&user("A", "viewer"), &long).unwrap_err();
        assert!(refused.code == ErrorCode::BadRequest && refused.message.contains("604800"), "{refused:?}");
        for requester in [user("O", "operator"), Requester::Unverified] {
            assert!(check_lease(&requester, &long).is_ok());
        }
        let allowed = Subscription { lease_seconds: LEASE_OTHERS_MAX_SECONDS, ..long };
        assert!(check_lease(&user("A", "viewer"), &allowed).is_ok());
    }
}
