//! The labels of a commit: what each level says, and what that makes of each device. The nearer level wins on the same
//! label.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_contract::labels::{self as rules, Labels};
use muster_contract::limits::LABEL_VALUES_MAX;
use muster_contract::{DeviceKey, LabelKey, LabelValue};

use super::Own;
use crate::content::Interner;
use crate::margo::{Level, labels};
use crate::problems::Problems;

/// What a level says of a label, and the file that says it.
type Word<'a> = (LabelValue, &'a str);

/// All labels of a commit.
#[derive(Debug, Default)]
pub(super) struct Tags<'a> {
    levels: BTreeMap<Level, BTreeMap<LabelKey, Word<'a>>>,
    /// Every value of each label.
    values: BTreeMap<LabelKey, BTreeSet<LabelValue>>,
}

impl<'a> Tags<'a> {
    /// Takes a file of labels in.
    pub(super) fn read(&mut self, level: &Level, file: &'a str, text: &[u8], problems: &mut Problems) {
        let own = self.levels.entry(level.clone()).or_default();
        for labels::Said { label, value } in labels::read(file, text, problems) {
            let line = || labels::line_of(text, &label);
            let values = self.values.entry(label.clone()).or_default();
            values.insert(value.clone());
            // Said once, by the file with the first value that is too many.
            if values.len() == LABEL_VALUES_MAX + 1 {
                let rule = format!(
                    "has more than {LABEL_VALUES_MAX} values in this commit: it tells devices apart and groups none"
                );
                problems.push(file, line, &label, rule);
            }
            if let Some((_, other)) = own.get(&label) {
                problems.push(file, line, &label, format!("is in {other} already, for the same devices"));
                continue;
            }
            own.insert(label, (value, file));
        }
    }

    /// The labels of each device that has some. One that would have too many is a problem of the nearest file.
    pub(super) fn compose(
        &self,
        devices: &BTreeSet<DeviceKey>,
        interner: &mut Interner,
        own_problems: &mut Own,
    ) -> BTreeMap<DeviceKey, Arc<Labels>> {
        let mut composed = BTreeMap::new();
        let mut blamed = BTreeSet::new();
        for key in devices {
            let levels = [Level::Fleet, Level::Site(key.site.clone()), Level::Device(key.clone())];
            let (mut own, mut nearest) = (Labels::new(), "");
            for (label, (value, file)) in levels.iter().filter_map(|level| self.levels.get(level)).flatten() {
                own.insert(label.clone(), value.clone());
                nearest = file;
            }
            if own.is_empty() {
                continue;
            }
            if let Err(rule) = rules::check(&own) {
                own_problems.devices.insert(key.clone());
                if blamed.insert(nearest) {
                    let rule = format!("with what is said further up, {key} {rule} as labels");
                    own_problems.problems.push(nearest, || None, "", rule);
                }
            }
            composed.insert(key.clone(), interner.share_labels(own));
        }
        composed
    }
}
