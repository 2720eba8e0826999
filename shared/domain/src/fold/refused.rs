//! Targets whose devices refuse their desired state, by the code of the refusal: one entry for each code, not for each device.

use std::collections::BTreeMap;

use muster_contract::desired_refusal::DesiredRefusalCode;
use muster_contract::why::RefusedTargets;
use muster_contract::{DeviceKey, Timestamp};

use super::device::Device;
use super::fleet::Fleet;
use super::standing::CountClass;

/// Refusing devices visited for one answer: the fold waits meanwhile. Of a fleet where more refuse, an answer counts these.
const REFUSING_LOOKED_AT_MAX: usize = 20_000;

impl Fleet {
    /// Notes whether a device refuses its desired state, after a change of its state.
    pub(super) fn update_refusing(&mut self, number: u32) {
        if self.devices[number as usize].state.refusal().is_some() {
            self.refusing.insert(number);
        } else {
            self.refusing.remove(&number);
        }
    }

    /// The targets of a deployment whose devices refuse their desired state, among the devices that are asked about.
    pub(super) fn refused_targets(
        &self,
        deployment: u32,
        is_asked: impl Fn(&Device) -> bool,
    ) -> Vec<RefusedTargets> {
        let refusing = self.refusing.iter().take(REFUSING_LOOKED_AT_MAX);
        let devices = refusing.map(|number| &self.devices[*number as usize]);
        let is_target =
            |device: &&Device| matches!(device.count_class(deployment), CountClass::Target { .. });
        by_code(devices.filter(is_target).filter(|device| is_asked(device)).filter_map(|device| {
            let (key, refusal) = (self.key_of(device), device.state.refusal()?.clone());
            Some(RefusedTargets { targets: 1, key, refusal })
        }))
    }
}

/// Adds up entries of the same code; each keeps the device that has refused for longest, of several the first by name.
pub(super) fn by_code(entries: impl Iterator<Item = RefusedTargets>) -> Vec<RefusedTargets> {
    let mut codes: BTreeMap<DesiredRefusalCode, RefusedTargets> = BTreeMap::new();
    let age = |entry: &RefusedTargets| -> (Timestamp, DeviceKey) { (entry.refusal.since, entry.key.clone()) };
    for entry in entries {
        let code = entry.refusal.code;
        let joined = match codes.remove(&code) {
            Some(known) => {
                let targets = known.targets.saturating_add(entry.targets);
                let oldest = if age(&known) <= age(&entry) { known } else { entry };
                RefusedTargets { targets, ..oldest }
            }
            None => entry,
        };
        codes.insert(code, joined);
    }
    codes.into_values().collect()
}

#[cfg(test)]
mod tests {
    use muster_contract::fact::{Fact, IncidentKind};
    use muster_contract::query::Output;
    use muster_contract::subjects::LedgerSubject;
    use muster_contract::{DeploymentId, SiteId};

    use super::super::answer::Page;
    use super::super::fleet::Position;
    use super::*;

    fn fold(fleet: &mut Fleet, subject: &str, body: &str) {
        let subject = LedgerSubject::parse(&format!("muster.{subject}")).unwrap();
        let ledger_seq = fleet.as_of().ledger_seq + 1;
        let fact = Fact::parse(&subject, body.as_bytes()).unwrap();
        fleet.apply(Position { ledger_seq, stored_at: Timestamp::UNIX_EPOCH }, &subject, fact);
    }

    fn desire(fleet: &mut Fleet, device: &str, deployment: &str) {
        let digest = match deployment {
            "web" => "sha256:e9657e5ecece5d103f3901c3ca1262e6c54958a73a82aa4aff849dafb62ca87e",
            _ => "sha256:5edb0619508d89c6b0a7479acf43e80855d77ef79679eb0bd90ae0f130937063",
        };
        let body = format!(
            r#"{{"apiVersion":"muster/v1","kind":"DesiredState","generation":1,"issuedAt":"2026-11-20T08:00:00Z","source":{{"kind":"git","revision":"c1"}},"deployments":[{{"id":"{deployment}","name":"web","applicationId":"com.example.app","profile":{{"type":"simulated","components":[{{"name":"main","properties":{{}}}}]}},"digest":"{digest}","targetGeneration":1}}]}}"#
        );
        fold(fleet, &format!("desired.{device}"), &body);
    }

