//! `muster auth`, `enroll` and `revoke`: identities and their rights on the bus.
//!
//! One directory of keys is authoritative ([`key_store`]): a command writes a change to the registry of users before it
//! sends it to a server. Only a revocation needs a server, to which [`push`] sends it; an enrolment needs none, because a
//! token proves itself. `muster_identity` has the rules.

mod children;
mod clients;
pub(crate) mod error;
mod init;
mod key_store;
mod leaf;
mod push;
mod rotate;
mod send;
mod upgrade;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use muster_contract::{DeviceKey, SiteId, Timestamp};
use muster_identity::{KeyPair, Role, UserEntry, claims, creds, jwt};
use muster_service::clock::Clock;
use serde::Serialize;

use self::error::AuthError;
use self::key_store::{KeyStore, failed, write_file};
pub(crate) use self::key_store::{LEAVES, SERVER_CONFIG};
use crate::config::{AuthCommand, Connection, ConnectionArgs, CredsArgs, EnrollArgs, Format, RevokeArgs};
use crate::error::CtlError;
use crate::render;
use crate::terminal::Terminal;

/// The context of the commands for identities.
pub(crate) struct AuthContext<'a> {
    /// The format of answers.
    pub format: Format,
    /// The terminal of answers.
    pub terminal: &'a mut Terminal,
    /// The clock.
    pub clock: &'a dyn Clock,
    /// The connection to a server, for commands that send to one.
    pub connection: &'a ConnectionArgs,
}

/// The result of `muster auth init`.
#[derive(Debug, Serialize)]
pub struct InitResult {
    /// The directory.
    pub dir: PathBuf,
    /// The file that a server's configuration includes.
    pub config: PathBuf,
}

/// The result of `muster auth upgrade`: the directory has the accounts and keys of this release.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeResult {
    /// The directory.
    pub dir: PathBuf,
    /// The file that a server's configuration includes.
    pub config: PathBuf,
    /// Names of the added accounts.
    pub new_accounts: Vec<String>,
    /// Services and people whose credentials in the directory were signed again.
    pub renewed: Vec<UserEntry>,
    /// Those whose credentials are elsewhere; the operator must renew them.
    pub to_renew: Vec<UserEntry>,
}

/// The result of `muster auth rotate`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RotateResult {
    /// The directory.
    pub dir: PathBuf,
    /// The role with a new signing key.
    pub role: String,
    /// Services and people whose credentials in the directory were signed again.
    pub renewed: Vec<UserEntry>,
    /// Those of the role whose credentials are elsewhere; the operator must renew them.
    pub to_renew: Vec<UserEntry>,
    /// Devices that need a new token.
    pub devices: Vec<String>,
}

/// The result of `muster auth leaf`.
#[derive(Debug, Serialize)]
pub struct LeafResult {
    /// The site.
    pub site: SiteId,
    /// The file that the configuration of its server includes.
    pub config: PathBuf,
    /// The credentials of its server at the hub.
    pub creds: PathBuf,
    /// Whether the site's account is new: the hub's servers do not have it yet.
    pub new: bool,
}

/// The result of an enrolment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EnrollResult {
    /// The entry of the registry.
    #[serde(flatten)]
    pub entry: UserEntry,
    /// The token, if it was not written to a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<String>,
    /// The file with the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Whether this command created the key.
    pub key_made_here: bool,
    /// Whether the hub has the token for the device.
    pub sent: bool,
}

/// The result of a revocation.
#[derive(Debug, Serialize)]
pub struct RevokeResult {
    /// The revoked entries.
    pub revoked: Vec<UserEntry>,
    /// Their sites with a server of their own, which accepts them until an operator copies a file there.
    pub sites: BTreeSet<SiteId>,
}

