//! Facts on their way to LEDGER, and the reports that wait for them: sent, confirmed, acknowledged, in this order.

use std::collections::VecDeque;

use muster_bus::{Delivery, Outgoing, PublishError, Trace};
use muster_contract::report::Report;
use muster_contract::subjects::{Origin, origin};
use muster_contract::{LabelError, Timestamp};
use muster_domain::border::Arrival;
use muster_service::error::chain;

use super::Partition;
use crate::intake::BATCH;
use crate::letter;
use crate::outlet::{FACTS_IN_FLIGHT, Outlet};
use crate::ownership::Claim;

/// Reports settled before the next acknowledgement, unless nothing else is under way.
const ACK_EVERY: usize = 64;

const _: () = assert!(ACK_EVERY < FACTS_IN_FLIGHT && FACTS_IN_FLIGHT <= BATCH);

/// Facts and the reports behind them.
#[derive(Debug)]
pub(super) struct Facts {
    outlet: Outlet,
    /// To be sent.
    letters: Vec<(Outgoing, &'static str)>,
    /// Reports taken in and not settled, oldest first.
    taken: VecDeque<Delivery>,
    /// The newest settled one whose acknowledgement is still to be sent, and how many it covers.
    settled: Option<(Delivery, usize)>,
}

/// What LEDGER says of the oldest fact under way.
pub(super) type Answer = Result<&'static str, PublishError>;

impl Facts {
    pub(super) fn new(own: &Partition, claim: Claim) -> Self {
        Self {
            outlet: Outlet::new(&own.around.bus, claim, own.around.high_water.clone()),
            letters: Vec::with_capacity(BATCH),
            taken: VecDeque::with_capacity(BATCH),
            settled: None,
        }
    }

    /// True when none is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.outlet.is_empty()
    }

    /// The next answer; `None` when none is under way. Cancel-safe.
    pub(super) async fn answer(&mut self) -> Option<Answer> {
        self.outlet.confirmation().await
    }

    /// See [`Outlet::read_after`].
    pub(super) const fn read_after(&self) -> u64 {
        self.outlet.read_after()
    }

    /// See [`Outlet::confirmed_to`].
    pub(super) fn confirmed_to(&self) -> u64 {
        self.outlet.confirmed_to()
    }

    /// Writes the publications that are due.
    pub(super) fn write(&mut self, own: &mut Partition, trace: Trace) {
        while let Some(publication) = own.border.next_publication() {
            own.teller.tell(own.number, &publication, own.around.clock.now());
            let kind = publication.kind;
            self.letters.push((letter::fact(publication, trace, &mut own.chance), kind));
        }
    }

    /// A report has been taken in. Its publications carry its trace.
    pub(super) fn taken(&mut self, own: &mut Partition, delivery: Delivery) {
        let trace = Trace::carried(&delivery.headers).unwrap_or_else(|| Trace::begin(&mut own.chance));
        self.write(own, trace);
        self.taken.push_back(delivery);
    }

    /// Sends what is written, takes what is confirmed, acknowledges what is settled.
    pub(super) async fn pass_on(&mut self, own: &mut Partition) -> Result<(), PublishError> {
        // What LEDGER refuses for good leads to further letters.
        loop {
            self.outlet.begin_run(self.letters.len()).await;
            for (letter, kind) in self.letters.drain(..) {
                self.outlet.send(letter, kind).await;
            }
            self.outlet.end_run().await;
            while let Some(answer) = self.outlet.try_confirmation() {
                self.confirm(own, answer)?;
            }
            if self.letters.is_empty() {
                break;
            }
        }
        own.metrics.unconfirmed.set(i64::try_from(self.outlet.len()).unwrap_or(i64::MAX));
        self.acknowledge(own).await;
        Ok(())
    }

    pub(super) fn confirm(&mut self, own: &mut Partition, answer: Answer) -> Result<(), PublishError> {
        let kind = match answer {
            Ok(kind) => kind,
            Err(error) if error.is_of_the_message() => return self.set_aside(own, error),
            Err(error) => return Err(error),
        };
        own.border.confirm();
        own.metrics.all.fact(kind, 1);
        own.retry.reset();
        Ok(())
    }

    /// LEDGER will never take the oldest publication: something else is said in its place, and nobody waits.
    fn set_aside(&mut self, own: &mut Partition, error: PublishError) -> Result<(), PublishError> {
        own.metrics.all.unstorable.inc();
        tracing::error!(
            partition = own.number,
            error = chain(&error),
            "LEDGER refuses a fact for good; the report behind it goes to quarantine"
        );
        let now = own.around.clock.now();
        let cause = own.border.cause_of_oldest().and_then(|at| self.taken.get(at));
        let words = error.cause.to_string();
        own.border.unstorable(&words, cause.map(|delivery| arrival(delivery, now))).map_err(|_| error)?;
        let trace = Trace::begin(&mut own.chance);
        self.write(own, trace);
        Ok(())
    }

    /// Acknowledges the newest settled report, which covers all before it.
    pub(super) async fn acknowledge(&mut self, own: &mut Partition) {
        for _ in 0..own.border.settled() {
            let Some(delivery) = self.taken.pop_front() else { break };
            own.trim.settled(&delivery);
            own.room.settle(&delivery);
            let covered = self.settled.take().map_or(0, |(_, covered)| covered);
            self.settled = Some((delivery, covered + 1));
        }
        let idle = self.outlet.is_empty();
        if let Some((newest, _)) = self.settled.take_if(|(_, covered)| idle || *covered >= ACK_EVERY) {
            newest.ack_all().await;
            own.trim.acknowledged(&newest);
        }
    }
}

/// A report as the border takes it in.
pub(super) fn arrival(delivery: &Delivery, now: Timestamp) -> Arrival<'_> {
    Arrival {
        origin: origin(&delivery.subject).unwrap_or_else(|| strange(&delivery.subject)),
        parsed: Report::parse(&delivery.payload),
        payload: &delivery.payload,
        position: delivery.stream_seq,
        stored_at: delivery.stored_at,
        now,
    }
}

/// A subject that UPLINK cannot have by the contract: it names nobody.
fn strange(subject: &str) -> Origin {
    Origin {
        device: Err(LabelError { what: "subject of a report", text: subject.to_owned() }),
        subject: subject.to_owned(),
    }
}
