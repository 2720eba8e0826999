//! Devices: the list, and one with everything that is known of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anstyle::Style;
use muster_contract::desired_refusal::DesiredRefusal;
use muster_contract::fact::Account;
use muster_contract::host::Host;
use muster_contract::query::{DeviceAnswer, DeviceLine, DeviceOmitted, DevicesAnswer, Query};
use muster_contract::view::Freshness;
use muster_contract::{DeviceKey, Timestamp};
use serde_json::Value;

use super::colour::{self, BAD, BOLD, DIM, UNSURE, styled};
use super::deployment::{LINE_TITLES, cells, detail, join};
use super::format::{age, as_of, clean, freshness, listed, plural};
use super::frame::Frame;
use super::incident::incident;
use super::legend;
use super::table::{Cell, Table};

/// The devices that a question selects, each in a line.
pub fn list(answer: &DevicesAnswer, query: &Query, frame: impl Into<Frame>) -> String {
    let frame = frame.into();
    let position = as_of(answer.as_of, frame.now);
    if answer.devices.is_empty() {
        return format!(
            "No device is {}; {position}.\n",
            selected(query).unwrap_or_else(|| "known".to_owned())
        );
    }
    let table = rows(&answer.devices, frame.now).within(frame.width);
    let refused: String = answer.devices.iter().filter_map(|device| refusing(device, frame.now)).collect();
    let tokens: String = answer.devices.iter().filter_map(ending_token).collect();
    let legend = legend::devices(&answer.devices);
    let hosts = hosts(&answer.devices);
    format!("{table}\n{legend}{}; {position}.\n{refused}{tokens}{hosts}", footer(&answer.devices, query))
}

/// The deployments that host silent devices and are not well, a line for each: one cause of several effects.
fn hosts(devices: &[DeviceLine]) -> String {
    let mut hosts: BTreeMap<String, u64> = BTreeMap::new();
    let silent = devices.iter().filter(|device| !device.retired && device.freshness != Freshness::Fresh);
    for host in silent.filter_map(|device| device.hosted_by.as_ref()).filter(|host| !host.is_well()) {
        *hosts.entry(host.format()).or_default() += 1;
    }
    let line = |(words, count): (String, u64)| {
        let (devices, are) = (plural(count, "silent device"), if count == 1 { "is" } else { "are" });
        styled(UNSURE, &format!("{devices} {are} hosted by {words}")) + "\n"
    };
    hosts.into_iter().map(line).collect()
}

/// The table alone.
pub fn rows<'a>(devices: impl IntoIterator<Item = &'a DeviceLine>, now: Timestamp) -> Table {
    let mut table = Table::new(&[
        "DEVICE",
        "FRESHNESS",
        "LAST FACT",
        "?>GENERATION",
        "?>REPORTS",
        ">MISSING",
        "STANDINGS",
        ">INCIDENTS",
        ">QUARANTINED",
        "?CHANGED",
        "?BECAUSE",
    ]);
    devices.into_iter().for_each(|device| table.row(row(device, now)));
    table
}

/// That a device's token ends and was not renewed.
fn ending_token(device: &DeviceLine) -> Option<String> {
    let (key, ends_at) = (&device.key, device.token_ends_at?);
    let words = format!(
        "{key}: its token ends at {ends_at} and was not renewed; `muster enroll {key} --send` renews it"
    );
    Some(format!("{}\n", styled(BAD, &words)))
}

/// That a device refuses its desired state.
fn refusing(device: &DeviceLine, now: Timestamp) -> Option<String> {
    let words = format!("{}: refuses {}", device.key, refusal(device.refused.as_ref()?, now));
    Some(format!("{}\n", styled(BAD, &words)))
}

/// `generation 4 since 2026-11-26T10:00:00Z (5m ago): its generation 4 is below 7`.
pub(super) fn refusal(refusal: &DesiredRefusal, now: Timestamp) -> String {
    let (what, since) = (refusal.refused(), refusal.since);
    format!("{what} since {since:.0} ({}): {}", age(now, since), clean(&refusal.message))
}

