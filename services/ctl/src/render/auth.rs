//! Renders the results of the commands for identities: created files, enrolled and revoked users. It shows no seed.

use std::collections::BTreeSet;

use muster_contract::http_device::HttpClient;
use muster_contract::{DeviceId, Timestamp};
use muster_identity::{DISCONNECT_WITHIN, UserEntry, UserRegistry};

use super::colour::{BAD, PLAIN, UNSURE, WELL, styled};
use super::format::{clean, plural, span};
use super::table::{Cell, Table};
use crate::auth::{
    EnrollResult, InitResult, LEAVES, LeafResult, RevokeResult, RotateResult, SERVER_CONFIG, UpgradeResult,
};
use crate::login::LoggedIn;

/// The code alone, or the file with the token.
pub fn logged_in(done: &LoggedIn) -> String {
    match (&done.code, &done.file) {
        (Some(code), _) => format!("{}\n", clean(code)),
        (None, file) => {
            let file = file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
            let LoggedIn { name, role, url, expires_at, .. } = done;
            format!(
                "logged in to {} as {} ({}) until {expires_at}; the token is in {file}, for you alone\n",
                clean(url),
                clean(name),
                clean(role)
            )
        }
    }
}

/// The instruction that comes with a code.
pub(crate) fn code_for(done: &LoggedIn) -> String {
    let LoggedIn { name, role, expires_at, .. } = done;
    format!("{} ({}): paste this code into the login page before {expires_at}\n", clean(name), clean(role))
}

/// The created directory of keys, and the next steps.
pub(crate) fn made(made: &InitResult) -> String {
    let InitResult { dir, config } = made;
    let (dir, config) = (dir.display(), config.display());
    format!(
        "created {dir}: keep it on one machine, and keep a backup\n\
         \n\
         1. in the configuration of nats-server, beside jetstream and tls:   include {config}\n\
         \x20  (by its path from that configuration; nats-server knows no other)\n\
         2. each service with its own credentials:                           --creds {dir}/creds/SERVICE.creds\n\
         \x20  muster-rollup also with those for the mirrors that people read: --readers-creds {dir}/creds/keeper.creds\n\
         3. each device:   muster enroll SITE/DEVICE --dir {dir} --key U…\n"
    )
}

/// The upgraded directory, and the next steps.
pub(crate) fn upgraded(upgraded: &UpgradeResult) -> String {
    let UpgradeResult { dir, config, new_accounts, renewed, to_renew } = upgraded;
    let (dir, config) = (dir.display(), config.display());
    let accounts = if new_accounts.is_empty() {
        "no account is new".to_owned()
    } else {
        format!("new accounts: {}", new_accounts.join(", "))
    };
    let signed = plural(renewed.len() as u64, "credentials file");
    let mut text = format!(
        "upgraded {dir}: {accounts}; {signed} signed again in {dir}/creds; no device needs a new key or token\n\
         \n\
         1. update the running servers: muster auth push --dir {dir}\n\
         \x20  (they also find it in {config} at their next start). People are refused until they have their\n\
         \x20  credentials of step 3; devices and services go on\n\
         2. start muster-rollup with    --readers-creds {dir}/creds/keeper.creds\n\
         \x20  and give every service its file of {dir}/creds again, so that it knows the role of a requester\n\
         3. give people their files of {dir}/creds again"
    );
    if to_renew.is_empty() {
        text += "\n";
    } else {
        text += ", and renew those that lie elsewhere:\n";
    }
    for entry in to_renew {
        let UserEntry { name, role, .. } = entry;
        text += &format!("       muster auth creds {role} --name {name} --dir {dir} -o THEIR-FILE\n");
    }
    text
}

/// The new signing key, and the next steps.
pub(crate) fn rotated(rotated: &RotateResult) -> String {
    let RotateResult { dir, role, renewed, to_renew, devices } = rotated;
    let (dir, signed) = (dir.display(), plural(renewed.len() as u64, "credentials file"));
    let mut text = format!(
        "{role} has a new signing key in {dir}; {signed} signed again in {dir}/creds\n\
         \n\
         1. muster auth push --dir {dir}   from then on servers refuse every token of the former key\n\
         2. give every service its file of {dir}/creds again and restart it; people of the role get theirs, too\n"
    );
    for entry in to_renew {
        let UserEntry { name, role, .. } = entry;
        text += &format!("       muster auth creds {role} --name {name} --dir {dir} -o THEIR-FILE\n");
    }
    if !devices.is_empty() {
        let count = plural(devices.len() as u64, "device");
        text +=
            &format!("3. {count} cannot connect until a new token is carried there; reports wait on them:\n");
    }
    for device in devices {
        text += &format!(
            "       muster enroll {device} --dir {dir} -o TOKEN.jwt, then muster-agent accept there\n"
        );
    }
    text
}