/// `muster auth …`
///
/// # Errors
/// The command is against the rules, a file is unusable, or no server can be reached.
pub(crate) async fn run(context: &mut AuthContext<'_>, command: AuthCommand) -> Result<(), CtlError> {
    match command {
        AuthCommand::Init(args) => {
            let made = init::run(&args, context.now())?;
            context.show(&made, |made, _| render::auth::made(made))
        }
        AuthCommand::List(args) => {
            // Closes the directory: printing may take long, and other commands use it meanwhile.
            let registry = KeyStore::open(&args.dir)?.into_registry();
            context.show(&registry, render::auth::registry)
        }
        AuthCommand::Creds(args) => give_creds(context, args),
        AuthCommand::Clients => clients::list(context).await,
        AuthCommand::Leaf(args) => {
            let made = leaf::run(&args, context.now())?;
            context.show(&made, |made, _| render::auth::leaf(made))
        }
        AuthCommand::Upgrade(args) => {
            let upgraded = upgrade::run(&args, context.now())?;
            context.show(&upgraded, |upgraded, _| render::auth::upgraded(upgraded))
        }
        AuthCommand::Rotate(args) => {
            let rotated = rotate::run(&args, context.now())?;
            context.show(&rotated, |rotated, _| render::auth::rotated(rotated))
        }
        AuthCommand::Push(args) => {
            let connection = context.connection.check()?;
            let mut store = KeyStore::open(&args.dir)?;
            let tokens = store.sign_accounts(context.now())?;
            push::run(&store, tokens, &connection).await?;
            let out = store.registry.users.iter().filter(|entry| entry.is_revoked()).cloned().collect();
            let out = RevokeResult::of(&store, out);
            drop(store);
            context.show(&out, |out, _| render::auth::pushed(out))
        }
    }
}

/// Replaces a file as a whole by one that only its owner can read.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write_secret(path: &Path, text: &str) -> Result<(), AuthError> {
    write_file(path, text, true)
}

/// Locks a directory of keys of any release, so that nothing in it changes until the lock is dropped.
///
/// # Errors
/// The directory has no keys, or cannot be locked.
pub(crate) fn lock_keys(dir: &Path) -> Result<impl Sized + use<>, AuthError> {
    KeyStore::open_of_any_release(dir)
}

/// `muster enroll`
///
/// # Errors
/// As [`run`]; also if another key is revoked and no server could be reached, and then the token is delivered as well.
pub(crate) async fn enroll(context: &mut AuthContext<'_>, args: EnrollArgs) -> Result<(), CtlError> {
    if let Some(identity) = &args.spiffe {
        return clients::accept(context, identity, &args).await;
    }
    // Bad settings are reported before anything changes.
    let connection = if args.replace || args.send { Some(context.connection.check()?) } else { None };
    let mut store = KeyStore::open(args.dir.as_deref().unwrap_or(Path::new("")))?;
    let pair = args.creds_file.as_deref().map(key_of_file).transpose()?;
    let key = chosen_key(&store, &args, pair.as_ref().map(|(pair, _)| pair))?;
    let name = args.device.to_string();
    let before = store.registry.revocations();
    let (role, valid) = (Role::Device.as_str(), Some(args.valid.0));
    let admitted = store.registry.enroll(&name, role, &key, context.now(), valid, args.replace);
    let entry = admitted.map_err(AuthError::from)?;
    let user = user(&store, &entry);
    let token = claims::device(&store.signer(Role::Device)?, &user, &args.device).map_err(AuthError::from)?;
    let others_out = before != store.registry.revocations();
    // Either writes the registry.
    let accounts = if others_out {
        Some(store.sign_accounts(context.now())?)
    } else {
        store.write_registry()?;
        None
    };
    // The servers get a revocation first, because the steps after it may fail and nothing repeats this one.
    let pushed = match (accounts, &connection) {
        (Some(accounts), Some(connection)) => notify_servers(&store, accounts, connection).await,
        _ => Ok(()),
    };
    let known = entry.clone();
    let given = deliver(&store, &args, entry, token, pair, connection.as_ref()).await;
    let out = others_out.then(|| RevokeResult::of(&store, vec![known]));
    drop(store);
    if let Some(out) = out {
        // The output may be the token alone.
        context.terminal.print_note(&render::auth::not_yet(&out));
    }
    let shown =
        given.map_err(CtlError::from).and_then(|admitted| context.show(&admitted, render::auth::admitted));
    combine_errors(context, pushed, shown)
}

/// Returns the error of two steps; if both failed, it prints the second one.
fn combine_errors(
    context: &mut AuthContext<'_>,
    pushed: Result<(), AuthError>,
    shown: Result<(), CtlError>,
) -> Result<(), CtlError> {
    let Err(unpushed) = pushed else { return shown };
    if let Some(words) = shown.err().and_then(|error| error.words()) {
        context.terminal.print_note(&words);
    }
    Err(unpushed.into())
}

