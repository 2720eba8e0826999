//! Identities: what was made, who is in, until when, and who is out. No seed is ever shown.

use muster_contract::Timestamp;
use muster_identity::{Entry, OUT_WITHIN, Roster};

use super::paint::{BAD, PLAIN, UNSURE, WELL, styled};
use super::table::{Cell, Table};
use super::words::{plural, span};
use crate::auth::{Admitted, LEAVES, Leaf, Made, Out, SERVER_CONFIG, Upgraded};

/// A directory of keys that was made, and what comes next.
pub fn made(made: &Made) -> String {
    let Made { dir, config } = made;
    let (dir, config) = (dir.display(), config.display());
    format!(
        "made {dir}: keep it on one machine, and keep a backup\n\
         \n\
         1. in the configuration of nats-server, beside jetstream and tls:   include {config}\n\
         \x20  (by its path from that configuration; nats-server knows no other)\n\
         2. each service with its own credentials:                           --creds {dir}/creds/SERVICE.creds\n\
         \x20  muster-rollup also with those for the mirrors that people read: --readers-creds {dir}/creds/keeper.creds\n\
         3. each device:   muster enroll SITE/DEVICE --dir {dir} --key U…\n"
    )
}

/// A directory that was upgraded, and what comes next.
pub fn upgraded(upgraded: &Upgraded) -> String {
    let Upgraded { dir, config, new_accounts, renewed, to_renew } = upgraded;
    let (dir, config) = (dir.display(), config.display());
    let accounts = match new_accounts.is_empty() {
        true => "no account is new".to_owned(),
        false => format!("new accounts: {}", new_accounts.join(", ")),
    };
    let signed = plural(renewed.len() as u64, "credentials file");
    let mut text = format!(
        "upgraded {dir}: {accounts}; {signed} signed again in {dir}/creds; no device needs a new key or token\n\
         \n\
         1. tell the running servers:   muster auth push --dir {dir}\n\
         \x20  (they also find it in {config} at their next start). People are refused until they have their\n\
         \x20  credentials of step 3; devices and services go on\n\
         2. start muster-rollup with    --readers-creds {dir}/creds/keeper.creds\n\
         \x20  and give every service its file of {dir}/creds again, so that it knows the role of a requester\n\
         3. give people their files of {dir}/creds again"
    );
    match to_renew.is_empty() {
        true => text += "\n",
        false => text += ", and renew those that lie elsewhere:\n",
    }
    for entry in to_renew {
        let Entry { name, role, .. } = entry;
        text += &format!("       muster auth creds {role} --name {name} --dir {dir} -o THEIR-FILE\n");
    }
    text
}

/// What was made for a site's server, and what comes next.
pub fn leaf(made: &Leaf) -> String {
    let Leaf { site, config, creds, new } = made;
    let (config, creds) = (config.display(), creds.display());
    let hub =
        if *new { "`muster auth push`, so that its servers know the site's account; and in" } else { "in" };
    format!(
        "made {config} and {creds} for the server of {site}\n\
         \n\
         1. at the hub: {hub} its configuration\n\
         \x20     leafnodes {{ listen: \"0.0.0.0:7422\", tls {{ cert_file: \"…\", key_file: \"…\" }} }}\n\
         2. at the site, in the configuration of its nats-server, with the paths of the two files there:\n\
         \x20     include {SERVER_CONFIG}\n\
         \x20     jetstream {{ domain: {site}, store_dir: \"…\" }}\n\
         \x20     leafnodes {{ remotes: [{{ urls: [\"tls://HUB:7422\"], account: $DEVICES, credentials: \"…\" }}] }}\n\
         3. its devices:   --nats-url with the address of that server; their JWTs are the same\n\
         \n\
         Whom you put out later, that server learns from {config} as `muster revoke` writes it: carry it there and reload.\n"
    )
}

