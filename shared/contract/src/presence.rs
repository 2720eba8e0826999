//! Heartbeat: a device is there, and this is how far its reports go.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decode::{self, Document, Refusal, Violation};
use crate::desired_refusal::DesiredRefusal;
use crate::ids::Epoch;
use crate::limits::{COUNTER_MAX, HEARTBEAT_LEASE_MS_MAX};
use crate::liveness::{holds, is_so};
use crate::omit::is_zero;
use crate::token::TokenTerm;
use crate::version::{ApiVersion, kind};

/// `muster.presence.<site>.<device>`: every 30 s, and at once after a (re)connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Heartbeat {
    /// `muster/v1`, also if absent: a heartbeat to a hub that reads `zstd-r1` may omit it.
    #[serde(default)]
    pub api_version: ApiVersion,
    /// `Heartbeat`, also if absent.
    #[serde(default)]
    pub kind: kind::Heartbeat,
    /// The device's epoch.
    pub epoch: Epoch,
    /// Highest report number ever given; 0 before the first.
    #[schemars(range(max = COUNTER_MAX))]
    pub head: u64,
    /// Reports that no publish acknowledgement covers yet; absent for none.
    #[serde(default)]
    pub unsent: u64,
    /// When the oldest of those was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_unsent_at: Option<Timestamp>,
    /// Generation of the desired state the device holds; 0 before the first.
    pub generation: u64,
    /// Version of the agent; absent if the device's capabilities have it.
    #[serde(default)]
    pub agent_version: String,
    /// False while the device cannot keep what it would report, because its disk is full or broken: what it is like
    /// may have changed since the report that has number `head`. Absent is true.
    #[serde(default = "holds", skip_serializing_if = "is_so")]
    pub storing: bool,
    /// The desired state that the device refused, while it has accepted none since. Absent for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<DesiredRefusal>,
    /// The term of the token with which the device connects: in the first heartbeat of a connection, in each one while the token
    /// ends soon, and now and then. Absent also if the token does not end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenTerm>,
    /// The time for which the device is fresh from when PRESENCE stored this heartbeat, in milliseconds: what the sender knows of
    /// the device is snapshots, and older afterwards than they may be, or the device polls a gateway rarely. Absent for the hub's
    /// lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = HEARTBEAT_LEASE_MS_MAX))]
    pub lease_ms: Option<u64>,
}

/// The fields of a brief heartbeat: the hub knows the others from the subject and the device's capabilities.
#[derive(PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Brief<'a> {
    epoch: Epoch,
    head: u64,
    #[serde(skip_serializing_if = "is_zero")]
    unsent: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_unsent_at: Option<Timestamp>,
    generation: u64,
    #[serde(skip_serializing_if = "is_so")]
    storing: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<&'a DesiredRefusal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<TokenTerm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ms: Option<u64>,
}

impl Brief<'_> {
    /// The one in which every other field says no more than its absence.
    const fn without_news(epoch: Epoch, head: u64, generation: u64) -> Self {
        Self {
            epoch,
            head,
            unsent: 0,
            oldest_unsent_at: None,
            generation,
            storing: true,
            refused: None,
            token: None,
            lease_ms: None,
        }
    }
}

impl Heartbeat {
    /// Parses a heartbeat: an object, or the short form of [`Heartbeat::to_short_bytes`].
    ///
    /// # Errors
    /// A [`Refusal`] that names the field and the rule.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let Some((epoch, head, generation)) = short_numbers(bytes) else { return decode::parse(bytes) };
        let beat = Self {
            api_version: ApiVersion::V1,
            kind: Default::default(),
            epoch,
            head,
            unsent: 0,
            oldest_unsent_at: None,
            generation,
            agent_version: String::new(),
            storing: true,
            refused: None,
            token: None,
            lease_ms: None,
        };
        beat.check().map_err(|violation| Refusal::Rule { kind: Self::KIND, violation })?;
        Ok(beat)
    }

    /// Serialises the heartbeat as `[epoch,head,generation]`; `None` if another field says more than its absence. Most heartbeats
    /// of an idle device are like that, and the names of the fields would be most of their bytes.
    pub fn to_short_bytes(&self) -> Option<Vec<u8>> {
        let brief = self.brief();
        let Brief { epoch, head, generation, .. } = brief;
        (brief == Brief::without_news(epoch, head, generation))
            .then(|| format!("[{epoch},{head},{generation}]").into_bytes())
    }

    /// Serialises the heartbeat without the fields that the hub knows from the subject and the device's capabilities.
    pub fn to_brief_bytes(&self) -> Vec<u8> {
        let brief = self.brief();
        // Numbers and times are always JSON.
        serde_json::to_vec(&brief).unwrap_or_default()
    }

    fn brief(&self) -> Brief<'_> {
        let Self {
            epoch,
            head,
            unsent,
            oldest_unsent_at,
            generation,
            storing,
            ref refused,
            token,
            lease_ms,
            ..
        } = *self;
        let refused = refused.as_ref();
        Brief { epoch, head, unsent, oldest_unsent_at, generation, storing, refused, token, lease_ms }
    }
}

/// The numbers of a heartbeat in the short form.
fn short_numbers(bytes: &[u8]) -> Option<(Epoch, u64, u64)> {
    bytes.starts_with(b"[").then(|| serde_json::from_slice(bytes).ok()).flatten()
}

