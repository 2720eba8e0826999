//! `muster auth`, `enroll` and `revoke`: who may do what on the bus.
//!
//! Everything is decided in one directory of keys ([`vault`]): what a command changes is in the roster before anybody
//! is told. Only putting somebody out needs a server, which [`push`] tells; letting in needs none, because a token
//! proves itself. The rules are `muster_identity`'s.

mod error;
mod init;
mod leaf;
mod push;
mod send;
mod upgrade;
mod vault;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use muster_contract::{DeviceKey, SiteId, Timestamp};
use muster_identity::{Entry, KeyPair, Role, claims, creds};
use muster_service::clock::Clock;
use serde::Serialize;

pub use error::AuthError;

pub(crate) use self::vault::{LEAVES, SERVER_CONFIG};
use self::vault::{Vault, failed, keep};
use crate::config::{AuthCommand, Connection, ConnectionArgs, CredsArgs, EnrollArgs, Format, RevokeArgs};
use crate::error::CtlError;
use crate::render;
use crate::terminal::Terminal;

/// What a command of this room works with.
pub struct Office<'a> {
    /// How answers are shown.
    pub format: Format,
    /// Where they are shown.
    pub terminal: &'a mut Terminal,
    /// What time it is.
    pub clock: &'a dyn Clock,
    /// How to reach a server, for what is to be handed to one.
    pub connection: &'a ConnectionArgs,
}

/// A directory of keys that was made.
#[derive(Debug, Serialize)]
pub struct Made {
    /// The directory.
    pub dir: PathBuf,
    /// What a server's configuration includes.
    pub config: PathBuf,
}

/// A directory that has the accounts and keys of this release now.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Upgraded {
    /// The directory.
    pub dir: PathBuf,
    /// What a server's configuration includes.
    pub config: PathBuf,
    /// Names of the accounts that were added.
    pub new_accounts: Vec<String>,
    /// Services and people whose credentials in the directory were signed again.
    pub renewed: Vec<Entry>,
    /// Those whose credentials lie elsewhere and must be renewed there.
    pub to_renew: Vec<Entry>,
}

/// What a site's server needs.
#[derive(Debug, Serialize)]
pub struct Leaf {
    /// The site.
    pub site: SiteId,
    /// What its configuration includes.
    pub config: PathBuf,
    /// By which it comes in at the hub.
    pub creds: PathBuf,
    /// Whether the site's account is new, so that the hub's servers have to learn of it.
    pub new: bool,
}

/// Somebody who was let in.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Admitted {
    /// The entry of the roster.
    #[serde(flatten)]
    pub entry: Entry,
    /// The token, where it was not written to a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<String>,
    /// The file it was written to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Whether the key was made here.
    pub key_made_here: bool,
    /// Whether the hub has it for the device.
    pub sent: bool,
}

/// Those who were put out.
#[derive(Debug, Serialize)]
pub struct Out {
    /// Their entries.
    pub revoked: Vec<Entry>,
    /// The sites of theirs that have a server of their own. It learns of this from a file that somebody carries there;
    /// until then they are in at it.
    pub sites: BTreeSet<SiteId>,
}

/// `muster auth …`
///
/// # Errors
/// What is asked for is against the rules, a file cannot be used, or no server can be reached.
pub async fn run(office: &mut Office<'_>, command: AuthCommand) -> Result<(), CtlError> {
    match command {
        AuthCommand::Init(args) => {
            let made = init::run(&args, office.now())?;
            office.show(&made, |made, _| render::auth::made(made))
        }
        AuthCommand::List(args) => {
            // Whoever reads what is printed may take his time, and others work with the directory meanwhile.
            let roster = Vault::open(&args.dir)?.into_roster();
            office.show(&roster, render::auth::roster)
        }
        AuthCommand::Creds(args) => give_creds(office, args),
        AuthCommand::Leaf(args) => {
            let made = leaf::run(&args, office.now())?;
            office.show(&made, |made, _| render::auth::leaf(made))
        }
        AuthCommand::Upgrade(args) => {
            let upgraded = upgrade::run(&args, office.now())?;
            office.show(&upgraded, |upgraded, _| render::auth::upgraded(upgraded))
        }
        AuthCommand::Push(args) => {
            let connection = office.connection.check()?;
            let mut vault = Vault::open(&args.dir)?;
            let tokens = vault.sign_accounts(office.now())?;
            push::run(&vault, tokens, &connection).await?;
            let out = vault.roster.users.iter().filter(|entry| entry.is_revoked()).cloned().collect();
            let out = Out::of(&vault, out);
            drop(vault);
            office.show(&out, |out, _| render::auth::pushed(out))
        }
    }
}

