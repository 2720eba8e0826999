//! The newest answers of the services, each with the time of its question, and why they may be out of date. Pure.

use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::incident::HubIncident;
use muster_contract::lag::RollupLag;
use muster_contract::query::{DeploymentsAnswer, DevicesAnswer};
use muster_contract::view::{FleetView, SiteView};

use crate::names::ShownNames;
use crate::rollout::HeldChanges;

/// Age beyond which an answer is out of date although no question failed: several questions are overdue by then.
pub(crate) const OLD_AFTER: Duration = Duration::from_secs(10);

/// One answer to each question of the first screen, or the error.
#[derive(Debug)]
pub struct Round {
    /// Time of the questions: no answer is newer.
    pub at: Timestamp,
    /// The fleet.
    pub fleet: Result<FleetView, String>,
    /// All deployments.
    pub deployments: Result<DeploymentsAnswer, String>,
    /// Silent devices.
    pub silent: Result<DevicesAnswer, String>,
    /// Held changes and open rollouts.
    pub rollouts: Result<HeldChanges, String>,
    /// Incidents of the hub.
    pub incidents: Result<Vec<HubIncident>, String>,
    /// The query service's lag behind LEDGER.
    pub lag: Option<RollupLag>,
}

/// The newest answer to a question, and why there is no newer one.
#[derive(Debug)]
pub struct Part<T> {
    answer: Option<(T, Timestamp)>,
    error: Option<String>,
}

impl<T> Default for Part<T> {
    fn default() -> Self {
        Self::none()
    }
}

impl<T> Part<T> {
    /// Neither an answer nor an error yet.
    pub const fn none() -> Self {
        Self { answer: None, error: None }
    }

    /// The newest answer.
    pub const fn get(&self) -> Option<&T> {
        match &self.answer {
            Some((answer, _)) => Some(answer),
            None => None,
        }
    }

    /// Records an answer to a question of a time; an error leaves the older answer, which counts as old from then on.
    pub fn record(&mut self, answer: Result<T, String>, at: Timestamp) {
        match answer {
            Ok(answer) => *self = Self { answer: Some((answer, at)), error: None },
            Err(error) => self.error = Some(error),
        }
    }

    /// Why the answer is out of date, or missing.
    pub fn staleness(&self, now: Timestamp) -> Option<Staleness> {
        let since = self.answer.as_ref().map(|(_, at)| *at);
        match (&self.error, since) {
            (Some(error), since) => Some(Staleness { since, cause: error.clone() }),
            (None, Some(at)) if is_old(at, now) => {
                Some(Staleness { since, cause: "the hub has not answered since".to_owned() })
            }
            _ => None,
        }
    }
}

fn is_old(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at).unsigned_abs() > OLD_AFTER && now > at
}

/// Why numbers may be out of date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staleness {
    /// Time of their question; `None` if there are none.
    pub since: Option<Timestamp>,
    /// The cause.
    pub cause: String,
}

/// Everything that the first screen shows.
#[derive(Debug, Default)]
pub struct FleetScreen {
    /// The fleet.
    pub fleet: Part<FleetView>,
    /// All deployments.
    pub deployments: Part<DeploymentsAnswer>,
    /// Silent devices.
    pub silent: Part<DevicesAnswer>,
    /// Held changes and open rollouts.
    pub rollouts: Part<HeldChanges>,
    /// Incidents of the hub.
    pub incidents: Part<Vec<HubIncident>>,
    /// All sites.
    pub sites: Part<Vec<SiteView>>,
    /// The query service's lag behind LEDGER.
    pub lag: Option<RollupLag>,
    /// The connection was lost at this time.
    down_since: Option<Timestamp>,
}

impl FleetScreen {
    /// Records the answers of a round.
    pub fn apply(&mut self, round: Round) {
        let at = round.at;
        self.fleet.record(round.fleet, at);
        self.deployments.record(round.deployments, at);
        self.silent.record(round.silent, at);
        self.rollouts.record(round.rollouts, at);
        self.incidents.record(round.incidents, at);
        self.lag = round.lag;
    }

    /// The names of deployments whose ids are UUIDs.
    pub(crate) fn names(&self) -> ShownNames {
        self.deployments.get().map(ShownNames::unique).unwrap_or_default()
    }

    /// Records whether there is a connection.
    pub fn set_link(&mut self, is_up: bool, now: Timestamp) {
        if is_up {
            self.down_since = None;
        } else {
            _ = self.down_since.get_or_insert(now);
        }
    }

    /// Why the whole screen may be out of date.
    pub fn staleness(&self, now: Timestamp) -> Option<Staleness> {
        if self.down_since.is_some() {
            let cause = "the connection to NATS is lost; trying again".to_owned();
            return Some(Staleness { since: self.fleet.answer.as_ref().map(|(_, at)| *at), cause });
        }
        self.fleet.staleness(now).or_else(|| self.deployments.staleness(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn an_answer_is_stale_after_an_error_or_too_long_until_the_next_one() {
        let mut part = Part::default();
        assert_eq!(part.staleness(at(0)), None, "the answer may come");
        part.record(Err::<u8, _>("no muster-rollup answers".to_owned()), at(1));
        assert_eq!((part.get(), part.staleness(at(1)).unwrap().since), (None, None));
        part.record(Ok(7), at(2));
        assert_eq!((part.get(), part.staleness(at(12))), (Some(&7), None));
        assert_eq!(part.staleness(at(13)).unwrap().since, Some(at(2)));
        part.record(Err("no muster-rollup answers".to_owned()), at(3));
        let staleness = part.staleness(at(3)).unwrap();
        assert_eq!(
            (part.get(), staleness.since, &*staleness.cause),
            (Some(&7), Some(at(2)), "no muster-rollup answers")
        );
        part.record(Ok(8), at(4));
        assert_eq!(part.staleness(at(4)), None);
    }

    #[test]
    fn a_lost_connection_makes_the_screen_old_at_once() {
        let mut fleet_screen = FleetScreen::default();
        fleet_screen.set_link(false, at(5));
        assert!(fleet_screen.staleness(at(5)).unwrap().cause.contains("the connection to NATS is lost"));
        fleet_screen.set_link(true, at(6));
        assert_eq!(fleet_screen.staleness(at(6)), None);
    }
}
