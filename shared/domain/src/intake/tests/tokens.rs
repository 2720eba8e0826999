//! A device whose token ends soon: one incident for each end and one for the renewal, by ingest or the renewer, over any death of
//! ingest, and no more of them than LEDGER can bear.

use muster_contract::fact::Incident;
use muster_contract::limits::{REASSERT_AFTER, TOKEN_INCIDENT_INTERVAL};
use proptest::prelude::*;

use super::*;

const DAY: i64 = 24 * 60 * 60;
/// Times of two tokens of 30 days.
const FIRST: (i64, i64) = (0, 30 * DAY);
const SECOND: (i64, i64) = (29 * DAY, 59 * DAY);

impl Hub {
    /// A heartbeat of a device with a token of these times.
    pub(super) fn beat_with_token(&mut self, epoch: u64, token: Option<(i64, i64)>) {
        let token = token.map(
            |(issued, ends)| json!({ "issuedAt": at(issued).to_string(), "endsAt": at(ends).to_string() }),
        );
        let beat = json!({ "epoch": epoch, "head": 0, "generation": 0, "token": token });
        self.intake.apply_heartbeat(&press(), &serde_json::from_value(beat).unwrap(), self.now, self.now);
        self.arrive();
    }

    /// The same at another time.
    fn beat_at(&mut self, second: i64, token: Option<(i64, i64)>) {
        self.now = at(second);
        self.beat_with_token(1, token);
    }

    /// The renewer has ingest record an incident, which this intake does not see.
    fn renewer_reports(&mut self, what: IncidentKind) {
        let fact = Fact::Incident(Incident::new(self.now, what));
        self.ledger.push((LedgerSubject::Incident(Some(press())), fact, self.now));
    }

    /// The incidents as text: the day of the end.
    fn token_incidents(&self) -> Vec<String> {
        let text = |what: &IncidentKind| match what {
            IncidentKind::TokenEnding { ends_at, .. } => {
                Some(format!("ending {}", ends_at.as_second() / DAY))
            }
            IncidentKind::TokenRenewed { ends_at } => Some(format!("renewed {}", ends_at.as_second() / DAY)),
            _ => None,
        };
        self.incidents().into_iter().filter_map(text).collect()
    }
}

fn ending((issued, ends): (i64, i64)) -> IncidentKind {
    IncidentKind::TokenEnding { issued_at: at(issued), ends_at: at(ends) }
}

#[test]
fn an_end_within_a_tenth_and_the_renewal_are_one_incident_each() {
    let mut hub = Hub::new();
    hub.beat_at(27 * DAY - 1, Some(FIRST));
    assert_eq!(hub.token_incidents(), [""; 0]);
    for second in 0..3 {
        hub.beat_at(27 * DAY + second, Some(FIRST));
    }
    assert!(hub.incidents().contains(&&ending(FIRST)));
    hub.beat_at(27 * DAY + 3_600, None);
    hub.restart();
    for hour in 2..5 {
        hub.beat_at(27 * DAY + hour * 3_600, Some(FIRST));
    }
    for hour in 5..8 {
        hub.beat_at(27 * DAY + hour * 3_600, Some(SECOND));
    }
    assert_eq!(hub.token_incidents(), ["ending 30", "renewed 59"]);
    hub.beat_at(57 * DAY, Some(SECOND));
    assert_eq!(hub.token_incidents().last().unwrap(), "ending 59");
}

#[test]
fn an_end_that_the_renewer_reported_is_known_and_its_renewal_follows() {
    let mut hub = Hub::new();
    hub.now = at(28 * DAY);
    hub.renewer_reports(ending(FIRST));
    hub.restart();
    hub.beat_at(28 * DAY + 1, Some(FIRST));
    assert_eq!(hub.token_incidents(), ["ending 30"]);
    hub.beat_at(29 * DAY + 1, Some(SECOND));
    assert_eq!(hub.token_incidents(), ["ending 30", "renewed 59"]);
    hub.renewer_reports(IncidentKind::TokenRenewed { ends_at: at(SECOND.1) });
    hub.restart();
    hub.beat_at(29 * DAY + 2, Some(SECOND));
    assert_eq!(hub.token_incidents().len(), 3, "the renewer's own");
}