/// `muster enroll`
///
/// # Errors
/// As [`run`]; also when another key is out and no server could be told, and then the token is given out all the same.
pub async fn enroll(office: &mut Office<'_>, args: EnrollArgs) -> Result<(), CtlError> {
    // Bad settings are said before anything is changed.
    let connection = if args.replace || args.send { Some(office.connection.check()?) } else { None };
    let mut vault = Vault::open(&args.vault.dir)?;
    let pair = args.creds_file.as_deref().map(key_of_file).transpose()?;
    let key = chosen_key(&vault, &args, pair.as_ref().map(|(pair, _)| pair))?;
    let name = args.device.to_string();
    let before = vault.roster.revocations();
    let terms = (office.now(), Some(args.valid.0));
    let admitted = vault.roster.admit(&name, Role::Device.as_str(), &key, terms, args.replace);
    let entry = admitted.map_err(AuthError::from)?;
    let user = user(&vault, &entry);
    let token = claims::device(&vault.signer(Role::Device)?, &user, &args.device).map_err(AuthError::from)?;
    let others_out = before != vault.roster.revocations();
    let accounts = if others_out { Some(vault.sign_accounts(office.now())?) } else { None };
    vault.keep_roster()?;
    // Whoever is out is told of first: what comes after may fail, or find nobody who reads it, and nothing tells later.
    let pushed = match (accounts, &connection) {
        (Some(accounts), Some(connection)) => told(&vault, accounts, connection).await,
        _ => Ok(()),
    };
    let known = entry.clone();
    let given = give(&vault, &args, (entry, token), pair, connection.as_ref()).await;
    let out = others_out.then(|| Out::of(&vault, vec![known]));
    drop(vault);
    if let Some(out) = out {
        // The output may be the token alone.
        office.terminal.say(&render::auth::not_yet(&out));
    }
    let shown =
        given.map_err(CtlError::from).and_then(|admitted| office.show(&admitted, render::auth::admitted));
    both(office, pushed, shown)
}

/// The errors of two things that were both tried. One that is not returned is said.
fn both(
    office: &mut Office<'_>,
    pushed: Result<(), AuthError>,
    shown: Result<(), CtlError>,
) -> Result<(), CtlError> {
    let Err(unpushed) = pushed else { return shown };
    if let Some(words) = shown.err().and_then(|error| error.words()) {
        office.terminal.say(&words);
    }
    Err(unpushed.into())
}

/// Gives the token out: into a file, over the hub, or to be shown.
async fn give(
    vault: &Vault,
    args: &EnrollArgs,
    (entry, token): (Entry, String),
    pair: Option<(KeyPair, bool)>,
    connection: Option<&Connection>,
) -> Result<Admitted, AuthError> {
    let (file, key_made_here) = match (&args.creds_file, pair, &args.output) {
        (Some(file), Some((pair, new)), _) => {
            keep(file, &creds::written(&token, &init::seed(&pair)?), true)?;
            (Some(file.clone()), new)
        }
        (_, _, Some(file)) => {
            keep(file, &format!("{token}\n"), false)?;
            (Some(file.clone()), false)
        }
        _ => (None, false),
    };
    let sent = match connection.filter(|_| args.send) {
        Some(connection) => send::run(vault, &args.device, &token, connection).await.map(|()| true)?,
        None => false,
    };
    let jwt = (file.is_none() && !sent).then_some(token);
    Ok(Admitted { entry, jwt, file, key_made_here, sent })
}

/// `muster revoke`
///
/// # Errors
/// As [`run`]; also when it stands but no server could be told.
pub async fn revoke(office: &mut Office<'_>, args: RevokeArgs) -> Result<(), CtlError> {
    let connection = office.connection.check()?;
    let mut vault = Vault::open(&args.vault.dir)?;
    let (roster, now) = (&mut vault.roster, office.now());
    let revoked = match &args.device {
        Some(device) => roster.revoke_name(&device.to_string(), now),
        None => roster.revoke_key(args.key.as_deref().unwrap_or_default(), now),
    };
    let revoked = revoked.map_err(AuthError::from)?;
    let accounts = vault.sign_accounts(office.now())?;
    told(&vault, accounts, &connection).await?;
    let out = Out::of(&vault, revoked);
    drop(vault);
    office.show(&out, |out, _| render::auth::revoked(out))
}

async fn told(vault: &Vault, accounts: Vec<String>, connection: &Connection) -> Result<(), AuthError> {
    push::run(vault, accounts, connection).await.map_err(|why| AuthError::NotPushed(Box::new(why)))
}