impl Document for Heartbeat {
    const KIND: &'static str = "Heartbeat";

    fn check(&self) -> Result<(), Violation> {
        if self.head > COUNTER_MAX {
            return Err(Violation::at("head", format!("{} is above {COUNTER_MAX}", self.head)));
        }
        if self.unsent > self.head {
            return Err(Violation::at("unsent", format!("{} is above head {}", self.unsent, self.head)));
        }
        if let Some(lease) = self.lease_ms.filter(|lease| !(1..=HEARTBEAT_LEASE_MS_MAX).contains(lease)) {
            return Err(Violation::at("leaseMs", format!("{lease} is not 1 to {HEARTBEAT_LEASE_MS_MAX}")));
        }
        self.refused.as_ref().map_or(Ok(()), DesiredRefusal::check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode;
    use crate::desired_refusal::DesiredRefusalCode;
    use crate::limits::DESIRED_REFUSAL_MESSAGE_BYTES_MAX;

    #[test]
    fn a_brief_heartbeat_is_read_as_the_whole_one() {
        for text in [
            r#"{"epoch":7,"head":9,"generation":3}"#,
            r#"{"epoch":7,"head":9,"unsent":2,"oldestUnsentAt":"2026-11-20T08:00:00Z","generation":3,"storing":false}"#,
            r#"{"epoch":7,"head":9,"generation":3,"refused":{"generation":2,"code":"older","message":"is below 3","since":"2026-11-20T08:00:00Z"}}"#,
            r#"{"epoch":7,"head":9,"generation":3,"token":{"issuedAt":"2026-11-20T08:00:00Z","endsAt":"2026-12-20T08:00:00Z"}}"#,
            r#"{"epoch":7,"head":9,"generation":3,"leaseMs":300000}"#,
        ] {
            let beat: Heartbeat = decode::parse(text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(beat.to_brief_bytes()).unwrap(), text);
            let whole = Heartbeat { agent_version: "1".to_owned(), ..beat };
            assert_eq!(decode::parse::<Heartbeat>(&decode::to_bytes(&whole)).unwrap(), whole);
            assert_eq!(whole.to_brief_bytes(), text.as_bytes());
        }
    }

    #[test]
    fn a_short_heartbeat_is_read_as_the_whole_one_and_holds_nothing_unusual() {
        let text = "[1795734776,16,3]";
        let beat = Heartbeat::parse(text.as_bytes()).unwrap();
        assert_eq!((beat.epoch.get(), beat.head, beat.generation), (1_795_734_776, 16, 3));
        assert_eq!(beat.to_short_bytes().unwrap(), text.as_bytes());
        assert_eq!(Heartbeat::parse(&beat.to_brief_bytes()).unwrap(), beat);
        let term = TokenTerm { issued_at: Timestamp::UNIX_EPOCH, ends_at: Timestamp::UNIX_EPOCH };
        let refusal = DesiredRefusal {
            generation: None,
            code: DesiredRefusalCode::Invalid,
            message: "is no document".to_owned(),
            since: Timestamp::UNIX_EPOCH,
        };
        for unusual in [
            Heartbeat { unsent: 1, ..beat.clone() },
            Heartbeat { storing: false, ..beat.clone() },
            Heartbeat { token: Some(term), ..beat.clone() },
            Heartbeat { oldest_unsent_at: Some(Timestamp::UNIX_EPOCH), ..beat.clone() },
            Heartbeat { lease_ms: Some(1), ..beat.clone() },
            Heartbeat { refused: Some(refusal), ..beat },
        ] {
            assert_eq!(unusual.to_short_bytes(), None, "{unusual:?}");
        }
        for bad in
            ["[0,16,3]", "[1,16]", "[1,16,3,4]", "[1,9007199254740992,3]", "[1,-1,3]", "[", "[1,16,3]x", "{}"]
        {
            assert!(Heartbeat::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_lease_of_evidence_is_bounded() {
        let beat = |lease: u64| {
            let text = format!(r#"{{"epoch":7,"head":9,"generation":3,"leaseMs":{lease}}}"#);
            decode::parse::<Heartbeat>(text.as_bytes()).map(|beat| beat.lease_ms)
        };
        assert_eq!(beat(HEARTBEAT_LEASE_MS_MAX).unwrap(), Some(HEARTBEAT_LEASE_MS_MAX));
        for lease in [0, HEARTBEAT_LEASE_MS_MAX + 1] {
            assert!(beat(lease).unwrap_err().to_string().contains("leaseMs"), "{lease}");
        }
    }

    #[test]
    fn a_refusal_has_a_bounded_message_and_any_code() {
        let beat = |code: &str, message: &str| {
            let refused =
                format!(r#"{{"code":"{code}","message":"{message}","since":"2026-11-20T08:00:00Z"}}"#);
            let text = format!(r#"{{"epoch":7,"head":9,"generation":3,"refused":{refused}}}"#);
            decode::parse::<Heartbeat>(text.as_bytes())
        };
        let long = "x".repeat(DESIRED_REFUSAL_MESSAGE_BYTES_MAX);
        let read = beat("colour", &long).unwrap().refused.unwrap();
        assert_eq!((read.code, read.generation), (DesiredRefusalCode::Other, None));
        assert!(beat("older", &(long + "x")).is_err());
    }
}
