//! Makes the tokens of a hub: the operator that signs accounts, five accounts with one signing key for each role, and users.
//!
//! The token of a user with a role has no rights: the server takes them from the account, by the key that signed the token.
//! So a stolen signing key can only make users of its role, and a role's rights change in one place.

use std::collections::BTreeMap;

use muster_contract::{DeviceKey, SiteId};
use nkeys::KeyPair;
use serde_json::{Map, Value, json};

use crate::exchange::{self, Account};
use crate::jwt::{self, TokenError};
use crate::requester::Signers;
use crate::rights::Rights;
use crate::roles::{Role, UNLIMITED, inbox};

/// Limit of streams in HUB: the contract's and some of the fleet's owner.
const HUB_STREAMS_MAX: i64 = 32;
/// Limit of consumers on a stream of HUB: those of partitions and services. Mirrors do not count.
const HUB_CONSUMERS_MAX: i64 = 1024;
/// Limit of streams in READERS: the mirrors.
const MIRRORS_MAX: i64 = 2;
/// Limit of consumers on a mirror.
pub const MIRROR_CONSUMERS_MAX: i64 = 1024;
/// Connections to HUB over all servers: tens of services with replicas, and connections that a restart leaves behind.
const HUB_CONNECTIONS_MAX: i64 = 1024;
/// Connections of devices over all servers. A larger fleet has several hubs, or raises this with `max_connections`.
const DEVICE_CONNECTIONS_MAX: i64 = 60_000;
/// Connections to READERS: keepers.
const READERS_CONNECTIONS_MAX: i64 = 64;
/// Connections of people.
const PEOPLE_CONNECTIONS_MAX: i64 = 1024;
/// Connections of checkers.
const CHECKERS_CONNECTIONS_MAX: i64 = 256;
/// Connections of the system account.
const SYSTEM_CONNECTIONS_MAX: i64 = 32;
/// The server's default limit of connections.
const SERVER_CONNECTIONS_DEFAULT: i64 = 65_536;
/// Connections left for sites' leaf nodes and for clients that are not authenticated yet.
const CONNECTIONS_RESERVE: i64 = 2048;

// With any number of devices and people, a server with defaults has room for services, keepers and leaf nodes.
const _: () = assert!(
    HUB_CONNECTIONS_MAX
        + DEVICE_CONNECTIONS_MAX
        + READERS_CONNECTIONS_MAX
        + PEOPLE_CONNECTIONS_MAX
        + CHECKERS_CONNECTIONS_MAX
        + SYSTEM_CONNECTIONS_MAX
        + CONNECTIONS_RESERVE
        <= SERVER_CONNECTIONS_DEFAULT
);
/// The request that pushes an account's new token to a running server.
pub const UPDATE_ACCOUNT: &str = "$SYS.REQ.CLAIMS.UPDATE";
/// The request for the connections of a server, or of all servers with the name `PING`.
pub const LIST_CONNECTIONS: &str = "$SYS.REQ.SERVER.*.CONNZ";
/// The request that a server closes a connection.
pub const END_CONNECTION: &str = "$SYS.REQ.SERVER.*.KICK";
/// The event of a server that a client has connected.
pub const CONNECTED: &str = "$SYS.ACCOUNT.*.CONNECT";
/// The event of a server that a client has disconnected.
pub const DISCONNECTED: &str = "$SYS.ACCOUNT.*.DISCONNECT";

/// The data of a fleet's accounts.
#[derive(Debug, Clone)]
pub struct Fleet<'a> {
    /// The name of the fleet.
    pub name: &'a str,
    /// The public key of each account.
    pub accounts: &'a BTreeMap<Account, String>,
    /// The public signing key of each role.
    pub signers: &'a BTreeMap<Role, String>,
    /// Revoked public keys, each with the second up to which its tokens are revoked.
    pub revocations: &'a BTreeMap<String, u64>,
}

impl<'a> Fleet<'a> {
    /// The public key of an account.
    pub fn account(&self, account: Account) -> &'a str {
        self.accounts.get(&account).map_or("", String::as_str)
    }
}

