//! The operations of plans that `muster watch approvals` has told, and the events and notes that follow from the next answer of the
//! planner. A planner that does not answer, or a hub without one, ends no watch.

use std::collections::BTreeMap;

use muster_client::operations::{
    PendingApproval, PendingOperation, PendingOperations, PendingOperationsReader, rest_sentence,
    unknown_sentence,
};
use muster_contract::plans::OperationState;
use muster_contract::{OperationId, Timestamp};
use muster_service::error::chain;

use super::{ApprovalEvent, ApprovalEventKind};
use crate::ask::{AskError, Hub};

/// The operations that wait, as they were told.
#[derive(Debug, Default)]
pub(super) struct ToldOperations {
    reader: PendingOperationsReader,
    /// In the order of the planner's list.
    waiting: Vec<PendingOperation>,
    has_answered: bool,
    /// The sentence about operations that are not followed.
    gap: Option<String>,
}

/// The events and notes of an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OperationNews {
    pub(super) events: Vec<ApprovalEvent>,
    /// Sentences for people.
    pub(super) notes: Vec<String>,
}

impl ToldOperations {
    /// Asks the planner once.
    ///
    /// # Errors
    /// No planner answers.
    pub(super) async fn read(&mut self, hub: &Hub) -> Result<PendingOperations, AskError> {
        self.reader.read(hub, self.waiting.iter()).await
    }

    /// The operations that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = PendingApproval> {
        self.waiting.iter().cloned().map(PendingApproval::Operation)
    }

    /// The sentence about operations that are not followed.
    pub(super) fn gap(&self) -> Option<&str> {
        self.gap.as_deref()
    }

    /// Applies an answer, or the lack of one. Each gap is noted once.
    pub(super) fn apply(
        &mut self,
        answer: Result<PendingOperations, AskError>,
        at: Timestamp,
    ) -> OperationNews {
        let mut news = OperationNews::default();
        let is_answered = answer.is_ok();
        let gap = match answer {
            Ok(found) => {
                let has_more = found.has_more;
                news.events = self.events(found, at);
                has_more.then(rest_sentence)
            }
            Err(error) => Some(format!("{}: {}", unknown_sentence(&error), chain(&error))),
        };
        let had_gap = self.gap.is_some();
        if gap != self.gap {
            let followed = || "all operations of plans are followed".to_owned();
            news.notes.push(gap.clone().unwrap_or_else(followed));
        }
        let is_first = is_answered && !self.has_answered;
        self.has_answered |= is_answered;
        if is_first && self.waiting.is_empty() && !had_gap {
            news.notes.push("no operation of a plan waits for an approval; waiting for one".to_owned());
        }
        self.gap = gap;
        news
    }

    fn events(&mut self, found: PendingOperations, at: Timestamp) -> Vec<ApprovalEvent> {
        let PendingOperations { mut waiting, has_more, others } = found;
        let told: BTreeMap<OperationId, PendingOperation> =
            self.waiting.drain(..).map(|one| (one.operation.clone(), one)).collect();
        let event = |event, request, state| ApprovalEvent {
            event,
            request: PendingApproval::Operation(request),
            state,
            at,
        };
        let is_new = |one: &&PendingOperation| told.get(&one.operation) != Some(one);
        let begun: Vec<_> = waiting
            .iter()
            .filter(is_new)
            .map(|one| event(ApprovalEventKind::Waiting, one.clone(), None))
            .collect();
        let mut events = Vec::new();
        for (id, request) in told {
            match others.get(&id) {
                None => {}
                // It waits beyond the bound, or the planner has listed it too early.
                Some(Some(outcome)) if outcome.state == OperationState::PendingApproval => {
                    waiting.extend((!has_more).then_some(request));
                }
                Some(outcome) => {
                    let is_approved = outcome.is_some_and(|outcome| outcome.is_approved);
                    let kind =
                        if is_approved { ApprovalEventKind::Approved } else { ApprovalEventKind::Ended };
                    events.push(event(kind, request, outcome.map(|outcome| outcome.state)));
                }
            }
        }
        self.waiting = waiting;
        events.extend(begun);
        events
    }
}