/// Everybody who was ever let in.
pub fn roster(roster: &Roster, now: Timestamp) -> String {
    let mut table = Table::new(&["NAME", "ROLE", "STATE", "UNTIL", "KEY"]);
    let mut users: Vec<&Entry> = roster.users.iter().collect();
    users.sort_by(|a, b| (&a.role, &a.name, a.issued).cmp(&(&b.role, &b.name, b.issued)));
    for entry in users {
        let (state, style) = match entry {
            _ if entry.is_revoked() => ("out", BAD),
            _ if !entry.is_in(seconds(now)) => ("expired", UNSURE),
            _ => ("in", WELL),
        };
        let until = if state == "in" { until(entry, now) } else { String::new() };
        let name = Cell::styled(entry.name.clone(), PLAIN);
        let (role, key) = (entry.role.clone(), entry.key.clone());
        table.row([name, role.into(), Cell::styled(state, style), until.into(), key.into()]);
    }
    table.to_string()
}

/// Somebody who was let in. A token without a file is data and stands alone.
pub fn admitted(admitted: &Admitted, now: Timestamp) -> String {
    let Admitted { entry, jwt, file, key_made_here, sent } = admitted;
    if let Some(jwt) = jwt {
        return format!("{jwt}\n");
    }
    let file = match file {
        Some(file) => file.display().to_string(),
        None if *sent => "the hub has the JWT for it, and its agent takes it up by itself".to_owned(),
        None => String::new(),
    };
    let mut text = format!("{} is in as {}, {}: {file}\n", entry.name, entry.role, until(entry, now));
    if *key_made_here && entry.role == "device" {
        let warning = "its key was made HERE, not on the device: the file is a secret, and whoever copies it is the device";
        text += &format!("{}\n", styled(UNSURE, warning));
    }
    text
}

/// Those who were put out.
pub fn revoked(out: &Out) -> String {
    let line = |entry: &Entry| {
        let seconds = OUT_WITHIN.as_secs();
        format!("{} ({}, {}) is out within {seconds} seconds\n", entry.name, entry.role, entry.key)
    };
    out.revoked.iter().map(line).collect::<String>() + "a server confirmed it\n" + &not_yet(out)
}

/// The account that was handed to the servers.
pub fn pushed(out: &Out) -> String {
    let keys = plural(out.revoked.len() as u64, "key");
    format!("a server confirmed the accounts, with {keys} out\n{}", not_yet(out))
}

/// Where those who are out are in until somebody carries a file: no site's server hears of it from the hub.
pub fn not_yet(out: &Out) -> String {
    let line = |site| {
        let words = format!(
            "whoever of {site} is out is still in at the site's own server, until {LEAVES}/{site}/{SERVER_CONFIG} is \
             carried there and that server has reloaded"
        );
        styled(UNSURE, &words) + "\n"
    };
    out.sites.iter().map(line).collect()
}

fn until(entry: &Entry, now: Timestamp) -> String {
    let left = |expires: u64| span(expires.saturating_sub(seconds(now)));
    entry.expires.map_or_else(|| "for ever".to_owned(), |expires| format!("for {}", left(expires)))
}

fn seconds(now: Timestamp) -> u64 {
    u64::try_from(now.as_second()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_out_is_in_at_a_sites_own_server_until_it_is_told() {
        let entry = Entry {
            name: "harbour/crane".to_owned(),
            role: "device".to_owned(),
            key: "U".to_owned(),
            issued: 100,
            expires: None,
            revoked: Some(100),
        };
        let out = |sites| Out { revoked: vec![entry.clone()], sites };
        let nowhere = out(Default::default());
        assert!(!revoked(&nowhere).contains("carried") && !pushed(&nowhere).contains("carried"));
        let harbour = out(["harbour".parse().unwrap()].into());
        for shown in [revoked(&harbour), pushed(&harbour)] {
            assert!(
                shown.contains("is still in at the site's own server, until leaves/harbour/nats-server.conf"),
                "{shown}"
            );
        }
    }

    #[test]
    fn a_roster_says_who_is_in_and_who_is_out() {
        let entry = |name: &str, role: &str, expires, revoked| Entry {
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
        let shown = roster(&Roster { users, account_issued: 1 }, Timestamp::from_second(200).unwrap());
        let shown = anstream::adapter::strip_str(&shown).to_string();
        let expected = "NAME    ROLE    STATE    UNTIL     KEY\n\
                        a/b     device  in       for 1h    U\n\
                        a/c     device  expired            U\n\
                        a/d     device  out                U\n\
                        ingest  ingest  in       for ever  U\n";
        assert_eq!(shown, expected);
    }
}