/// The data of a user's token.
#[derive(Debug, Clone)]
pub struct User<'a> {
    /// Public key of the account it belongs to.
    pub account: &'a str,
    /// Its own public key.
    pub key: &'a str,
    /// When the token is issued: Unix seconds.
    pub issued: u64,
    /// When the token expires: Unix seconds; never if `None`.
    pub expires: Option<u64>,
}

/// The operator's own token, which names the system account.
///
/// # Errors
/// The key cannot sign.
pub fn operator(key: &KeyPair, name: &str, system: &str, issued: u64) -> Result<String, TokenError> {
    let nats = json!({ "type": "operator", "version": 2, "system_account": system });
    jwt::sign(key, claims(&key.public_key(), name, issued, None, &nats))
}

/// The token of the system account, which has no streams.
///
/// # Errors
/// The key cannot sign.
pub fn system(operator: &KeyPair, key: &str, issued: u64) -> Result<String, TokenError> {
    let mut limits = limits(0, 0, 0);
    limits["conn"] = json!(SYSTEM_CONNECTIONS_MAX);
    let nats = json!({ "type": "account", "version": 2, "limits": limits });
    jwt::sign(operator, claims(key, "system", issued, None, &nats))
}

/// The token of each account, in the order of [`Account::ALL`].
///
/// The tokens do not limit storage: the server's `max_file_store` does, because only its owner knows the disk. Each account
/// revokes all revoked keys, because a revocation does not name the account of the key.
///
/// # Errors
/// The key cannot sign.
pub fn fleet(operator: &KeyPair, fleet: &Fleet<'_>, issued: u64) -> Result<Vec<String>, TokenError> {
    let sign = |account: Account| {
        let mut nats = account_of(fleet, &limits_of(account), |role| role.account() == account);
        nats["imports"] = exchange::imports(account, |from| fleet.account(from)).into();
        nats["exports"] = exchange::exports(account).into();
        let name = match account {
            Account::Hub => fleet.name.to_owned(),
            other => format!("{} {}", fleet.name, other.as_str().to_lowercase()),
        };
        jwt::sign(operator, claims(fleet.account(account), &name, issued, None, &nats))
    };
    Account::ALL.into_iter().map(sign).collect()
}

fn limits_of(account: Account) -> Value {
    let (connections, leaves, mut limits) = match account {
        Account::Hub => (HUB_CONNECTIONS_MAX, 0, limits(UNLIMITED, HUB_STREAMS_MAX, HUB_CONSUMERS_MAX)),
        Account::Readers => {
            (READERS_CONNECTIONS_MAX, 0, limits(UNLIMITED, MIRRORS_MAX, MIRROR_CONSUMERS_MAX))
        }
        Account::Devices => (DEVICE_CONNECTIONS_MAX, 0, limits(0, 0, 0)),
        Account::People => (PEOPLE_CONNECTIONS_MAX, 0, limits(0, 0, 0)),
        Account::Checkers => (CHECKERS_CONNECTIONS_MAX, 0, limits(0, 0, 0)),
    };
    limits["conn"] = json!(connections);
    limits["leaf"] = json!(leaves);
    limits
}

pub(crate) fn account_of(fleet: &Fleet<'_>, limits: &Value, of: impl Fn(&Role) -> bool) -> Value {
    let scope = |(role, key): (&Role, &String)| json!({ "kind": "user_scope", "key": key, "role": role.as_str(), "template": role.template() });
    let signers: Vec<_> = fleet.signers.iter().filter(|(role, _)| of(role)).map(scope).collect();
    let mut nats = json!({ "type": "account", "version": 2, "limits": limits, "signing_keys": signers });
    if !fleet.revocations.is_empty() {
        nats["revocations"] = json!(fleet.revocations);
    }
    nats
}

/// The token of a device. Its name and tags are identifiers of the contract, which cannot contain a wildcard: the server
/// would honour one.
///
/// # Errors
/// The key cannot sign.
pub fn device(signer: &KeyPair, user: &User<'_>, device: &DeviceKey) -> Result<String, TokenError> {
    let tags = [format!("site:{}", device.site), format!("device:{}", device.device)];
    let tags = [&tags[..], &["role:device".to_owned()]].concat();
    signed_user(signer, user, &device.to_string(), &tags)
}

