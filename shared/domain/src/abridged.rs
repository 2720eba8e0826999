//! Cuts a device's answer to the size of a message: long texts first, then components and retries, the least
//! severe of each deployment, and the device's own properties last. Cut items are counted. Standings are never
//! cut.

use std::cmp::Reverse;

use muster_contract::limits::VIEW_MESSAGE_BYTES_MAX;
use muster_contract::query::{DeviceAnswer, DeviceOmitted, LastReport};
use muster_contract::retry::Retry;
use muster_contract::state::{ComponentStatus, StatusError, cut};
use muster_contract::status::TargetStatus;

use crate::aggregate::severity;

/// Longest text where even an answer without components has no room.
const TEXT_BYTES_LEAST: usize = 64;
/// The fraction of the components that seem to fit which is tried next. Components have similar sizes, but an
/// answer holds more than components: their exact share would be a few too many and take one more turn.
const SHARE_TRIED: f64 = 0.95;
/// The bound of texts and whether the device's own properties are shown, tried in this order. Each step drops
/// components until the answer fits or none is left; the next step frees space that they may use again.
const STEPS: [Step; 4] = [
    Step { text_bytes: VIEW_MESSAGE_BYTES_MAX, capabilities: true },
    Step { text_bytes: TEXT_BYTES_LEAST, capabilities: true },
    Step { text_bytes: VIEW_MESSAGE_BYTES_MAX, capabilities: false },
    Step { text_bytes: TEXT_BYTES_LEAST, capabilities: false },
];

const _: () = assert!(SHARE_TRIED > 0.0 && SHARE_TRIED < 1.0);

/// How much is shown besides components.
#[derive(Debug, Clone, Copy)]
struct Step {
    text_bytes: usize,
    capabilities: bool,
}

/// The answer unchanged if it fits into so many bytes of JSON; otherwise cut to fit. An answer whose standings
/// alone are larger is returned all the same.
pub fn abridged(whole: DeviceAnswer, bytes_max: usize) -> DeviceAnswer {
    if bytes(&whole) <= bytes_max {
        return whole;
    }
    let mut least = None;
    for step in STEPS {
        let (answer, fits) = step.within(&whole, bytes_max);
        if fits {
            return answer;
        }
        least = Some(answer);
    }
    least.unwrap_or(whole)
}

impl Step {
    /// The answer with as many components as fit, and true; without components and false, if even that does not
    /// fit.
    fn within(self, whole: &DeviceAnswer, bytes_max: usize) -> (DeviceAnswer, bool) {
        let most = |report: &LastReport| report.components.len().max(report.retries.len());
        let mut components = reports(whole).map(most).max().unwrap_or(0);
        loop {
            let answer = self.of(whole, components);
            let bytes = bytes(&answer);
            if bytes <= bytes_max {
                return (answer, true);
            }
            let Some(fewer) = components.checked_sub(1) else { return (answer, false) };
            let share = bytes_max as f64 / bytes as f64 * SHARE_TRIED;
            components = ((components as f64 * share) as usize).min(fewer);
        }
    }

    /// The answer with at most so many components of each deployment, and as many retries.
    fn of(self, whole: &DeviceAnswer, components: usize) -> DeviceAnswer {
        let (mut answer, mut omitted) = (whole.clone(), DeviceOmitted::default());
        for TargetStatus { message, report, .. } in &mut answer.deployments {
            if let Some(report) = report {
                omitted.components += keep_worst(&mut report.components, components);
                omitted.retries += keep_most_tried(&mut report.retries, components);
            }
            for text in report.iter_mut().flat_map(texts).chain([message]) {
                if text.len() > self.text_bytes {
                    *text = cut(std::mem::take(text), self.text_bytes);
                    omitted.texts += 1;
                }
            }
        }
        if answer.device.message.len() > self.text_bytes {
            answer.device.message = cut(std::mem::take(&mut answer.device.message), self.text_bytes);
            omitted.texts += 1;
        }
        if !self.capabilities {
            omitted.capabilities = answer.capabilities.take().is_some();
        }
        DeviceAnswer { omitted, ..answer }
    }
}

fn reports(answer: &DeviceAnswer) -> impl Iterator<Item = &LastReport> {
    answer.deployments.iter().filter_map(|line| line.report.as_ref())
}

/// Every text of a report that may be long.
fn texts(report: &mut LastReport) -> impl Iterator<Item = &mut String> {
    let (error, reason) = match &mut report.status {
        Some(status) => (status.error.as_mut(), status.reason.as_mut()),
        None => (None, None),
    };
    let errors = error.into_iter().chain(report.components.iter_mut().filter_map(|one| one.error.as_mut()));
    let retries = report.retries.iter_mut().map(|retry| &mut retry.last_error);
    let retries = retries.flat_map(|error| [&mut error.code, &mut error.message]);
    errors.flat_map(words).chain(reason).chain(retries)
}

fn words(StatusError { code, source, message }: &mut StatusError) -> [&mut String; 3] {
    [code, source, message]
}

/// Keeps the most severe, in their order; how many had to go.
fn keep_worst(components: &mut Vec<ComponentStatus>, most: usize) -> u64 {
    let gone = components.len().saturating_sub(most);
    if gone > 0 {
        let mut places: Vec<usize> = (0..components.len()).collect();
        places.sort_by_key(|at| Reverse(severity(components[*at].state)));
        let mut kept = vec![false; components.len()];
        places.into_iter().take(most).for_each(|at| kept[at] = true);
        let mut kept = kept.into_iter();
        components.retain(|_| kept.next().unwrap_or(false));
    }
    gone as u64
}

