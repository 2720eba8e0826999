//! A percentage as people write it.

use std::fmt;
use std::str::FromStr;

/// A whole percentage from 1% to 100%, written with its sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent(u8);

impl Percent {
    /// 100 %.
    pub const fn all() -> Self {
        Self(100)
    }

    /// The number, from 1 to 100.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Why a text is no percentage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a percentage: a whole number from 1% to 100%, with the sign")]
pub struct PercentError(String);

impl FromStr for Percent {
    type Err = PercentError;

    fn from_str(text: &str) -> Result<Self, PercentError> {
        let number = text.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        match number.and_then(|digits| digits.parse().ok()) {
            Some(number @ 1..=100) => Ok(Self(number)),
            _ => Err(PercentError(text.chars().take(20).collect())),
        }
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

crate::text::text_type!(Percent, { "type": "string", "pattern": "^([1-9][0-9]?|100)%$" });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_whole_and_from_1_to_100() {
        for (text, number) in [("1%", 1), ("95%", 95), ("100%", 100)] {
            let read: Percent = text.parse().unwrap();
            assert_eq!((read.get(), read.to_string().as_str()), (number, text));
        }
        for bad in ["0%", "101%", "5", "5 %", "+5%", "5.5%", "%", "", "999%"] {
            assert!(bad.parse::<Percent>().is_err(), "{bad}");
        }
    }
}
