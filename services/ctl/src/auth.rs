//! `muster auth`, `enroll` and `revoke`: identities and their rights on the bus.
//!
//! One directory of keys is authoritative ([`key_store`]): a command writes a change to the registry of users before it
//! sends it to a server. Only a revocation needs a server, to which [`push`] sends it; an enrolment needs none, because a
//! token proves itself. `muster_identity` has the rules.

mod children;
mod clients;
mod context;
pub(crate) mod error;
mod init;
mod key_store;
mod leaf;
mod push;
mod results;
mod rotate;
mod send;
mod signing;
mod upgrade;

use std::path::Path;

use muster_identity::{KeyPair, Role, UserEntry, claims, creds};

pub(crate) use self::context::AuthContext;
use self::error::AuthError;
use self::key_store::{KeyStore, write_file};
pub(crate) use self::key_store::{LEAVES, SERVER_CONFIG};
pub(crate) use self::results::{
    EnrollResult, InitResult, LeafResult, RevokeResult, RotateResult, UpgradeResult,
};
use self::signing::{SignedCreds, key_of_file, seed, sign_user, user};
use crate::config::{AuthCommand, Connection, CredsArgs, EnrollArgs, RevokeArgs};
use crate::error::CtlError;
use crate::render;

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
            write_file(file, &creds::to_text(&token, &seed(&pair)?), true)?;
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