/// Keeps crash loops and those that were tried most often; how many had to go.
fn keep_most_tried(retries: &mut Vec<Retry>, most: usize) -> u64 {
    let gone = retries.len().saturating_sub(most);
    if gone > 0 {
        retries.sort_by_key(|retry| Reverse((retry.crash_loop, retry.attempt)));
        retries.truncate(most);
    }
    gone as u64
}

fn bytes(answer: &DeviceAnswer) -> usize {
    serde_json::to_vec(answer).map_or(usize::MAX, |json| json.len())
}

#[cfg(test)]
mod tests {
    use muster_contract::Timestamp;
    use muster_contract::limits::{DEPLOYMENTS_PER_DEVICE_MAX, ERROR_MESSAGE_BYTES_MAX, RETRIES_MAX};
    use muster_contract::retry::LastError;
    use serde_json::{Map, json};

    use super::*;

    /// Room for some of the components below where nothing else is long, and for none beside texts that are cut but once.
    const ROOM: usize = 36_000;
    const DEPLOYMENTS: usize = 40;
    const COMPONENTS: usize = 25;

    /// A device with large properties of its own and an error of so many bytes in each of its deployments.
    fn answer(error: usize, capabilities: usize) -> DeviceAnswer {
        let bytes = include_bytes!("../../../schemas/examples/good/DeviceAnswer.in-detail.json");
        let mut answer: DeviceAnswer = serde_json::from_slice(bytes).unwrap();
        let report = answer.deployments[0].report.as_mut().unwrap();
        let one = report.components[0].clone();
        let named = |at| ComponentStatus { name: format!("part-{at:03}").parse().unwrap(), ..one.clone() };
        report.components = (0..COMPONENTS).map(named).collect();
        let error = StatusError { code: "E".to_owned(), source: String::new(), message: "e".repeat(error) };
        report.status.as_mut().unwrap().error = Some(error);
        answer.deployments = vec![answer.deployments[0].clone(); DEPLOYMENTS];
        answer.capabilities = Some(Map::from_iter([("notes".to_owned(), json!("n".repeat(capabilities)))]));
        answer
    }

    /// The shown part: the number of components, the longest error message, and the count of omissions.
    fn shown(whole: DeviceAnswer) -> (usize, usize, DeviceOmitted) {
        let cut = abridged(whole, ROOM);
        assert!(bytes(&cut) <= ROOM, "{} bytes", bytes(&cut));
        let components = reports(&cut).map(|report| report.components.len()).sum::<usize>();
        assert_eq!(components + cut.omitted.components as usize, DEPLOYMENTS * COMPONENTS);
        let error = |report: &LastReport| Some(report.status.as_ref()?.error.as_ref()?.message.len());
        (components, reports(&cut).filter_map(error).max().unwrap(), cut.omitted)
    }

    #[test]
    fn later_cuts_restore_items_that_earlier_cuts_removed() {
        let some = DEPLOYMENTS;
        let (plain, _, omitted) = shown(answer(10, 10));
        assert!(plain >= some && omitted.texts == 0 && !omitted.capabilities, "{plain} {omitted:?}");
        let (shorter, message, omitted) = shown(answer(5_000, 10));
        assert!(shorter >= some && message <= TEXT_BYTES_LEAST, "{shorter} {message}");
        // The error, and the words of its line.
        assert!(omitted.texts == 2 * DEPLOYMENTS as u64 && !omitted.capabilities, "{omitted:?}");
        let (again, message, omitted) = shown(answer(10, 100_000));
        assert!(again >= plain && message == 10, "{again} {message}");
        assert!(omitted.texts == 0 && omitted.capabilities, "{omitted:?}");
    }

    #[test]
    fn as_many_retries_are_shown_as_fit_most_attempts_first() {
        let mut whole = answer(10, 10);
        let message = "m".repeat(ERROR_MESSAGE_BYTES_MAX);
        let at = Timestamp::UNIX_EPOCH;
        let last_error = LastError { code: "E".to_owned(), message, at };
        let retry = |attempt| Retry {
            component: None,
            attempt,
            since: at,
            last_error: last_error.clone(),
            crash_loop: false,
        };
        let all = RETRIES_MAX as u32;
        for line in &mut whole.deployments {
            line.report.as_mut().unwrap().retries = (1..=all).map(retry).collect();
        }
        let cut = abridged(whole, ROOM);
        assert!(bytes(&cut) <= ROOM, "{} bytes", bytes(&cut));
        let shown = reports(&cut).map(|report| report.retries.len()).sum::<usize>();
        assert_eq!(shown as u64 + cut.omitted.retries, (DEPLOYMENTS * RETRIES_MAX) as u64);
        let most_tried = |report: &LastReport| {
            let least = all - report.retries.len() as u32;
            report.retries.iter().all(|retry| retry.attempt > least)
        };
        assert!(reports(&cut).all(most_tried));
    }

    #[test]
    fn the_words_of_lines_are_cut_where_they_alone_have_no_room() {
        let mut whole = answer(10, 10);
        let mut line = whole.deployments[0].clone();
        (line.message, line.report) = ("\u{1}".repeat(VIEW_MESSAGE_BYTES_MAX), None);
        whole.deployments = vec![line; DEPLOYMENTS_PER_DEVICE_MAX];
        let cut = abridged(whole, 128 * 1024);
        assert!(bytes(&cut) <= 128 * 1024, "{} bytes", bytes(&cut));
        assert_eq!(cut.omitted.texts, DEPLOYMENTS_PER_DEVICE_MAX as u64);
    }
}
