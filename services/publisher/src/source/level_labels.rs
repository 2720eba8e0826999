//! Reads the labels of each level of a commit, and composes those of each device. The nearer level wins on the same label.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_contract::labels::{self as rules, Labels};
use muster_contract::limits::LABEL_VALUES_MAX;
use muster_contract::{DeviceKey, LabelKey, LabelValue};

use super::device_problems::DeviceProblems;
use crate::content::Interner;
use crate::margo::{Level, labels};
use crate::problems::Problems;

/// The value of a label at a level, with its file.
type SourcedLabel<'a> = (LabelValue, &'a str);

/// All labels of a commit.
#[derive(Debug, Default)]
pub(super) struct LevelLabels<'a> {
    levels: BTreeMap<Level, BTreeMap<LabelKey, SourcedLabel<'a>>>,
    /// Every value of each label.
    values: BTreeMap<LabelKey, BTreeSet<LabelValue>>,
}

impl<'a> LevelLabels<'a> {
    /// Reads a file of labels.
    pub(super) fn read(&mut self, level: &Level, file: &'a str, text: &[u8], problems: &mut Problems) {
        let own = self.levels.entry(level.clone()).or_default();
        for labels::LabelEntry { label, value } in labels::read(file, text, problems) {
            let line = || labels::line_of(text, &label);
            let values = self.values.entry(label.clone()).or_default();
            values.insert(value.clone());
            // One problem, for the file with the first value beyond the limit.
            if values.len() == LABEL_VALUES_MAX + 1 {
                let rule = format!(
                    "has more than {LABEL_VALUES_MAX} values in this commit, so it does not group devices"
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

    /// The labels of each device that has some. Too many labels are a problem of the nearest file.
    pub(super) fn compose(
        &self,
        devices: &BTreeSet<DeviceKey>,
        interner: &mut Interner,
        own_problems: &mut DeviceProblems,
    ) -> BTreeMap<DeviceKey, Arc<Labels>> {
        let mut composed = BTreeMap::new();
        let mut reported_files = BTreeSet::new();
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
                if reported_files.insert(nearest) {
                    let rule = format!("with the labels of the levels above, {key} {rule} as labels");
                    own_problems.problems.push(nearest, || None, "", rule);
                }
            }
            composed.insert(key.clone(), interner.share_labels(own));
        }
        composed
    }
}