/// The token of a user with another role. A service's token and a gateway's also name the signing keys of the roles of people,
/// so that they can derive the role of a requester, or of a person who logs in.
///
/// # Errors
/// The key cannot sign.
pub fn service(
    signer: &KeyPair,
    user: &User<'_>,
    role: Role,
    name: &str,
    signers: &BTreeMap<Role, String>,
) -> Result<String, TokenError> {
    let mut tags = vec![format!("role:{}", role.as_str())];
    if role.knows_signers() {
        let people = signers.iter().filter(|(role, _)| role.account() == Account::People);
        tags.extend(people.map(|(role, key)| Signers::tag(*role, key)));
    }
    signed_user(signer, user, name, &tags)
}

/// The token of a gateway for devices of these sites; `None` for all sites. The server inserts the sites into the role's rights.
///
/// # Errors
/// The key cannot sign.
pub fn margo(
    signer: &KeyPair,
    user: &User<'_>,
    name: &str,
    sites: Option<&[SiteId]>,
) -> Result<String, TokenError> {
    let mut tags = vec![format!("role:{}", Role::Margo.as_str())];
    match sites {
        Some(sites) => tags.extend(sites.iter().map(|site| format!("site:{site}"))),
        None => tags.push("site:*".to_owned()),
    }
    signed_user(signer, user, name, &tags)
}

/// The token of the user that pushes new account tokens to servers and has no other right.
///
/// # Errors
/// The key cannot sign.
pub fn pusher(system: &KeyPair, key: &str, issued: u64) -> Result<String, TokenError> {
    let Rights { publish, subscribe } = pusher_rights(key);
    let nats = json!({
        "type": "user", "version": 2, "subs": UNLIMITED, "data": UNLIMITED, "payload": UNLIMITED,
        "pub": { "allow": publish }, "sub": { "allow": subscribe }, "tags": ["role:push"],
    });
    jwt::sign(system, claims(key, "push", issued, None, &nats))
}

/// The rights of the user that pushes account tokens.
pub fn pusher_rights(key: &str) -> Rights {
    Rights { publish: vec![UPDATE_ACCOUNT.to_owned()], subscribe: vec![format!("{}.>", inbox(key))] }
}

/// The rights of the user that counts connections.
pub fn watcher_rights(key: &str) -> Rights {
    Rights {
        publish: [LIST_CONNECTIONS, END_CONNECTION].map(str::to_owned).into(),
        subscribe: vec![format!("{}.>", inbox(key)), CONNECTED.to_owned(), DISCONNECTED.to_owned()],
    }
}

/// The token of the user that counts connections and closes surplus ones; it has no other right.
///
/// # Errors
/// The key cannot sign.
pub fn watcher(system: &KeyPair, key: &str, issued: u64) -> Result<String, TokenError> {
    let Rights { publish, subscribe } = watcher_rights(key);
    let nats = json!({
        "type": "user", "version": 2, "subs": UNLIMITED, "data": UNLIMITED, "payload": UNLIMITED,
        "pub": { "allow": publish }, "sub": { "allow": subscribe }, "tags": ["role:watcher"],
    });
    jwt::sign(system, claims(key, "watcher", issued, None, &nats))
}

fn signed_user(signer: &KeyPair, user: &User<'_>, name: &str, tags: &[String]) -> Result<String, TokenError> {
    let nats = json!({ "type": "user", "version": 2, "issuer_account": user.account, "tags": tags });
    jwt::sign(signer, claims(user.key, name, user.issued, user.expires, &nats))
}

pub(crate) fn claims(
    sub: &str,
    name: &str,
    issued: u64,
    expires: Option<u64>,
    nats: &Value,
) -> Map<String, Value> {
    let mut claims = Map::new();
    claims.insert("sub".to_owned(), json!(sub));
    claims.insert("name".to_owned(), json!(name));
    claims.insert("iat".to_owned(), json!(issued));
    if let Some(expires) = expires {
        claims.insert("exp".to_owned(), json!(expires));
    }
    claims.insert("nats".to_owned(), nats.clone());
    claims
}

