//! The session of the request that a task answers. Pages show its person and offer what its role may do.

use super::session::Session;

tokio::task_local! {
    static SESSION: Session;
}

/// The session of the request that is being answered; `None` without a login.
pub(crate) fn session() -> Option<Session> {
    SESSION.try_with(Clone::clone).ok()
}

/// Whether a page offers changes: to operators, and to everybody where nobody logs in.
pub(crate) fn offers_changes() -> bool {
    session().is_none_or(|session| session.may_change())
}

/// Whether a page offers to approve and to reject: to approvers and operators, and to everybody where nobody logs in.
pub(crate) fn offers_approvals() -> bool {
    session().is_none_or(|session| session.may_approve())
}

/// Answers a request with its session.
pub(super) async fn scope<F: Future>(session: Session, answer: F) -> F::Output {
    SESSION.scope(session, answer).await
}
