//! A device on the command line: `SITE/DEVICE`, or its name alone if only one site has such a device. The module
//! [`names`](crate::names) looks the site up once there is a connection.

use std::fmt;
use std::str::FromStr;

use muster_contract::{DeviceId, DeviceKey};

/// A device as a person names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceArg {
    /// `SITE/DEVICE`.
    Key(DeviceKey),
    /// The device's name alone.
    Short(DeviceId),
}

impl DeviceArg {
    /// The device, if its site is known.
    pub const fn key(&self) -> Option<&DeviceKey> {
        match self {
            Self::Key(key) => Some(key),
            Self::Short(_) => None,
        }
    }
}

impl FromStr for DeviceArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return text.parse().map(Self::Key).map_err(|error| format!("{error}"));
        }
        text.parse().map(Self::Short).map_err(|error| format!("{error}"))
    }
}

impl fmt::Display for DeviceArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => key.fmt(f),
            Self::Short(name) => name.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_its_site_or_its_name_alone() {
        let key: DeviceArg = "plant7/press-4".parse().unwrap();
        assert_eq!(key.key().map(ToString::to_string).as_deref(), Some("plant7/press-4"));
        let short: DeviceArg = "press-4".parse().unwrap();
        assert_eq!((short.key(), short.to_string()), (None, "press-4".to_owned()));
        for text in ["", "Press 4", "plant7/", "a/b/c"] {
            assert!(text.parse::<DeviceArg>().is_err(), "{text}");
        }
    }
}
