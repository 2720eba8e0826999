//! A device's answer that has no room in a message is cut so that it has: long texts first, then components, the least severe
//! of each deployment, and what the device says it is last of all. What is left out is counted. No standing is.

use std::cmp::Reverse;

use muster_contract::limits::VIEW_MESSAGE_BYTES_MAX;
use muster_contract::query::{DeviceAnswer, DeviceOmitted, LastReport};
use muster_contract::state::{ComponentStatus, StatusError, cut};

use crate::aggregate::severity;

/// Longest text where even an answer without components has no room.
const TEXT_BYTES_LEAST: usize = 64;

/// How much is shown.
#[derive(Debug, Clone, Copy)]
struct Measure {
    text_bytes: usize,
    /// Components of each deployment.
    components: usize,
    capabilities: bool,
}

/// The answer as it is where it takes at most so many bytes as JSON; else as much of it as does. One whose standings alone
/// take more is given all the same.
pub fn abridged(whole: DeviceAnswer, bytes_max: usize) -> DeviceAnswer {
    if bytes(&whole) <= bytes_max {
        return whole;
    }
    let most = reports(&whole).map(|report| report.components.len()).max().unwrap_or(0);
    let mut measure = Measure { text_bytes: VIEW_MESSAGE_BYTES_MAX, components: most, capabilities: true };
    loop {
        let answer = measure.of(&whole);
        let bytes = bytes(&answer);
        if bytes <= bytes_max {
            return answer;
        }
        match measure.less(bytes_max as f64 / bytes as f64) {
            Some(less) => measure = less,
            None => return answer,
        }
    }
}

impl Measure {
    /// The next smaller one; none where this is the least. `share` is how much of this one there is room for.
    fn less(self, share: f64) -> Option<Self> {
        if let Some(most) = self.components.checked_sub(1) {
            // Components are of about the same size; a little less than their share finds room most of the time.
            let components = ((self.components as f64 * share * 0.95) as usize).min(most);
            return Some(Self { components, ..self });
        }
        if self.text_bytes > TEXT_BYTES_LEAST {
            return Some(Self { text_bytes: TEXT_BYTES_LEAST, ..self });
        }
        self.capabilities.then_some(Self { capabilities: false, ..self })
    }

    fn of(self, whole: &DeviceAnswer) -> DeviceAnswer {
        let (mut answer, mut omitted) = (whole.clone(), DeviceOmitted::default());
        for report in answer.deployments.iter_mut().filter_map(|line| line.report.as_mut()) {
            omitted.components += keep_worst(&mut report.components, self.components);
            for text in texts(report) {
                if text.len() > self.text_bytes {
                    *text = cut(std::mem::take(text), self.text_bytes);
                    omitted.texts += 1;
                }
            }
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
    errors.flat_map(words).chain(reason)
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

fn bytes(answer: &DeviceAnswer) -> usize {
    serde_json::to_vec(answer).map_or(usize::MAX, |json| json.len())
}