fn row(device: &DeviceLine, now: Timestamp) -> [Cell; 11] {
    let heard = device.last_heard_at.map_or_else(|| "-".to_owned(), |at| age(now, at));
    let missing = device.account.missing.count();
    let (word, style) = state(device);
    let reason = if device.message.is_empty() { "-".to_owned() } else { clean(&device.message) };
    [
        device.key.to_string().into(),
        Cell::styled(word, style),
        heard.into(),
        device.generation.map_or_else(|| "-".into(), |generation| generation.to_string().into()),
        Cell::count(device.head),
        Cell::marked(missing, UNSURE),
        listed(device.standings.iter().map(|(standing, count)| (*standing, *count))).into(),
        Cell::marked(device.incidents, BAD),
        Cell::marked(device.account.quarantined.saturating_add(device.unnumbered_quarantined), BAD),
        device.changed_at.map_or_else(|| "-".into(), |at| age(now, at).into()),
        reason.into(),
    ]
}

fn state(device: &DeviceLine) -> (String, Style) {
    let word = freshness(device.freshness);
    match (device.retired, device.storing) {
        (true, _) => ("retired".to_owned(), DIM),
        (false, true) => (word.to_owned(), colour::freshness(device.freshness)),
        (false, false) => (format!("{word}, not storing"), BAD),
    }
}

/// `stale or never heard with error E-DISK`; none if there is no filter but sites.
fn selected(query: &Query) -> Option<String> {
    let mut words = vec![join(query.freshness.iter().map(|word| freshness(*word)), "or")];
    words.retain(|word| !word.is_empty());
    if !query.error.is_empty() {
        words.push(format!("with error {}", clean(&join(&query.error, "or"))));
    }
    if !query.version.is_empty() {
        words.push(format!("of version {}", clean(&join(&query.version, "or"))));
    }
    words.extend(query.not_running.as_ref().map(|id| format!("not running {id}")));
    words.extend(query.by_silence.then(|| "stale or never heard, the longest silence first".to_owned()));
    (!words.is_empty()).then(|| words.join(" "))
}

fn footer(devices: &[DeviceLine], query: &Query) -> String {
    let present: Vec<_> = devices.iter().filter(|device| !device.retired).collect();
    let of = present.len();
    let count = |is: &dyn Fn(&DeviceLine) -> bool| present.iter().filter(|device| is(device)).count();
    // A device may claim any head, so the sum stops at the end of u64.
    let missing = present.iter().map(|device| device.account.missing.count());
    let missing = missing.fold(0, u64::saturating_add);
    let mut parts: Vec<_> = [
        (count(&|device| device.freshness == Freshness::Stale), "stale"),
        (count(&|device| device.freshness == Freshness::Never), "never heard"),
        (count(&|device| !device.storing), "not storing"),
        (count(&|device| device.unread > 0 || !device.in_doubt.is_empty()), "with reports in quarantine"),
    ]
    .iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} of {of} {what}"))
    .collect();
    if missing > 0 {
        let silent = count(&|device| device.account.missing.count() > 0);
        parts.push(format!("{} of {} missing", plural(missing, "report"), plural(silent as u64, "device")));
    }
    let size = plural(of as u64, "device");
    let size = match (selected(query), devices.len() - of) {
        (Some(words), _) => format!("{size} {} {words}", if of == 1 { "is" } else { "are" }),
        (None, 0) => size,
        (None, retired) => format!("{size} and {retired} retired"),
    };
    if parts.is_empty() {
        format!("{size}, all heard and complete")
    } else {
        format!("{size}: {}", parts.join(", "))
    }
}

/// One device.
pub fn one(answer: &DeviceAnswer, frame: impl Into<Frame>) -> String {
    let frame = frame.into();
    let device = &answer.device;
    let (word, style) = state(device);
    let mut text = format!("{}  {}\n\n", styled(BOLD, &device.key.to_string()), styled(style, &word));
    for (name, value) in facts(answer, frame.now) {
        let _ = writeln!(text, "{name:<13}{value}");
    }
    if !answer.deployments.is_empty() {
        let _ = write!(text, "\n{}", deployments(answer, frame));
    }
    if let Some(words) = omitted(answer) {
        let _ = write!(text, "\n{words}");
    }
    let _ = writeln!(text, "\n{}.", as_of(answer.as_of, frame.now));
    text
}