/// Delivers the token: writes it to a file, sends it over the hub, or returns it for the output.
async fn deliver(
    store: &KeyStore,
    args: &EnrollArgs,
    entry: UserEntry,
    token: String,
    pair: Option<(KeyPair, bool)>,
    connection: Option<&Connection>,
) -> Result<EnrollResult, AuthError> {
    let (file, key_made_here) = match (&args.creds_file, pair, &args.output) {
        (Some(file), Some((pair, new)), _) => {
            write_file(file, &creds::to_text(&token, &init::seed(&pair)?), true)?;
            (Some(file.clone()), new)
        }
        (_, _, Some(file)) => {
            write_file(file, &format!("{token}\n"), false)?;
            (Some(file.clone()), false)
        }
        _ => (None, false),
    };
    let sent = match connection.filter(|_| args.send) {
        Some(connection) => send::run(store, &args.device, &token, connection).await.map(|()| true)?,
        None => false,
    };
    let jwt = (file.is_none() && !sent).then_some(token);
    Ok(EnrollResult { entry, jwt, file, key_made_here, sent })
}

/// `muster revoke`
///
/// # Errors
/// As [`run`]; also if it is recorded, and no server could be reached.
pub(crate) async fn revoke(context: &mut AuthContext<'_>, args: RevokeArgs) -> Result<(), CtlError> {
    if let Some(identity) = &args.spiffe {
        return clients::revoke(context, identity, args.child.as_ref()).await;
    }
    let connection = context.connection.check()?;
    let mut store = KeyStore::open(args.dir.as_deref().unwrap_or(Path::new("")))?;
    let (registry, now) = (&mut store.registry, context.now());
    let revoked = match &args.device {
        Some(device) => registry.revoke_name(&device.to_string(), now),
        None => registry.revoke_key(args.key.as_deref().unwrap_or_default(), now),
    };
    let revoked = revoked.map_err(AuthError::from)?;
    let accounts = store.sign_accounts(context.now())?;
    notify_servers(&store, accounts, &connection).await?;
    let out = RevokeResult::of(&store, revoked);
    drop(store);
    context.show(&out, |out, _| render::auth::revoked(out))
}

async fn notify_servers(
    store: &KeyStore,
    accounts: Vec<String>,
    connection: &Connection,
) -> Result<(), AuthError> {
    push::run(store, accounts, connection).await.map_err(|why| AuthError::NotPushed(Box::new(why)))
}

fn give_creds(context: &mut AuthContext<'_>, args: CredsArgs) -> Result<(), CtlError> {
    let mut store = KeyStore::open(&args.vault.dir)?;
    let name = args.name.unwrap_or_else(|| args.role.as_str().to_owned());
    let label: Result<muster_contract::DeviceId, _> = name.parse();
    // The name is used as a file name and in a table: an identifier is safe in both.
    label.map_err(|error| CtlError::Name(error.to_string()))?;
    let file = args.output.unwrap_or_else(|| store.path(&format!("creds/{name}.creds")));
    let valid = args.valid.map(|valid| valid.0);
    let signed = sign_user(&mut store, args.role, &args.sites, &name, file, context.now(), valid)?;
    store.write_registry()?;
    signed.write()?;
    drop(store);
    let SignedCreds { entry, is_new_key: key_made_here, file, .. } = signed;
    let admitted = EnrollResult { entry, jwt: None, file: Some(file), key_made_here, sent: false };
    context.show(&admitted, render::auth::admitted)
}

/// Credentials whose user is in the registry in memory. They are written after the registry: nobody has a token that the
/// registry on disk does not know.
struct SignedCreds {
    entry: UserEntry,
    is_new_key: bool,
    file: PathBuf,
    text: String,
}

impl SignedCreds {
    fn write(&self) -> Result<(), AuthError> {
        write_file(&self.file, &self.text, true)
    }
}

/// As [`sign_user`], for the sites that the credentials file names already, if any.
fn sign_service(
    store: &mut KeyStore,
    role: Role,
    name: &str,
    file: PathBuf,
    now: u64,
    valid: Option<u64>,
) -> Result<SignedCreds, AuthError> {
    let sites = sites_of_file(&file);
    sign_user(store, role, &sites, name, file, now, valid)
}

/// The sites that the token of a credentials file names.
fn sites_of_file(file: &Path) -> Vec<SiteId> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let token = creds::token(&text).and_then(|token| jwt::read(token).ok());
    let tags = token.map(|token| token.nats.tags).unwrap_or_default();
    tags.iter().filter_map(|tag| tag.strip_prefix("site:")?.parse().ok()).collect()
}