#[test]
fn a_renewed_token_that_nobody_fetches_hides_the_end_for_hours_at_most() {
    let mut hub = Hub::new();
    hub.beat_at(28 * DAY, Some(FIRST));
    hub.renewer_reports(IncidentKind::TokenRenewed { ends_at: at(SECOND.1) });
    // A fortieth of thirty days is eighteen hours.
    hub.beat_at(28 * DAY + 18 * 3_600 - 1, Some(FIRST));
    assert_eq!(hub.token_incidents(), ["ending 30", "renewed 59"]);
    hub.beat_at(28 * DAY + 18 * 3_600, Some(FIRST));
    assert_eq!(hub.token_incidents(), ["ending 30", "renewed 59", "ending 30"]);
}

#[test]
fn a_copy_with_an_older_epoch_does_not_speak_for_the_token() {
    let mut hub = Hub::new();
    hub.now = at(29 * DAY);
    hub.beat_with_token(2, Some(SECOND));
    hub.beat_with_token(1, Some(FIRST));
    assert_eq!(hub.token_incidents(), [""; 0]);
}

#[test]
fn a_device_cannot_fill_ledger_with_ends_of_tokens() {
    let mut hub = Hub::new();
    for second in 0..3_600 {
        let token = if second % 2 == 0 { (0, 1_000 + second) } else { (1_000, 1_000_000_000 + second) };
        hub.beat_at(1_000 + second, Some(token));
    }
    let most = 2 * (3_600 / TOKEN_INCIDENT_INTERVAL.as_secs() as usize + 1);
    assert!(hub.token_incidents().len() <= most, "{:?}", hub.token_incidents());
}

#[test]
fn an_end_far_off_is_recorded_again_before_ledger_forgets_it() {
    let years = (0, 4_000 * DAY);
    let mut hub = Hub::new();
    hub.beat_at(3_600 * DAY, Some(years));
    let later = 3_600 * DAY + REASSERT_AFTER.as_secs() as i64;
    hub.beat_at(later - 1, Some(years));
    assert_eq!(hub.token_incidents().len(), 1);
    hub.beat_at(later, Some(years));
    assert_eq!(hub.token_incidents(), ["ending 4000", "ending 4000"]);
}

proptest! {
    /// Tokens of a device, and an ingest that dies before LEDGER has a fact, or after it.
    #[test]
    fn each_change_of_a_token_is_recorded_once_whenever_ingest_dies(
        steps in proptest::collection::vec((any::<bool>(), 0u8..3), 1..30),
    ) {
        let mut hub = Hub::new();
        let (mut day, mut token, mut wanted) = (0, (0, 30 * DAY), Vec::new());
        for (is_renewed, death) in steps {
            // Within the last tenth of the newest token.
            day = day.max(token.1 / DAY - 2) + 1;
            let mut tokens = vec![token];
            if is_renewed {
                token = (day * DAY, (day + 30) * DAY);
                tokens.push(token);
            }
            for (part, token) in tokens.into_iter().enumerate() {
                let second = day * DAY + 3_600 * (part as i64 + 1);
                if death == 1 {
                    // It dies with the fact in flight: LEDGER never has it.
                    let before = hub.ledger.len();
                    hub.beat_at(second, Some(token));
                    hub.ledger.truncate(before);
                }
                if death > 0 {
                    hub.restart();
                }
                hub.beat_at(second + 1, Some(token));
                let is_new = !wanted.contains(&format!("ending {}", token.1 / DAY));
                match part {
                    0 if is_new => wanted.push(format!("ending {}", token.1 / DAY)),
                    1 => wanted.push(format!("renewed {}", token.1 / DAY)),
                    _ => {}
                }
            }
        }
        // An end is recorded again as long as the device keeps the token.
        let mut recorded = hub.token_incidents();
        recorded.dedup();
        prop_assert_eq!(recorded, wanted);
    }
}