fn give_creds(office: &mut Office<'_>, args: CredsArgs) -> Result<(), CtlError> {
    let mut vault = Vault::open(&args.vault.dir)?;
    let name = args.name.unwrap_or_else(|| args.role.as_str().to_owned());
    let label: Result<muster_contract::DeviceId, _> = name.parse();
    // The name becomes a file name and a column: an identifier is safe as both.
    label.map_err(|error| CtlError::Name(error.to_string()))?;
    let file = args.output.unwrap_or_else(|| vault.path(&format!("creds/{name}.creds")));
    let terms = (office.now(), args.valid.map(|valid| valid.0));
    let (entry, new) = service(&mut vault, args.role, &name, &file, terms)?;
    drop(vault);
    let admitted = Admitted { entry, jwt: None, file: Some(file), key_made_here: new, sent: false };
    office.show(&admitted, render::auth::admitted)
}

/// Writes the credentials of somebody who is no device; whether the key is new.
fn service(
    vault: &mut Vault,
    role: Role,
    name: &str,
    file: &Path,
    terms: (u64, Option<u64>),
) -> Result<(Entry, bool), AuthError> {
    let (pair, new) = key_of_file(file)?;
    let entry = vault.roster.admit(name, role.as_str(), &pair.public_key(), terms, false)?;
    let signers = vault.authority.signers();
    let token = claims::service(&vault.signer(role)?, &user(vault, &entry), role, name, &signers)?;
    vault.keep_roster()?;
    keep(file, &creds::written(&token, &init::seed(&pair)?), true)?;
    Ok((entry, new))
}

fn user<'a>(vault: &'a Vault, entry: &'a Entry) -> claims::User<'a> {
    let account = Role::of(&entry.role).map_or("", |role| vault.authority.account(role.account()));
    claims::User { account, key: &entry.key, issued: entry.issued, expires: entry.expires }
}

/// The key that is to be let in: the one of the file, the one that is given, else the one that is recorded.
fn chosen_key(vault: &Vault, args: &EnrollArgs, pair: Option<&KeyPair>) -> Result<String, AuthError> {
    if let Some(key) = pair.map(KeyPair::public_key).or_else(|| args.key.clone()) {
        return Ok(key);
    }
    let name = args.device.to_string();
    let recorded = vault.roster.users.iter().filter(|entry| entry.name == name && entry.role == "device");
    // Nobody who was put out comes back without being named.
    let recorded = recorded.filter(|entry| !entry.is_revoked()).max_by_key(|entry| entry.issued);
    recorded.map(|entry| entry.key.clone()).ok_or(AuthError::NoKey(name))
}

/// The key of a credentials file, or a new one if there is no such file; whether it is new.
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

impl Out {
    fn of(vault: &Vault, revoked: Vec<Entry>) -> Self {
        let devices = revoked.iter().filter(|entry| entry.role == Role::Device.as_str());
        let sites = devices.filter_map(|entry| Some(entry.name.parse::<DeviceKey>().ok()?.site));
        let sites = sites.filter(|site| vault.authority.sites.contains_key(site)).collect();
        Self { revoked, sites }
    }
}

impl Office<'_> {
    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().as_second()).unwrap_or(0)
    }

    fn show<T: Serialize>(
        &mut self,
        found: &T,
        render: impl FnOnce(&T, Timestamp) -> String,
    ) -> Result<(), CtlError> {
        match self.format {
            Format::Json => self.terminal.print_json(&(vault::json(found) + "\n"))?,
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
    fn only_sites_with_a_server_of_their_own_have_yet_to_hear_who_is_out() {
        let place = tempfile::tempdir().unwrap();
        let args = VaultArgs { dir: place.path().join("auth") };
        let (name, resolver_dir) = ("fleet".to_owned(), "accounts".to_owned());
        init::run(&InitArgs { vault: args.clone(), name, resolver_dir }, 1).unwrap();
        let site = "harbour".parse().unwrap();
        leaf::run(&LeafArgs { site, vault: args.clone() }, 1).unwrap();
        let mut vault = Vault::open(&args.dir).unwrap();
        let mut out = |name: &str, role: Role| {
            let key = KeyPair::new_user().public_key();
            vault.roster.admit(name, role.as_str(), &key, (1, None), false).unwrap();
            let revoked = vault.roster.revoke_key(&key, 2).unwrap();
            Out::of(&vault, revoked)
        };
        let shown = serde_json::to_value(out("harbour/crane", Role::Device)).unwrap();
        assert_eq!(shown["sites"], serde_json::json!(["harbour"]));
        assert!(out("plant7/press-4", Role::Device).sites.is_empty(), "its server is the hub's");
        assert!(out("harbour", Role::Ingest).sites.is_empty(), "no device");
    }
}
