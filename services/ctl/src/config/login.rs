//! Parses the command line of `muster login`.

use std::path::PathBuf;

use clap::Args;

pub(super) const LOGIN_EXAMPLES: &str = "\
Proves your key to a gateway by a signature over a nonce; neither the seed nor the credentials file leaves this machine.
--creds (or MUSTER_CREDS, or a context) names the credentials, --tls-ca the authority of the gateway's certificate.

Examples:
  muster login https://fleet.example.com --nonce k7q… --creds anna.creds     prints the code for the page that shows the nonce
  muster login https://fleet.example.com --token fleet.token                 writes a token for programs, readable by you alone
  curl -H \"Authorization: Bearer $(cat fleet.token)\" https://fleet.example.com/api/v1/fleet";

/// `muster login`
#[derive(Debug, Args)]
pub struct LoginArgs {
    /// The address of the gateway, such as `https://fleet.example.com`
    #[arg(value_name = "URL")]
    pub url: String,
    /// Prove the nonce that the login page shows, and print the code for that page
    #[arg(long, value_name = "NONCE", required_unless_present = "token", conflicts_with = "token")]
    pub nonce: Option<String>,
    /// Write a token for programs to this file, and replace an older one
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,
}