/// The created files of a site's server, and the next steps.
pub(crate) fn leaf(made: &LeafResult) -> String {
    let LeafResult { site, config, creds, new } = made;
    let (config, creds) = (config.display(), creds.display());
    let hub =
        if *new { "`muster auth push`, so that its servers know the site's account; and in" } else { "in" };
    format!(
        "created {config} and {creds} for the server of {site}\n\
         \n\
         1. at the hub: {hub} its configuration\n\
         \x20     leafnodes {{ listen: \"0.0.0.0:7422\", tls {{ cert_file: \"…\", key_file: \"…\" }} }}\n\
         2. at the site, in the configuration of its nats-server, with the paths of the two files there:\n\
         \x20     include {SERVER_CONFIG}\n\
         \x20     jetstream {{ domain: {site}, store_dir: \"…\" }}\n\
         \x20     leafnodes {{ remotes: [{{ urls: [\"tls://HUB:7422\"], account: $DEVICES, credentials: \"…\" }}] }}\n\
         3. its devices:   --nats-url with the address of that server; their JWTs are the same\n\
         \n\
         After a revocation, copy {config} to that server and reload it: until then the server accepts the revoked devices.\n"
    )
}

/// The table of all users that were ever enrolled.
pub fn registry(registry: &UserRegistry, now: Timestamp) -> String {
    let mut table = Table::new(&["NAME", "ROLE", "STATE", "UNTIL", "KEY"]);
    let mut users: Vec<&UserEntry> = registry.users.iter().collect();
    users.sort_by(|a, b| (&a.role, &a.name, a.issued).cmp(&(&b.role, &b.name, b.issued)));
    for entry in users {
        let (state, style) = match entry {
            _ if entry.is_revoked() => ("revoked", BAD),
            _ if !entry.is_valid(seconds(now)) => ("expired", UNSURE),
            _ => ("enrolled", WELL),
        };
        let until = if state == "enrolled" { until(entry, now) } else { String::new() };
        let name = Cell::styled(entry.name.clone(), PLAIN);
        let (role, key) = (entry.role.clone(), entry.key.clone());
        table.row([name, role.into(), Cell::styled(state, style), until.into(), key.into()]);
    }
    table.to_string()
}

/// A decision about a client certificate.
pub fn client(client: &HttpClient) -> String {
    let HttpClient { spiffe_id, device, children, revoked, poll_lease_ms, .. } = client;
    if *revoked {
        let lease = poll_lease_ms.map_or_else(String::new, |lease| {
            let lease = span(lease / 1_000);
            format!("; its devices stay fresh until {lease} after its last request")
        });
        return format!("{spiffe_id} ({device}) is revoked; gateways refuse its next request{lease}\n");
    }
    let names = named(children.as_ref());
    let behind = if names.is_empty() { String::new() } else { format!(", and speaks for {names}") };
    let lease = poll_lease_ms.map_or_else(String::new, |lease| {
        format!("; its devices are fresh for {} after each request", span(lease / 1_000))
    });
    format!("{spiffe_id} is accepted as {device}{behind}{lease}\n")
}

fn named(children: Option<&BTreeSet<DeviceId>>) -> String {
    let names = children.into_iter().flatten().map(ToString::to_string);
    names.collect::<Vec<_>>().join(", ")
}

/// The table of client certificates.
pub fn clients(clients: &[HttpClient]) -> String {
    let mut table = Table::new(&["DEVICE", "STATE", "POLL LEASE", "CHILDREN", "SPIFFE ID"]);
    for client in clients {
        let (state, style) = if client.revoked { ("revoked", BAD) } else { ("accepted", WELL) };
        let device = Cell::styled(client.device.to_string(), PLAIN);
        let children = named(client.children.as_ref());
        let lease = client.poll_lease_ms.map_or_else(|| "-".to_owned(), |lease| span(lease / 1_000));
        let spiffe_id = client.spiffe_id.clone();
        table.row([device, Cell::styled(state, style), lease.into(), children.into(), spiffe_id.into()]);
    }
    table.to_string()
}

