//! Contexts of the nats CLI at real servers that ask who comes.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::Path;
use std::process::Command;

use muster_identity::KeyPair;
use muster_tests::server::{Server, Setup};
use muster_tests::system::program;
use muster_tests::tls::certified;
use serde_json::{Value, json};

/// The output of `muster status` with a context, or with the server's address alone.
fn status(home: &Path, context: Option<&Value>, url: &str) -> String {
    let mut command = Command::new(program("muster"));
    command.env("XDG_CONFIG_HOME", home).args(["--timeout", "20s", "status"]);
    match context {
        Some(context) => {
            let folder = home.join("nats/context");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("hub.json"), context.to_string()).unwrap();
            command.args(["--context", "hub"]);
        }
        None => _ = command.args(["--nats-url", url]),
    }
    String::from_utf8(command.output().unwrap().stderr).unwrap()
}

/// A server with this configuration lets the context in and nobody without it.
fn logs_in(more: &str, scheme: &str, context: impl Fn(&Path) -> Value) {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start_with(Setup { more: more.to_owned(), ..Setup::default() });
    let url = server.url().replace("nats://", scheme);
    let mut context = context(home.path());
    context["url"] = json!(url);
    let said = status(home.path(), Some(&context), &url);
    assert!(said.contains("no muster-rollup answers"), "{more}: {said}");
    let refused = status(home.path(), None, &url);
    assert!(!refused.contains("no muster-rollup answers"), "{more}: anybody gets in: {refused}");
}

#[test]
fn a_context_logs_in_at_a_real_server_in_each_of_the_four_ways() {
    logs_in(
        "authorization { user: me, password: \"s3cret\" }\n",
        "nats://",
        |_| json!({"user": "me", "password": "s3cret"}),
    );
    logs_in("authorization { token: \"s3cret\" }\n", "nats://", |_| json!({"token": "s3cret"}));
    let key = KeyPair::new_user();
    let users = format!("authorization {{ users: [{{ nkey: {} }}] }}\n", key.public_key());
    logs_in(&users, "nats://", |home| {
        let file = home.join("me.nk");
        std::fs::write(&file, key.seed().unwrap()).unwrap();
        json!({ "nkey": file })
    });
    let folder = tempfile::tempdir().unwrap();
    let (authority, tls) = certified(folder.path());
    let asking = format!(", ca_file: \"{}\", verify: true }}\n", authority.display());
    logs_in(&tls.replace(" }\n", &asking), "tls://", |_| {
        let part = |name: &str| folder.path().join(name);
        json!({"ca": authority, "cert": part("cert.pem"), "key": part("key.pem")})
    });
}
