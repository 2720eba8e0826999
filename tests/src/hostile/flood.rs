//! The floods: what each one is called and whose credentials it uses. How they attack is [`super::device_floods`]'s,
//! [`super::reader_floods`]' and [`super::reader_tricks`]'.

use muster_identity::Role;

/// One way to attack the hub. The numbers are stable: `--only 5,12` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flood {
    /// Reports of ever new deployments.
    NewDeployments,
    /// Valid reports of nearly the largest size.
    LargestReports,
    /// Reports with `Nats-Msg-Id` values of 60 KB.
    LongMessageIds,
    /// Thousands of connections on one credential.
    Connections,
    /// Small reports of one deployment, as fast as the server takes them.
    Reports,
    /// Each report begins a new epoch.
    RisingEpochs,
    /// Odd report numbers alone, now and then with a head far away.
    MissingNumbers,
    /// Payloads that are no report.
    Garbage,
    /// Heartbeats whose backlog appears and drains every time.
    Heartbeats,
    /// Thousands of durable consumers on LEDGER; ingest restarts afterwards.
    DurableConsumers,
    /// Notice subscriptions until none is left; an operator watches afterwards.
    NoticeSubscriptions,
    /// Consumers with eight filters on LEDGER, read all the time.
    FilteredConsumers,
    /// Questions about the past with 1,000 outstanding.
    PastQuestions,
    /// Questions about the present with 1,000 outstanding.
    Questions,
    /// Push consumers that deliver to subjects of others.
    PushConsumers,
    /// Requests whose reply subject is an API or a stream of the hub.
    ReplySubjects,
    /// Heartbeats with `Nats-Msg-Id` values of 60 KB.
    LongHeartbeatIds,
}

impl Flood {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 17] = [
        Self::NewDeployments,
        Self::LargestReports,
        Self::LongMessageIds,
        Self::Connections,
        Self::Reports,
        Self::RisingEpochs,
        Self::MissingNumbers,
        Self::Garbage,
        Self::Heartbeats,
        Self::DurableConsumers,
        Self::NoticeSubscriptions,
        Self::FilteredConsumers,
        Self::PastQuestions,
        Self::Questions,
        Self::PushConsumers,
        Self::ReplySubjects,
        Self::LongHeartbeatIds,
    ];

    /// Its number, from 1.
    pub fn number(self) -> usize {
        Self::ALL.iter().position(|flood| *flood == self).map_or(0, |at| at + 1)
    }

    /// The flood of a number.
    pub fn of(number: usize) -> Option<Self> {
        Self::ALL.get(number.checked_sub(1)?).copied()
    }

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NewDeployments => "ever new deployments",
            Self::LargestReports => "72 KB reports",
            Self::LongMessageIds => "60 KB message ids",
            Self::Connections => "connections",
            Self::Reports => "small reports",
            Self::RisingEpochs => "ever rising epochs",
            Self::MissingNumbers => "odd numbers, far heads",
            Self::Garbage => "garbage",
            Self::Heartbeats => "heartbeats",
            Self::DurableConsumers => "durable consumers",
            Self::NoticeSubscriptions => "notice subscriptions",
            Self::FilteredConsumers => "eight-filter consumers",
            Self::PastQuestions => "questions about the past",
            Self::Questions => "questions",
            Self::PushConsumers => "foreign deliver subjects",
            Self::ReplySubjects => "foreign reply subjects",
            Self::LongHeartbeatIds => "heartbeats with 60 KB ids",
        }
    }

    /// True where each request of the flood reads much of LEDGER.
    pub const fn reads_ledger(self) -> bool {
        matches!(self, Self::FilteredConsumers | Self::PastQuestions)
    }

    /// Whose credentials it uses.
    pub const fn role(self) -> Role {
        match self {
            Self::DurableConsumers | Self::FilteredConsumers | Self::PushConsumers => Role::Subscriber,
            Self::NoticeSubscriptions | Self::PastQuestions | Self::Questions | Self::ReplySubjects => {
                Role::Viewer
            }
            _ => Role::Device,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flood_has_a_number_that_names_it() {
        for (at, flood) in Flood::ALL.into_iter().enumerate() {
            assert_eq!((flood.number(), Flood::of(at + 1)), (at + 1, Some(flood)));
        }
        assert_eq!((Flood::of(0), Flood::of(Flood::ALL.len() + 1)), (None, None));
    }
}