    fn incident(fleet: &mut Fleet, device: &str, what: &str) {
        let head = r#""apiVersion":"muster/v1","kind":"Incident","at":"2026-11-20T09:00:00Z""#;
        fold(fleet, &format!("incident.{device}"), &format!("{{{head},{what}}}"));
    }

    fn refuse(fleet: &mut Fleet, device: &str, code: &str, minute: u8) {
        let what = format!(
            r#""type":"desiredRefused","generation":4,"code":"{code}","message":"no","since":"2026-11-20T08:{minute:02}:00Z""#
        );
        incident(fleet, device, &what);
    }

    /// Code, targets, and the first device of each entry of `why`.
    fn why(fleet: &Fleet, site: Option<&str>) -> Vec<(&'static str, u64, String)> {
        let (web, site): (DeploymentId, Option<SiteId>) =
            ("web".parse().unwrap(), site.map(|site| site.parse().unwrap()));
        let answer = fleet.why(&web, site.as_ref(), &Page { after: None, limit: 1 }).unwrap();
        let shown =
            |entry: RefusedTargets| (entry.refusal.code.as_str(), entry.targets, entry.key.to_string());
        answer.refused.into_iter().map(shown).collect()
    }

    #[test]
    fn why_has_each_reason_to_refuse_once_with_the_device_refusing_longest() {
        let mut fleet = Fleet::default();
        for device in ["n.a", "n.b", "s.c"] {
            desire(&mut fleet, device, "web");
        }
        desire(&mut fleet, "s.d", "db");
        assert_eq!(why(&fleet, None), []);
        refuse(&mut fleet, "n.a", "older", 5);
        refuse(&mut fleet, "n.b", "older", 3);
        refuse(&mut fleet, "s.c", "invalid", 9);
        refuse(&mut fleet, "s.d", "invalid", 1);
        let (older, invalid) = (("older", 2, "n/b".to_owned()), ("invalid", 1, "s/c".to_owned()));
        assert_eq!(why(&fleet, None), [older.clone(), invalid.clone()], "s/d is no target");
        assert_eq!(why(&fleet, Some("s")), std::slice::from_ref(&invalid));
        let one = fleet.why_device(&"web".parse().unwrap(), &"n/a".parse().unwrap()).unwrap();
        assert_eq!((one.refused.len(), one.refused[0].targets), (1, 1));

        let restored = Fleet::restore(fleet.as_of(), Default::default(), fleet.records());
        assert_eq!(why(&restored, None), [older, invalid.clone()], "as a snapshot has it");
        incident(
            &mut fleet,
            "n.b",
            r#""type":"desiredAccepted","generation":5,"refusedSince":"2026-11-20T08:03:00Z""#,
        );
        assert_eq!(why(&fleet, None), [("older", 1, "n/a".to_owned()), invalid]);
        let line = |key: &str| fleet.device_answer(&key.parse().unwrap(), Output::All).unwrap().device;
        assert_eq!((line("n/b").refused, line("n/b").incidents), (None, 2));
        assert!(line("n/a").refused.is_some());
    }

    #[test]
    fn a_reasserted_refusal_counts_once_and_shows_the_refusal_by_itself() {
        let mut fleet = Fleet::default();
        let press = "n/a".parse().unwrap();
        refuse(&mut fleet, "n.a", "older", 5);
        incident(&mut fleet, "n.a", r#""type":"clockSkew","seconds":900"#);
        refuse(&mut fleet, "n.a", "older", 5);
        let answer = fleet.device_answer(&press, Output::All).unwrap();
        assert_eq!(answer.device.incidents, 2);
        let last = answer.last_incident.map(|last| last.what);
        assert_eq!(last, Some(IncidentKind::ClockSkew { seconds: 900 }));
        refuse(&mut fleet, "n.a", "older", 6);
        assert_eq!(fleet.device_answer(&press, Output::All).unwrap().device.incidents, 3, "of another time");
        // LEDGER has discarded the first one.
        let mut rebuilt = Fleet::default();
        refuse(&mut rebuilt, "n.a", "older", 6);
        let line = |fleet: &Fleet| fleet.device_answer(&press, Output::All).unwrap().device;
        assert_eq!(line(&rebuilt).refused, line(&fleet).refused);
        assert!(line(&rebuilt).refused.is_some());
    }
}