/// The parts that the answer has no room for, and the commands that show them.
fn omitted(answer: &DeviceAnswer) -> Option<String> {
    let DeviceOmitted { components, retries, texts, capabilities } = answer.omitted;
    let DeviceKey { site, device } = &answer.device.key;
    let (mut parts, mut pointers) = (Vec::new(), String::new());
    if components > 0 {
        parts.push(plural(components, "component"));
    }
    if retries > 0 {
        parts.push(plural(retries, "retried component"));
    }
    if texts > 0 {
        parts.push(format!("the ends of {}", plural(texts, "text")));
    }
    if !parts.is_empty() {
        let ask = format!("muster status DEPLOYMENT --device {site}/{device} --output detail --format json");
        let _ = writeln!(pointers, "`{ask}` has them page by page.");
    }
    if capabilities {
        parts.push("the capabilities".to_owned());
        let _ =
            writeln!(pointers, "The subject muster.device.{site}.{device} of LEDGER has the capabilities.");
    }
    let what = format!("not shown, for want of room: {}", parts.join(", "));
    (!parts.is_empty()).then(|| format!("{}\n{pointers}", styled(UNSURE, &what)))
}

fn facts(answer: &DeviceAnswer, now: Timestamp) -> Vec<(&'static str, String)> {
    let device = &answer.device;
    let mut facts = Vec::new();
    let mut fact = |name, value: Option<String>| facts.extend(value.map(|value| (name, value)));
    // Heartbeats are no facts: of a device that is well the last fact may be old.
    fact("last fact", device.last_heard_at.map(|at| age(now, at)));
    let host = |host: &Host| styled(if host.is_well() { DIM } else { UNSURE }, &host.format());
    fact("hosted by", device.hosted_by.as_ref().map(host));
    fact("generation", device.generation.map(|generation| generation.to_string()));
    let refused = device
        .refused
        .as_ref()
        .map(|refused| format!("{}; what it accepted last stays in force", refusal(refused, now)));
    fact("refused", refused.map(|words| styled(BAD, &words)));
    fact("epoch", device.epoch.map(|epoch| epoch.to_string()));
    fact("reports", Some(account(device.head, &device.account)));
    fact("in doubt", doubt(device));
    let storage = "nothing of it is known: it cannot store reports (see to its disk), or it lost its memory and has not \
                   reported since";
    fact("storage", (!device.storing).then(|| styled(BAD, storage)));
    let unnumbered = device.unnumbered_quarantined;
    fact("unreadable", (unnumbered > 0).then(|| format!("{} in quarantine", plural(unnumbered, "message"))));
    fact("agent", answer.agent_version.as_deref().map(clean));
    let labels: Vec<_> = answer.labels.iter().map(|(key, value)| clean(&format!("{key}={value}"))).collect();
    fact("labels", (!labels.is_empty()).then(|| labels.join(", ")));
    let mut title = "capabilities";
    for (name, value) in answer.capabilities.iter().flatten() {
        if let Some(value) = capability(value) {
            fact(std::mem::take(&mut title), Some(clean(&format!("{name}: {value}"))));
        }
    }
    let last = answer.last_incident.as_ref().map(|last| format!("; the last: {}", incident(last, now)));
    let incidents = device.incidents;
    fact(
        "incidents",
        (incidents > 0).then(|| styled(BAD, &format!("{incidents}{}", last.unwrap_or_default()))),
    );
    facts
}

/// The reports that quarantine may hide, and the command that lists them.
fn doubt(device: &DeviceLine) -> Option<String> {
    let what = match (device.unread, device.in_doubt.is_empty()) {
        (0, true) => return None,
        (0, false) => format!("what was reported before {}, in quarantine", device.in_doubt),
        (1, _) => "everything, until a heartbeat comes after the message in quarantine".to_owned(),
        (count, _) => format!("everything, until a heartbeat comes after {count} messages in quarantine"),
    };
    Some(styled(UNSURE, &format!("{what}: `muster quarantine list {}`", device.key)))
}

/// `architecture amd64, cores 4`; none where it says nothing.
fn capability(value: &Value) -> Option<String> {
    let listed = |parts: Vec<String>, between: &str| (!parts.is_empty()).then(|| parts.join(between));
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(values) => listed(values.iter().filter_map(capability).collect(), "; "),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| Some(format!("{name} {}", capability(value)?));
            listed(fields.iter().filter_map(field).collect(), ", ")
        }
        number_or_bool => Some(number_or_bool.to_string()),
    }
}