pub(crate) fn limits(storage: i64, streams: i64, consumers: i64) -> Value {
    json!({
        "subs": UNLIMITED, "data": UNLIMITED, "payload": UNLIMITED, "imports": UNLIMITED, "exports": UNLIMITED,
        "wildcards": true, "conn": UNLIMITED, "leaf": UNLIMITED,
        "mem_storage": storage, "disk_storage": storage, "streams": streams, "consumer": consumers,
    })
}

#[cfg(test)]
mod tests {
    use data_encoding::BASE64URL_NOPAD;
    use nkeys::KeyPairType;

    use super::*;

    fn key(kind: KeyPairType, byte: u8) -> KeyPair {
        KeyPair::new_from_raw(kind, [byte; 32]).unwrap()
    }

    fn tokens() -> String {
        let (operator_key, system_key) = (key(KeyPairType::Operator, 1), key(KeyPairType::Account, 2));
        let account_key = key(KeyPairType::Account, 3).public_key();
        let accounts = BTreeMap::from([
            (Account::Hub, account_key.clone()),
            (Account::Devices, key(KeyPairType::Account, 7).public_key()),
            (Account::Readers, key(KeyPairType::Account, 9).public_key()),
            (Account::People, key(KeyPairType::Account, 10).public_key()),
            (Account::Checkers, key(KeyPairType::Account, 11).public_key()),
        ]);
        let signer = key(KeyPairType::Account, 4);
        let user_key = key(KeyPairType::User, 5).public_key();
        let signers = BTreeMap::from([
            (Role::Device, signer.public_key()),
            (Role::Viewer, key(KeyPairType::Account, 8).public_key()),
            (Role::Checker, key(KeyPairType::Account, 12).public_key()),
        ]);
        let revocations = BTreeMap::from([(key(KeyPairType::User, 6).public_key(), 1_795_000_000)]);
        let described =
            Fleet { name: "fleet", accounts: &accounts, signers: &signers, revocations: &revocations };
        let accounts = fleet(&operator_key, &described, 1_795_000_001).unwrap();
        let user = User {
            account: &account_key,
            key: &user_key,
            issued: 1_795_000_000,
            expires: Some(1_797_592_000),
        };
        let users = [
            device(&signer, &user, &"plant7/press-4".parse().unwrap()),
            service(&signer, &user, Role::Ingest, "ingest", &signers),
            pusher(&system_key, &user_key, 1_795_000_000),
            watcher(&system_key, &user_key, 1_795_000_000),
        ];
        let before = [
            operator(&operator_key, "muster", &system_key.public_key(), 1_795_000_000),
            system(&operator_key, &system_key.public_key(), 1_795_000_000),
        ];
        let tokens = before.into_iter().chain(accounts.into_iter().map(Ok)).chain(users);
        tokens.map(|token| shown(&token.unwrap())).collect()
    }

    /// The claims as indented JSON, and the token.
    fn shown(token: &str) -> String {
        let body = BASE64URL_NOPAD.decode(token.split('.').nth(1).unwrap().as_bytes()).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        format!("{}\n{token}\n\n", serde_json::to_string_pretty(&body).unwrap())
    }

    #[test]
    fn tokens_have_not_changed() {
        let tokens = tokens();
        if std::env::var_os("UPDATE_SCHEMAS").is_some() {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/claims.golden"), &tokens).unwrap();
        }
        assert_eq!(tokens, include_str!("claims.golden"), "\n{tokens}");
    }

    #[test]
    fn a_user_of_a_role_carries_no_rights_of_its_own() {
        let signer = key(KeyPairType::Account, 4);
        let user =
            User { account: "A", key: &key(KeyPairType::User, 5).public_key(), issued: 1, expires: None };
        let token = device(&signer, &user, &"a/b".parse().unwrap()).unwrap();
        let body = BASE64URL_NOPAD.decode(token.split('.').nth(1).unwrap().as_bytes()).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let fields: Vec<&String> = body["nats"].as_object().unwrap().keys().collect();
        assert_eq!(fields, ["issuer_account", "tags", "type", "version"]);
    }
}
