//! The set of partitions that this process may own, as a person writes it: `0-15`, `0,3,8-11`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use muster_contract::limits::PARTITIONS;

/// A set of at least one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partitions(BTreeSet<u16>);

/// A text that is no set of partitions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a list of partitions from 0 to {last}, each named once, such as 0-15 or 0,3,8-11", last = PARTITIONS - 1)]
pub struct PartitionsError(String);

impl Partitions {
    /// The partitions, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().copied()
    }
}

impl FromStr for Partitions {
    type Err = PartitionsError;

    fn from_str(text: &str) -> Result<Self, PartitionsError> {
        let mut set = BTreeSet::new();
        for part in text.split(',') {
            let (from, to) = span(part.trim()).ok_or_else(|| PartitionsError(text.to_owned()))?;
            // A partition that is named twice is most likely a mistake.
            let is_new = (from..=to).all(|partition| set.insert(partition));
            if !is_new {
                return Err(PartitionsError(text.to_owned()));
            }
        }
        Ok(Self(set))
    }
}

impl fmt::Display for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u16::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

fn span(text: &str) -> Option<(u16, u16)> {
    let number = |text: &str| text.trim().parse().ok().filter(|number| *number < PARTITIONS);
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    Some((number(from)?, number(to)?)).filter(|(from, to)| from <= to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_a_list_of_numbers_and_spans() {
        let table = [("0-15", 16), ("3", 1), ("0,3,8-11", 6), ("1, 2 - 4", 4)];
        for (text, count) in table {
            assert_eq!(text.parse::<Partitions>().unwrap().iter().count(), count, "{text}");
        }
        for bad in ["", "16", "0-16", "3-1", "a", "0,,1", "-1", "0;1", "5,5", "0-3,2", "4-6,5-7"] {
            assert!(bad.parse::<Partitions>().is_err(), "{bad:?} was accepted");
        }
    }
}
