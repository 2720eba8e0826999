//! The login page: the command that proves a key, and the field for its code. It works without script.

use maud::{Markup, html};

use crate::people::page::{Command, before_login, cli};

/// The page for a browser that shows a nonce.
pub(super) fn login(
    scheme: &str,
    host: &str,
    nonce: &str,
    has_provider: bool,
    refused: Option<&str>,
) -> Markup {
    let command = Command::from("muster login").with(format!("{scheme}://{host}")).flag("--nonce", nonce);
    let content = html! {
        div.truth {
            h1 { "Log in" }
            @if let Some(refused) = refused { p.alarm role="alert" { (refused) } }
            @if has_provider {
                p.line { a href="/login/oidc" { "Log in by your organisation" } ", or with a key of this fleet:" }
            }
            p.line {
                "Run this command where your credentials are. It signs the nonce of this page; neither your seed nor your "
                "credentials leave that machine."
            }
            div.meta { (cli(command.flag("--creds", "FILE"))) }
            form.login method="post" action="/login" autocomplete="off" {
                label for="code" { "The code that it prints" }
                input #code type="text" name="code" required autofocus spellcheck="false" autocapitalize="off";
                button.act.first type="submit" { "Log in" }
            }
            p.note { "A code is valid in this browser alone, for two minutes." }
        }
    };
    before_login("Log in", &content)
}