/// The enrolled user. A token without a file is data, so the text is the token alone.
pub(crate) fn admitted(admitted: &EnrollResult, now: Timestamp) -> String {
    let EnrollResult { entry, jwt, file, key_made_here, sent } = admitted;
    if let Some(jwt) = jwt {
        return format!("{jwt}\n");
    }
    let file = match file {
        Some(file) => file.display().to_string(),
        None if *sent => {
            "the hub has the JWT for it, and its agent switches to it without a restart".to_owned()
        }
        None => String::new(),
    };
    let mut text = format!("{} is enrolled as {}, {}: {file}\n", entry.name, entry.role, until(entry, now));
    if *key_made_here && entry.role == "device" {
        let warning = "its key was created HERE, not on the device: the file is a secret, and a copy of it acts as the device";
        text += &format!("{}\n", styled(UNSURE, warning));
    }
    text
}

/// The revoked users.
pub(crate) fn revoked(out: &RevokeResult) -> String {
    let line = |entry: &UserEntry| {
        let seconds = DISCONNECT_WITHIN.as_secs();
        format!(
            "{} ({}, {}) is revoked; the servers disconnect it within {seconds} seconds\n",
            entry.name, entry.role, entry.key
        )
    };
    out.revoked.iter().map(line).collect::<String>() + "a server confirmed it\n" + &not_yet(out)
}

/// The confirmation that a server has the accounts.
pub(crate) fn pushed(out: &RevokeResult) -> String {
    let keys = plural(out.revoked.len() as u64, "key");
    format!("a server confirmed the accounts, with {keys} revoked\n{}", not_yet(out))
}

/// The sites whose own server still accepts revoked devices: it does not learn of a revocation from the hub.
pub(crate) fn not_yet(out: &RevokeResult) -> String {
    let line = |site| {
        let words = format!(
            "the server of {site} still accepts its revoked devices: copy {LEAVES}/{site}/{SERVER_CONFIG} to it and \
             reload it"
        );
        styled(UNSURE, &words) + "\n"
    };
    out.sites.iter().map(line).collect()
}

fn until(entry: &UserEntry, now: Timestamp) -> String {
    let left = |expires: u64| span(expires.saturating_sub(seconds(now)));
    entry.expires.map_or_else(|| "without end".to_owned(), |expires| format!("for {}", left(expires)))
}

fn seconds(now: Timestamp) -> u64 {
    u64::try_from(now.as_second()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sites_own_server_accepts_revoked_devices_until_it_reloads() {
        let entry = UserEntry {
            name: "harbour/crane".to_owned(),
            role: "device".to_owned(),
            key: "U".to_owned(),
            issued: 100,
            expires: None,
            revoked: Some(100),
        };
        let out = |sites| RevokeResult { revoked: vec![entry.clone()], sites };
        let nowhere = out(Default::default());
        assert!(!revoked(&nowhere).contains("still accepts") && !pushed(&nowhere).contains("still accepts"));
        let harbour = out(["harbour".parse().unwrap()].into());
        for shown in [revoked(&harbour), pushed(&harbour)] {
            assert!(
                shown.contains(
                    "harbour still accepts its revoked devices: copy leaves/harbour/nats-server.conf"
                ),
                "{shown}"
            );
        }
    }

    #[test]
    fn a_registry_lists_each_key_as_enrolled_expired_or_revoked() {
        let entry = |name: &str, role: &str, expires, revoked| UserEntry {
            name: name.to_owned(),
            role: role.to_owned(),
            key: "U".to_owned(),
            issued: 100,
            expires,
            revoked,
        };
        let users = vec![
            entry("ingest", "ingest", None, None),
            entry("a/b", "device", Some(7300), None),
            entry("a/c", "device", Some(150), None),
            entry("a/d", "device", Some(7300), Some(100)),
        ];
        let shown =
            registry(&UserRegistry { users, account_issued: 1 }, Timestamp::from_second(200).unwrap());
        let shown = anstream::adapter::strip_str(&shown).to_string();
        let expected = "NAME    ROLE    STATE     UNTIL        KEY\n\
                        a/b     device  enrolled  for 1h       U\n\
                        a/c     device  expired                U\n\
                        a/d     device  revoked                U\n\
                        ingest  ingest  enrolled  without end  U\n";
        assert_eq!(shown, expected);
    }
}