/// `60 = 43 received + 12 coalesced + 2 quarantined + 3 missing (58-60)`.
pub fn account(head: u64, account: &Account) -> String {
    let Account { received, coalesced, quarantined, missing } = account;
    let mut terms = vec![format!("{received} received")];
    let rest = [(*coalesced, "coalesced"), (*quarantined, "quarantined"), (missing.count(), "missing")];
    terms.extend(rest.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    let text = format!("{head} = {}", terms.join(" + "));
    if missing.is_empty() { text } else { styled(UNSURE, &format!("{text} ({missing})")) }
}

fn deployments(answer: &DeviceAnswer, frame: Frame) -> Table {
    let mut table = Table::new(&[&["DEPLOYMENT"], &LINE_TITLES[..]].concat());
    for line in &answer.deployments {
        table.row_above(cells(line.deployment.to_string(), line, frame), detail(line));
    }
    table.within(frame.width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_ends_is_a_line_below_the_devices() {
        let bytes = include_bytes!("../../../../schemas/examples/good/DevicesAnswer.two.json");
        let mut answer: DevicesAnswer = serde_json::from_slice(bytes).unwrap();
        let said = |answer: &DevicesAnswer| list(answer, &Query::default(), Timestamp::UNIX_EPOCH);
        assert!(!said(&answer).contains("its token ends"));
        answer.devices[0].token_ends_at = Some(Timestamp::UNIX_EPOCH);
        let words = "plant7/press-4: its token ends at 1970-01-01T00:00:00Z and was not renewed";
        assert!(said(&answer).contains(words), "{}", said(&answer));
    }

    #[test]
    fn a_refused_desired_state_is_a_line_below_the_devices() {
        let bytes = include_bytes!("../../../../schemas/examples/good/DevicesAnswer.two.json");
        let mut answer: DevicesAnswer = serde_json::from_slice(bytes).unwrap();
        let said = |answer: &DevicesAnswer| list(answer, &Query::default(), Timestamp::UNIX_EPOCH);
        assert!(!said(&answer).contains("refuses"));
        let text = r#"{"generation":4,"code":"older","message":"\u001b[31mit is below 7","since":"1970-01-01T00:00:00Z"}"#;
        answer.devices[0].refused = serde_json::from_str(text).unwrap();
        let words = "plant7/press-4: refuses generation 4 since 1970-01-01T00:00:00Z (just now): ";
        assert!(
            said(&answer).contains(words) && said(&answer).contains("it is below 7"),
            "{}",
            said(&answer)
        );
        assert!(!said(&answer).contains("\u{1b}[31mit"), "{}", said(&answer));
    }

    #[test]
    fn what_the_answer_has_no_room_for_is_said_with_where_it_is_told() {
        let bytes = include_bytes!("../../../../schemas/examples/good/DeviceAnswer.in-detail.json");
        let mut answer: DeviceAnswer = serde_json::from_slice(bytes).unwrap();
        assert!(!one(&answer, Timestamp::UNIX_EPOCH).contains("not shown"));
        let mut said = |omitted| {
            answer.omitted = omitted;
            anstream::adapter::strip_str(&one(&answer, Timestamp::UNIX_EPOCH)).to_string()
        };
        let of_components = "`muster status DEPLOYMENT --device plant7/press-4 --output detail --format json` has them \
                             page by page.\n";
        let of_capabilities = "The subject muster.device.plant7.press-4 of LEDGER has the capabilities.\n";
        let plain = said(DeviceOmitted { components: 3744, retries: 2, texts: 1, capabilities: true });
        let says = "not shown, for want of room: 3744 components, 2 retried components, the ends of 1 text, the capabilities\n";
        assert!(plain.contains(&format!("\n{says}{of_components}{of_capabilities}\n")), "{plain}");
        let plain = said(DeviceOmitted { capabilities: true, ..DeviceOmitted::default() });
        let says = "not shown, for want of room: the capabilities\n";
        assert!(plain.contains(&format!("\n{says}{of_capabilities}\n")), "{plain}");
        let plain = said(DeviceOmitted { texts: 2, ..DeviceOmitted::default() });
        let says = "not shown, for want of room: the ends of 2 texts\n";
        assert!(plain.contains(&format!("\n{says}{of_components}\n")), "{plain}");
    }
}
