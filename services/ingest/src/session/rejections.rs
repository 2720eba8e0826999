//! Sends rejected reports to QUARANTINE, a few at a time, and applies its answers. Facts never wait for them.

use muster_contract::Timestamp;
use muster_domain::intake::{IntakeState, NotStored};

use super::SessionCore;
use super::io::{Effect, OrderRule, ReportDelivery};
use crate::limits::REJECTIONS_IN_FLIGHT;

impl<D: ReportDelivery> SessionCore<D> {
    /// The effect that stores the next rejected report.
    pub(super) fn store_rejected(&mut self, intake: &mut IntakeState, now: Timestamp) -> Option<Effect<D>> {
        if self.rejections >= REJECTIONS_IN_FLIGHT {
            return None;
        }
        let rejection = intake.next_rejection()?;
        self.rejections += 1;
        if !self.holds(OrderRule::StoredBeforeAccounted) {
            intake.apply_store_answer(rejection.ticket, Ok(()), now);
        }
        Some(Effect::StoreRejected(rejection))
    }

    pub(super) fn rejection_answered(
        &mut self,
        intake: &mut IntakeState,
        ticket: u64,
        answer: Result<(), NotStored>,
        now: Timestamp,
    ) {
        self.rejections = self.rejections.saturating_sub(1);
        let outcomes = intake.apply_store_answer(ticket, answer, now);
        outcomes.into_iter().for_each(|outcome| self.metrics.report(outcome));
    }
}