/// Enrols a service or a person in the registry in memory, and signs the credentials.
fn sign_user(
    store: &mut KeyStore,
    role: Role,
    sites: &[SiteId],
    name: &str,
    file: PathBuf,
    now: u64,
    valid: Option<u64>,
) -> Result<SignedCreds, AuthError> {
    if role != Role::Margo && !sites.is_empty() {
        return Err(AuthError::NoSites(role.as_str()));
    }
    let (pair, is_new_key) = key_of_file(&file)?;
    let entry = store.registry.enroll(name, role.as_str(), &pair.public_key(), now, valid, false)?;
    let signers = store.authority.signers();
    let (signer, user) = (store.signer(role)?, user(store, &entry));
    let token = match role {
        Role::Margo => claims::margo(&signer, &user, name, (!sites.is_empty()).then_some(sites))?,
        _ => claims::service(&signer, &user, role, name, &signers)?,
    };
    Ok(SignedCreds { entry, is_new_key, file, text: creds::to_text(&token, &init::seed(&pair)?) })
}

fn user<'a>(store: &'a KeyStore, entry: &'a UserEntry) -> claims::User<'a> {
    let account = Role::of(&entry.role).map_or("", |role| store.authority.account(role.account()));
    claims::User { account, key: &entry.key, issued: entry.issued, expires: entry.expires }
}

/// The key to enrol: that of the file, else the given one, else the recorded one.
fn chosen_key(store: &KeyStore, args: &EnrollArgs, pair: Option<&KeyPair>) -> Result<String, AuthError> {
    if let Some(key) = pair.map(KeyPair::public_key).or_else(|| args.key.clone()) {
        return Ok(key);
    }
    let name = args.device.to_string();
    let recorded = store.registry.users.iter().filter(|entry| entry.name == name && entry.role == "device");
    // A revoked key is enrolled only if the command names it.
    let recorded = recorded.filter(|entry| !entry.is_revoked()).max_by_key(|entry| entry.issued);
    recorded.map(|entry| entry.key.clone()).ok_or(AuthError::NoKey(name))
}

/// The key of a credentials file, or a new one without the file; returns whether it is new.
fn key_of_file(path: &Path) -> Result<(KeyPair, bool), AuthError> {
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let pair = creds::seed(&text).and_then(|seed| KeyPair::from_seed(seed).ok());
            pair.map(|pair| (pair, false)).ok_or_else(|| AuthError::NoCreds(path.to_owned()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok((KeyPair::new_user(), true)),
        Err(error) => Err(failed("read", path)(error)),
    }
}

impl RevokeResult {
    fn of(store: &KeyStore, revoked: Vec<UserEntry>) -> Self {
        let devices = revoked.iter().filter(|entry| entry.role == Role::Device.as_str());
        let sites = devices.filter_map(|entry| Some(entry.name.parse::<DeviceKey>().ok()?.site));
        let sites = sites.filter(|site| store.authority.sites.contains_key(site)).collect();
        Self { revoked, sites }
    }
}

impl AuthContext<'_> {
    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().as_second()).unwrap_or(0)
    }

    pub(crate) fn show<T: Serialize>(
        &mut self,
        found: &T,
        render: impl FnOnce(&T, Timestamp) -> String,
    ) -> Result<(), CtlError> {
        match self.format {
            Format::Json => self.terminal.print_json(&(key_store::json(found) + "\n"))?,
            Format::Table => self.terminal.print(&render(found, self.clock.now()))?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{InitArgs, LeafArgs, VaultArgs};

    #[test]
    fn only_sites_with_a_server_of_their_own_need_a_copied_revocation() {
        let place = tempfile::tempdir().unwrap();
        let args = VaultArgs { dir: place.path().join("auth") };
        let (name, resolver_dir) = ("fleet".to_owned(), "accounts".to_owned());
        init::run(&InitArgs { vault: args.clone(), name, resolver_dir }, 1).unwrap();
        let site = "harbour".parse().unwrap();
        leaf::run(&LeafArgs { site, vault: args.clone() }, 1).unwrap();
        let mut store = KeyStore::open(&args.dir).unwrap();
        let mut out = |name: &str, role: Role| {
            let key = KeyPair::new_user().public_key();
            store.registry.enroll(name, role.as_str(), &key, 1, None, false).unwrap();
            let revoked = store.registry.revoke_key(&key, 2).unwrap();
            RevokeResult::of(&store, revoked)
        };
        let shown = serde_json::to_value(out("harbour/crane", Role::Device)).unwrap();
        assert_eq!(shown["sites"], serde_json::json!(["harbour"]));
        assert!(out("plant7/press-4", Role::Device).sites.is_empty(), "its server is the hub's");
        assert!(out("harbour", Role::Ingest).sites.is_empty(), "no device");
    }
}
