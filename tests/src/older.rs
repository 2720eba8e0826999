//! A directory of keys as the release before READERS and PEOPLE made it: people belong to HUB, and there is no keeper.
//! Made from a new directory with its own keys, so that nothing but the layout differs. And what READERS imports from HUB as
//! a later release made it, exactly by name; and a directory of the release before CHECKERS.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use muster_bus::MIRRORED;
use muster_identity::exchange::HUB_API;
use muster_identity::{KeyPair, creds, jwt};
use serde_json::{Map, Value};

/// Rewrites a directory that was just made.
pub fn rewrite(dir: &Path) {
    without_checkers(dir);
    let mut authority = read(&dir.join("authority.json"));
    let hub = authority["hub"].as_str().unwrap().to_owned();
    let people = authority["people"].as_str().unwrap().to_owned();
    let readers = authority["readers"].as_str().unwrap().to_owned();
    for account in ["people", "readers"] {
        authority.as_object_mut().unwrap().remove(account);
    }
    fs::write(dir.join("authority.json"), authority.to_string()).unwrap();
    remove_role(dir, "keeper");
    for role in ["viewer", "subscriber", "operator"] {
        move_user(dir, role, &hub);
    }
    rewrite_accounts(dir, &hub, &people, &readers);
}

/// Removes CHECKERS and its role, as the release before it had neither, also from the configuration of the server.
pub fn without_checkers(dir: &Path) {
    let mut authority = read(&dir.join("authority.json"));
    let account = |name: &str| authority[name].as_str().unwrap().to_owned();
    let (checkers, people) = (account("checkers"), account("people"));
    authority.as_object_mut().unwrap().remove("checkers");
    fs::write(dir.join("authority.json"), authority.to_string()).unwrap();
    remove_role(dir, "checker");
    let file = dir.join("nats-server.conf");
    let text = fs::read_to_string(&file).unwrap();
    let token = token_of(&text, &people);
    let mut account = claims(&token);
    let imports = account["nats"]["imports"].as_array_mut().unwrap();
    imports.retain(|import| import["account"] != checkers.as_str());
    for key in account["nats"]["signing_keys"].as_array_mut().unwrap() {
        let allowed = key["template"]["pub"]["allow"].as_array_mut().unwrap();
        allowed.retain(|subject| subject != "muster.check.>");
    }
    let older = jwt::sign(&seed(&dir.join("operator.seed")), account).unwrap();
    let text = text.replace(&token, &older);
    let kept = text.lines().filter(|line| !line.trim_start().starts_with(&checkers));
    fs::write(&file, kept.collect::<Vec<_>>().join("\n") + "\n").unwrap();
}

/// Removes a role's signing key, credentials and user.
fn remove_role(dir: &Path, role: &str) {
    let mut authority = read(&dir.join("authority.json"));
    authority["signers"].as_object_mut().unwrap().remove(role);
    fs::write(dir.join("authority.json"), authority.to_string()).unwrap();
    let mut registry = read(&dir.join("roster.json"));
    registry["users"].as_array_mut().unwrap().retain(|user| user["role"] != role);
    fs::write(dir.join("roster.json"), registry.to_string()).unwrap();
    for file in [format!("signers/{role}.seed"), format!("creds/{role}.creds")] {
        fs::remove_file(dir.join(file)).unwrap();
    }
}

/// Has READERS import requests of HUB's API exactly by name, as the release before wildcards did.
pub fn import_exactly(dir: &Path) {
    let authority = read(&dir.join("authority.json"));
    let file = dir.join("nats-server.conf");
    let mut text = fs::read_to_string(&file).unwrap();
    for (account, list) in [("readers", "imports"), ("hub", "exports")] {
        let token = token_of(&text, authority[account].as_str().unwrap());
        let mut account = claims(&token);
        let entries = account["nats"][list].as_array_mut().unwrap();
        let wide = entries.iter().find(|entry| entry["subject"] == "$JS.API.STREAM.INFO.*").unwrap().clone();
        for mirror in MIRRORED {
            for verb in ["STREAM.INFO", "CONSUMER.CREATE"] {
                let subject = format!("$JS.API.{verb}.{mirror}");
                let mut entry = wide.clone();
                entry["name"] = subject.clone().into();
                entry["subject"] = subject.into();
                if entry["local_subject"].is_string() {
                    entry["local_subject"] = format!("{HUB_API}.{verb}.{mirror}").into();
                }
                entries.push(entry);
            }
        }
        entries.retain(|entry| {
            let subject = entry["subject"].as_str().unwrap();
            subject != "$JS.API.STREAM.INFO.*" && !subject.starts_with("$JS.API.CONSUMER.*.")
        });
        text = text.replace(&token, &jwt::sign(&seed(&dir.join("operator.seed")), account).unwrap());
    }
    fs::write(&file, text).unwrap();
}

/// The token of an account in the configuration of a server.
fn token_of(text: &str, account: &str) -> String {
    let line = text.lines().find(|line| line.trim_start().starts_with(account)).unwrap();
    line.split_once(": ").unwrap().1.trim().to_owned()
}

fn read(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

fn claims(token: &str) -> Map<String, Value> {
    let body = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    serde_json::from_slice(&body).unwrap()
}

fn seed(file: &Path) -> KeyPair {
    KeyPair::from_seed(fs::read_to_string(file).unwrap().trim()).unwrap()
}

/// Signs the token of a person for HUB.
fn move_user(dir: &Path, role: &str, hub: &str) {
    let file = dir.join(format!("creds/{role}.creds"));
    let text = fs::read_to_string(&file).unwrap();
    let mut user = claims(creds::token(&text).unwrap());
    user["nats"]["issuer_account"] = hub.into();
    let token = jwt::sign(&seed(&dir.join(format!("signers/{role}.seed"))), user).unwrap();
    fs::write(&file, creds::to_text(&token, creds::seed(&text).unwrap())).unwrap();
}

/// HUB with the signing keys of people, and neither READERS nor PEOPLE.
fn rewrite_accounts(dir: &Path, hub: &str, people: &str, readers: &str) {
    let file = dir.join("nats-server.conf");
    let text = fs::read_to_string(&file).unwrap();
    let mut account = claims(&token_of(&text, hub));
    let moved = claims(&token_of(&text, people))["nats"]["signing_keys"].as_array().unwrap().clone();
    account["nats"]["signing_keys"].as_array_mut().unwrap().extend(moved);
    let token = jwt::sign(&seed(&dir.join("operator.seed")), account).unwrap();
    let kept = text.lines().filter(|line| {
        let line = line.trim_start();
        !line.starts_with(people) && !line.starts_with(readers)
    });
    let lines = kept.map(|line| {
        if line.trim_start().starts_with(hub) { format!("  {hub}: {token}") } else { line.to_owned() }
    });
    fs::write(&file, lines.collect::<Vec<_>>().join("\n") + "\n").unwrap();
}
