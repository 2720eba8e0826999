//! The default name of a device (`--device @host`): the name stored in its data directory, otherwise the machine's
//! host name. It must be asked for, so that no device is named after a machine because a setting was forgotten.
//!
//! The stored name takes precedence: a re-created container has another host name, and is the same device as long as
//! it has the same data.

use std::fs;
use std::io;
use std::path::Path;

use muster_contract::{DeviceId, LabelError};

/// The setting that asks for the default name. It is not a valid device name.
pub(crate) const HOST: &str = "@host";
const FILE: &str = "device";
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// The error of a missing or invalid default name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NameError {
    /// The host name is not a valid device name.
    #[error("the host name cannot be used: {0}; set --device to a name instead of '{HOST}'")]
    Host(LabelError),
    /// The stored name is not a valid device name.
    #[error("the file '{FILE}' in the data directory is not a valid device name: {0}")]
    Kept(LabelError),
    /// A file cannot be read.
    #[error(
        "cannot read a name from the data directory or {HOST_NAME} ({0}); set --device to a name instead of '{HOST}'"
    )]
    Read(io::Error),
}

/// The name stored in a data directory, otherwise this machine's host name.
///
/// # Errors
/// Neither can be read, or it is not a valid device name.
pub(crate) fn resolve(data_dir: &Path) -> Result<DeviceId, NameError> {
    match fs::read_to_string(data_dir.join(FILE)) {
        Ok(kept) => kept.trim().parse().map_err(NameError::Kept),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            from_host_name(&fs::read_to_string(HOST_NAME).map_err(NameError::Read)?)
        }
        Err(error) => Err(NameError::Read(error)),
    }
}

/// Stores the name in an existing data directory.
///
/// # Errors
/// It cannot be written.
pub(crate) fn store(data_dir: &Path, device: &DeviceId) -> io::Result<()> {
    let (file, beside) = (data_dir.join(FILE), data_dir.join("device.new"));
    if fs::read_to_string(&file).is_ok_and(|kept| kept.trim() == device.as_str()) {
        return Ok(());
    }
    fs::write(&beside, format!("{device}\n")).and_then(|()| fs::rename(&beside, file))
}

/// The host name without its domain.
fn from_host_name(name: &str) -> Result<DeviceId, NameError> {
    let own = name.trim().split('.').next().unwrap_or_default();
    own.to_ascii_lowercase().parse().map_err(NameError::Host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_gives_its_name_without_its_domain() {
        assert_eq!(from_host_name("3F2A9C41D7E0\n").unwrap().as_str(), "3f2a9c41d7e0");
        assert_eq!(from_host_name("press-4.plant7.example").unwrap().as_str(), "press-4");
        assert!(from_host_name("press_4").unwrap_err().to_string().contains("press_4"));
        assert!(from_host_name("").is_err());
    }

    #[test]
    fn data_keep_their_device_whatever_the_host_is_called() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), &"a-device-of-this-test".parse().unwrap()).unwrap();
        assert_eq!(resolve(dir.path()).unwrap().as_str(), "a-device-of-this-test");
        fs::write(dir.path().join(FILE), "no name").unwrap();
        assert!(matches!(resolve(dir.path()), Err(NameError::Kept(_))));
    }
}