#[cfg(test)]
mod tests {
    use muster_client::operations::OperationOutcome;
    use muster_contract::plans::OperationType;

    use super::*;

    fn operation(id: u8) -> PendingOperation {
        let id = format!("create-0d6e4f2a-91c3-8b57-a6d4-3f2c1b0a9e{id:02}");
        PendingOperation {
            plan: "web".parse().unwrap(),
            instance: "web-0d6e4f2a91c38b57a6d43f2c1b0a9e8d".parse().unwrap(),
            display_name: "Web-DW5PKpHDi1em1D8sGwqejQ".to_owned(),
            operation_type: OperationType::Create,
            node: None,
            from_node: None,
            since: Some(Timestamp::UNIX_EPOCH),
            expires_at: None,
            message: String::new(),
            command: format!("muster operation approve {id}"),
            operation: id.parse().unwrap(),
        }
    }

    fn found(waiting: &[u8], others: &[(u8, Option<OperationState>)], has_more: bool) -> PendingOperations {
        let outcome = |state: OperationState| OperationOutcome {
            state,
            is_approved: matches!(state, OperationState::Approved | OperationState::Running),
        };
        PendingOperations {
            waiting: waiting.iter().map(|id| operation(*id)).collect(),
            has_more,
            others: others.iter().map(|(id, state)| (operation(*id).operation, state.map(outcome))).collect(),
        }
    }

    #[test]
    fn an_operation_is_told_once_and_how_it_ends() {
        use ApprovalEventKind::{Approved, Ended, Waiting};
        use OperationState::{PendingApproval as Pending, Rejected, Running};
        let mut told = ToldOperations::default();
        let mut events = |answer| {
            let events = told.apply(Ok(answer), Timestamp::UNIX_EPOCH).events;
            events.into_iter().map(|event| (event.event, event.state)).collect::<Vec<_>>()
        };
        for (answer, expected) in [
            (found(&[1, 2], &[], false), vec![(Waiting, None), (Waiting, None)]),
            (found(&[1, 2], &[], false), vec![]),
            (found(&[2], &[(1, Some(Running))], false), vec![(Approved, Some(Running))]),
            (found(&[3], &[(2, Some(Rejected))], false), vec![(Ended, Some(Rejected)), (Waiting, None)]),
            (found(&[], &[(3, None)], false), vec![(Ended, None)]),
            (found(&[4, 5], &[], false), vec![(Waiting, None), (Waiting, None)]),
            (found(&[5], &[(4, Some(Pending))], true), vec![]),
            (found(&[5], &[], true), vec![]),
        ] {
            assert_eq!(events(answer), expected);
        }
    }

    #[test]
    fn a_gap_is_noted_once_and_ends_no_operation() {
        let mut told = ToldOperations::default();
        let silent = || {
            let subject = "muster.planner.operation-list".to_owned();
            Err(AskError::NoService { service: "muster-planner", subject })
        };
        let mut notes = |answer| {
            let news = told.apply(answer, Timestamp::UNIX_EPOCH);
            (news.notes.join("; "), news.events.len())
        };
        let (noted, _) = notes(silent());
        assert!(noted.contains("a hub without one has no plans"), "{noted}");
        assert_eq!(notes(silent()), (String::new(), 0));
        assert_eq!(
            notes(Ok(found(&[1], &[], false))),
            ("all operations of plans are followed".to_owned(), 1)
        );
        assert!(!notes(silent()).0.is_empty());
        assert_eq!(notes(Ok(found(&[1], &[], false))).1, 0, "a break repeats no event");
        let (noted, _) = notes(Ok(found(&[1], &[], true)));
        assert!(noted.contains("more than 1000 operations wait"), "{noted}");
    }
}
