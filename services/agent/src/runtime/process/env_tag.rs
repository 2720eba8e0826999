//! The tag in the environment of a unit's processes, by which any agent recognises them.
//!
//! Two variables: `MUSTER_UNIT=<site>/<device>/<deployment>/<component>/<digest prefix>` and `MUSTER_DATA_DIR`, the
//! directory of the agent that started it. They are set before the first instruction of the program, so at no time
//! does a unit run that cannot be found. Children inherit them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use muster_contract::DeviceKey;

use crate::runtime::{DIGEST_PREFIX_CHARS, Unit, UnitName};

/// The variable with the unit.
pub(super) const UNIT_VARIABLE: &str = "MUSTER_UNIT";
/// The variable with the agent's data directory.
pub(super) const DATA_DIR_VARIABLE: &str = "MUSTER_DATA_DIR";

/// The unit of a process, and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EnvTag {
    /// The unit.
    pub(super) name: UnitName,
    /// The version: the first hex digits of its digest.
    pub(super) digest_prefix: String,
}

impl EnvTag {
    /// The tag of a unit.
    pub(super) fn of(unit: &Unit) -> Self {
        Self { name: unit.name(), digest_prefix: unit.digest_prefix() }
    }

    /// The value of [`UNIT_VARIABLE`].
    pub(super) fn text(&self, device: &DeviceKey) -> String {
        let UnitName { deployment, component } = &self.name;
        format!("{device}/{deployment}/{component}/{}", self.digest_prefix)
    }

    /// Reads the tag in an environment as `/proc` shows it, if it is of this device and data directory.
    pub(super) fn read(environment: &[u8], device: &DeviceKey, data_dir: &Path) -> Option<Self> {
        (value(environment, DATA_DIR_VARIABLE)? == data_dir.as_os_str()).then_some(())?;
        let text = value(environment, UNIT_VARIABLE)?.to_str()?;
        let rest = text.strip_prefix(&format!("{device}/"))?;
        let mut parts = rest.split('/');
        let name =
            UnitName { deployment: parts.next()?.parse().ok()?, component: parts.next()?.parse().ok()? };
        let digest_prefix = parts.next().filter(|prefix| prefix.len() == DIGEST_PREFIX_CHARS)?.to_owned();
        parts.next().is_none().then_some(Self { name, digest_prefix })
    }
}

fn value<'a>(environment: &'a [u8], name: &str) -> Option<&'a OsStr> {
    environment
        .split(|byte| *byte == 0)
        .filter_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
        .map(OsStr::from_bytes)
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(environment: &str) -> Option<EnvTag> {
        let device = "plant/press".parse().unwrap();
        EnvTag::read(environment.replace('|', "\0").as_bytes(), &device, Path::new("/data"))
    }

    #[test]
    fn only_a_mark_of_this_device_and_directory_is_read() {
        let good = "A=1|MUSTER_UNIT=plant/press/line/web/0123456789abcdef|MUSTER_DATA_DIR=/data|B=2|";
        let tag = read(good).unwrap();
        assert_eq!(tag.name.deployment.as_str(), "line");
        assert_eq!(tag.name.component.as_str(), "web");
        assert_eq!(tag.text(&"plant/press".parse().unwrap()), "plant/press/line/web/0123456789abcdef");
        for (other, why) in [
            (good.replace("press/", "press2/"), "another device"),
            (good.replace("=/data", "=/data2"), "another directory"),
            (good.replace("/web/", "/"), "a part missing"),
            (good.replace("abcdef", "abc"), "a cut digest"),
            (good.replace("abcdef", "abcdef/x"), "a part too many"),
            (good.replace("MUSTER_UNIT", "XMUSTER_UNIT"), "another variable"),
            (String::new(), "no environment, as a kernel thread has"),
        ] {
            assert_eq!(read(&other), None, "{why}");
        }
    }
}
