//! Describes the worst error of kept counts: the code that most devices report, with one of them. One answer has
//! [`LOOKED_AT_MAX`] looks: each deployment costs one, and where sites are named, for which no ranking is kept,
//! so does each code and each device.

use std::ops::RangeInclusive;

use muster_contract::DeviceKey;
use muster_contract::status::LOOKED_AT_MAX;

use super::super::error_index::Often;
use super::super::fleet::Fleet;
use super::super::totals::Site;
use super::filter::Filter;

impl Fleet {
    /// The most frequent error of what passes, if only deployments and sites are filtered by; `targets` pass.
    pub(super) fn worst_error(&self, filter: &Filter<'_>, targets: u64) -> Option<String> {
        let places = filter.places(self);
        let mut looks = LOOKED_AT_MAX;
        let mut worst: Option<(u32, Often<'_>)> = None;
        for number in self.deployments_of(filter) {
            // One without an error costs a look too.
            let Some(left) = looks.checked_sub(1) else { break };
            looks = left;
            let error_index = &self.totals.deployment(number).error_index;
            let found = match &places {
                None => error_index.worst(),
                Some(places) => error_index.worst_at(places, &mut looks),
            };
            if let Some(found) = found
                && worst.is_none_or(|(_, held)| found.count > held.count)
            {
                worst = Some((number, found));
            }
        }
        let (number, Often { code, count, first }) = worst?;
        let error = self.error_count(number, code, count, first)?;
        let least = if looks == 0 { "at least " } else { "" };
        let of = match filter.deployment {
            Some(_) => format!("on {least}{count} of {targets}"),
            None => format!("of {} on {least}{count}", self.totals.deployment(number).id),
        };
        Some(format!("{code} {of}, such as {first}: {}", error.example.message))
    }

    /// The deployments that a question about deployments and sites is about.
    fn deployments_of(&self, filter: &Filter<'_>) -> impl Iterator<Item = u32> {
        let all = filter.deployment.is_none().then(|| self.totals.deployment_numbers.values().copied());
        filter.deployment.into_iter().chain(all.into_iter().flatten())
    }
}

impl Filter<'_> {
    /// The devices of the sites that are filtered by; none where no site is.
    fn places(&self, fleet: &Fleet) -> Option<Vec<RangeInclusive<DeviceKey>>> {
        let totals = &fleet.totals;
        let sites = self.sites.iter().filter_map(|site| totals.site_numbers.get(*site));
        let span = |number: &u32| fleet.span_of(totals.site(*number));
        (!self.sites.is_empty()).then(|| sites.filter_map(span).collect())
    }
}

impl Fleet {
    /// From the first to the last device of a site; none of an empty site.
    pub(in crate::fold) fn span_of(&self, site: &Site) -> Option<RangeInclusive<DeviceKey>> {
        let key = |number: u32| self.key_of(&self.devices[number as usize]);
        let (first, last) = (site.members.iter().next()?, site.members.last()?);
        Some(key(first)..=key(last))
    }
}
