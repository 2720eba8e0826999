//! The name of a device that nobody named by hand: the one its data directory has, else the machine's host name. Asked
//! for with `--device @host`, so that nobody gets a device called after a machine by forgetting a setting.
//!
//! The directory's name goes first: a container that is made anew has another host name, and is the same device as long
//! as it has the same data.

use std::fs;
use std::io;
use std::path::Path;

use muster_contract::{DeviceId, LabelError};

/// The setting that asks for it. No device can be called so.
pub const HOST: &str = "@host";
const FILE: &str = "device";
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// Why there is no name.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// The host name is no device's name.
    #[error("the host name cannot be used: {0}; name the device instead of '{HOST}'")]
    Host(LabelError),
    /// What is kept is no name.
    #[error("the data directory holds a file '{FILE}' that is no device's name: {0}")]
    Kept(LabelError),
    /// A file cannot be read.
    #[error(
        "neither the data directory nor {HOST_NAME} gives a name ({0}); name the device instead of '{HOST}'"
    )]
    Read(io::Error),
}

/// The name that a data directory has, else this machine's.
///
/// # Errors
/// There is none, or it is none for a device.
pub fn own(data_dir: &Path) -> Result<DeviceId, NameError> {
    match fs::read_to_string(data_dir.join(FILE)) {
        Ok(kept) => kept.trim().parse().map_err(NameError::Kept),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            of_host(&fs::read_to_string(HOST_NAME).map_err(NameError::Read)?)
        }
        Err(error) => Err(NameError::Read(error)),
    }
}

/// Notes the name in the data directory, which exists.
///
/// # Errors
/// It cannot be written.
pub fn keep(data_dir: &Path, device: &DeviceId) -> io::Result<()> {
    let (file, beside) = (data_dir.join(FILE), data_dir.join("device.new"));
    if fs::read_to_string(&file).is_ok_and(|kept| kept.trim() == device.as_str()) {
        return Ok(());
    }
    fs::write(&beside, format!("{device}\n")).and_then(|()| fs::rename(&beside, file))
}

/// The host's own name, without the domain it is in.
fn of_host(name: &str) -> Result<DeviceId, NameError> {
    let own = name.trim().split('.').next().unwrap_or_default();
    own.to_ascii_lowercase().parse().map_err(NameError::Host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_gives_its_name_without_its_domain() {
        assert_eq!(of_host("3F2A9C41D7E0\n").unwrap().as_str(), "3f2a9c41d7e0");
        assert_eq!(of_host("press-4.plant7.example").unwrap().as_str(), "press-4");
        assert!(of_host("press_4").unwrap_err().to_string().contains("press_4"));
        assert!(of_host("").is_err());
    }

    #[test]
    fn data_keep_their_device_whatever_the_host_is_called() {
        let dir = tempfile::tempdir().unwrap();
        keep(dir.path(), &"a-device-of-this-test".parse().unwrap()).unwrap();
        assert_eq!(own(dir.path()).unwrap().as_str(), "a-device-of-this-test");
        fs::write(dir.path().join(FILE), "no name").unwrap();
        assert!(matches!(own(dir.path()), Err(NameError::Kept(_))));
    }
}
