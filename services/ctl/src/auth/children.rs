//! The devices for which a gateway's certificate speaks: read from arguments or a file, and checked against all accepted
//! certificates. One device has one speaker. It does no IO but for the file.

use std::collections::BTreeSet;
use std::path::Path;

use muster_contract::http_device::{ClientIdentity, HTTP_CHILDREN_MAX, HttpClient};
use muster_contract::{DeviceId, DeviceKey};

use super::error::AuthError;
use crate::config::EnrollArgs;

/// The sign before a comment in a file.
const COMMENT: char = '#';

/// The devices that the arguments name.
///
/// # Errors
/// The file cannot be read, or a line of it names no device or one twice.
pub(super) fn named(args: &EnrollArgs) -> Result<BTreeSet<DeviceId>, AuthError> {
    let Some(path) = &args.children_file else { return Ok(args.children.iter().cloned().collect()) };
    let text = std::fs::read_to_string(path).map_err(|source| AuthError::File {
        doing: "read",
        path: path.clone(),
        source,
    })?;
    of_file(path, &text)
}

fn of_file(path: &Path, text: &str) -> Result<BTreeSet<DeviceId>, AuthError> {
    let mut devices = BTreeSet::new();
    for (at, line) in text.lines().enumerate() {
        let refuse = |rule: String| AuthError::ChildrenFile { path: path.to_owned(), line: at + 1, rule };
        let name = line.split(COMMENT).next().unwrap_or_default().trim();
        if name.is_empty() {
            continue;
        }
        let device: DeviceId =
            name.parse().map_err(|error: muster_contract::LabelError| refuse(error.to_string()))?;
        if !devices.insert(device) {
            return Err(refuse(format!("'{name}' is named twice")));
        }
        if devices.len() > HTTP_CHILDREN_MAX {
            return Err(refuse(format!("a gateway speaks for {HTTP_CHILDREN_MAX} devices at most")));
        }
    }
    Ok(devices)
}

/// Checks the devices of a gateway against the accepted certificates.
///
/// # Errors
/// A device has another speaker, or the gateway has too many.
pub(super) fn check(
    identity: &ClientIdentity,
    gateway: &DeviceKey,
    children: &BTreeSet<DeviceId>,
    clients: &[HttpClient],
) -> Result<(), AuthError> {
    let refuse = |device: &DeviceKey, rule: String| AuthError::Child {
        identity: identity.to_string(),
        device: device.to_string(),
        rule,
    };
    if children.len() > HTTP_CHILDREN_MAX {
        return Err(refuse(gateway, format!("a gateway speaks for {HTTP_CHILDREN_MAX} devices at most")));
    }
    if children.contains(&gateway.device) {
        return Err(refuse(gateway, "it is the gateway itself".to_owned()));
    }
    // Another certificate of the same gateway replaces one that ends.
    let is_other = |client: &&HttpClient| !client.revoked && client.device != *gateway;
    for client in clients.iter().filter(is_other) {
        let speaker = &client.spiffe_id;
        let devices = children.iter().map(|device| DeviceKey { device: device.clone(), ..gateway.clone() });
        if let Some(device) = devices.into_iter().find(|device| client.speaks_for(device)) {
            return Err(refuse(&device, format!("{speaker} speaks for it; revoke that first")));
        }
        if client.speaks_for(gateway) {
            return Err(refuse(gateway, format!("it is behind {speaker}; revoke that first")));
        }
    }
    Ok(())
}

/// The devices as they are recorded. A gateway stays one without devices: the versions of its manifests go on.
pub(super) fn recorded(
    gateway: &DeviceKey,
    children: BTreeSet<DeviceId>,
    clients: &[HttpClient],
) -> Option<BTreeSet<DeviceId>> {
    let was_gateway = clients.iter().any(|client| client.device == *gateway && client.children.is_some());
    (was_gateway || !children.is_empty()).then_some(children)
}

/// A client without one of its devices.
///
/// # Errors
/// It does not speak for the device.
pub(super) fn without(mut client: HttpClient, child: &DeviceId) -> Result<HttpClient, AuthError> {
    if client.children.as_mut().is_some_and(|children| children.remove(child)) {
        return Ok(client);
    }
    let (identity, device) = (client.spiffe_id, format!("{}/{child}", client.device.site));
    Err(AuthError::Child { identity, device, rule: "it is not".to_owned() })
}

#[cfg(test)]
mod tests {
    use muster_contract::Timestamp;
    use muster_contract::version::ApiVersion;

    use super::*;

    fn names(all: &[&str]) -> BTreeSet<DeviceId> {
        all.iter().map(|name| name.parse().unwrap()).collect()
    }

    fn client(name: &str, children: Option<&[&str]>) -> HttpClient {
        HttpClient {
            api_version: ApiVersion::V1,
            spiffe_id: identity(name).to_string(),
            device: format!("plant7/{name}").parse().unwrap(),
            children: children.map(names),
            poll_lease_ms: None,
            revoked: false,
            changed_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn identity(name: &str) -> ClientIdentity {
        format!("spiffe://a/margo/wfm/w/client/{name}").parse().unwrap()
    }

    #[test]
    fn a_file_is_refused_with_its_line() {
        let read = |text: &str| of_file(Path::new("children.txt"), text).map_err(|error| error.to_string());
        assert_eq!(
            read("# presses\npress-a\n\n press-b # the new one\n"),
            Ok(names(&["press-a", "press-b"]))
        );
        let wrong = read("press-a\nPress B\n").unwrap_err();
        assert!(wrong.starts_with("children.txt:2: 'Press B' is not a valid"), "{wrong}");
        assert_eq!(read("a\n\na\n").unwrap_err(), "children.txt:3: 'a' is named twice");
        let many: String = (0..=HTTP_CHILDREN_MAX).map(|at| format!("a{at}\n")).collect();
        assert!(read(&many).unwrap_err().starts_with("children.txt:33: "), "too many");
    }

    #[test]
    fn one_device_has_one_speaker() {
        let others = [client("gw-1", Some(&["a"])), client("b", None)];
        let gateway: DeviceKey = "plant7/gw-2".parse().unwrap();
        let check = |gateway: &DeviceKey, children: &[&str]| {
            check(&identity("gw-2"), gateway, &names(children), &others).map_err(|error| error.to_string())
        };
        assert_eq!(check(&gateway, &["c"]), Ok(()));
        for (children, word) in
            [(["a"], "gw-1 speaks for it"), (["b"], "client/b speaks"), (["gw-2"], "itself")]
        {
            let refused = check(&gateway, &children).unwrap_err();
            assert!(refused.contains(word), "{refused}");
        }
        let behind = check(&"plant7/a".parse().unwrap(), &[]).unwrap_err();
        assert!(behind.contains("it is behind"), "{behind}");
        assert_eq!(check(&"plant7/gw-1".parse().unwrap(), &["a"]), Ok(()), "another certificate of it");
    }

    #[test]
    fn a_gateway_stays_one_without_devices() {
        let gateway: DeviceKey = "plant7/gw-1".parse().unwrap();
        let clients = [client("gw-1", Some(&["a"]))];
        assert_eq!(recorded(&gateway, names(&[]), &clients), Some(names(&[])));
        assert_eq!(recorded(&gateway, names(&[]), &[]), None);
        assert_eq!(recorded(&gateway, names(&["a"]), &[]), Some(names(&["a"])));
        let [client] = clients;
        assert!(without(client.clone(), &"b".parse().unwrap()).is_err());
        assert_eq!(without(client, &"a".parse().unwrap()).unwrap().children, Some(names(&[])));
    }
}
