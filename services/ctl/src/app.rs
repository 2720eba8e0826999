//! From a command line to an exit code: parse, connect, ask, show.

use std::process::ExitCode;
use std::sync::Arc;

use jiff::tz::TimeZone;
use muster_contract::quarantine::QuarantineAction;
use muster_service::VERSION;
use muster_service::clock::SystemClock;
use serde_json::json;

use crate::ask::Hub;
use crate::auth::AuthContext;
use crate::backup::{self, BackupContext};
use crate::config::{
    Cli, Command, Export, Format, PublisherCommand, QuarantineCommand, RestoreArgs, WatchAbout, WatchArgs,
    WhyAbout, WhyArgs,
};
use crate::error::{CtlError, NO, USAGE, YES};
use crate::session::Session;
use crate::terminal::Terminal;
use crate::{
    applications, audit, auth, complete, defined, devices, groups, history, hubs, incidents, login, names,
    packages, plans, publish, quarantine, reach, render, restore, rollout, status, streams, subscriptions,
    support, timeline, top, watch, webhooks, why,
};

/// Runs the command line of this process. It sets up no log, because standard error has the notes for the person.
pub fn main(terminal: &mut Terminal) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let cli: Result<Cli, _> = muster_service::config::try_parse();
    let zone = cli.as_ref().ok().and_then(|cli| cli.time_zone.clone());
    render::local::set(zone.unwrap_or_else(TimeZone::system));
    let code = match runtime {
        Ok(runtime) => runtime.block_on(run(cli, terminal)),
        Err(error) => print_error(&CtlError::Runtime(error), terminal),
    };
    code.into()
}

/// Runs a command line; its exit code.
pub async fn run(cli: Result<Cli, clap::Error>, terminal: &mut Terminal) -> u8 {
    let cli = match cli {
        Ok(cli) => cli,
        Err(error) => return usage(&error, terminal),
    };
    match execute(cli, terminal).await {
        Ok(true) => YES,
        Ok(false) => NO,
        Err(error) => print_error(&error, terminal),
    }
}

/// Help and version are data; wrong usage is talk.
fn usage(error: &clap::Error, terminal: &mut Terminal) -> u8 {
    let text = error.render().ansi().to_string();
    if error.use_stderr() {
        terminal.print_note(&text);
        return USAGE;
    }
    terminal.print(&text).map_or_else(|error| print_error(&error.into(), terminal), |()| YES)
}

fn print_error(error: &CtlError, terminal: &mut Terminal) -> u8 {
    if let Some(words) = error.words() {
        terminal.print_note(&words);
    }
    error.code()
}

/// True where the answer is yes.
async fn execute(cli: Cli, terminal: &mut Terminal) -> Result<bool, CtlError> {
    cli.check().map_err(CtlError::Usage)?;
    let (format, export) = cli.shown();
    let Cli { connection, command, .. } = cli;
    match command {
        Command::Version => return version(format, terminal).map(|()| true),
        Command::Completions { shell } => {
            return Ok(terminal.print(&complete::script(shell)).map(|()| true)?);
        }
        Command::Complete { words } => return complete::run(terminal, &words).await.map(|()| true),
        Command::App(command) => return applications::run(command, format, terminal),
        Command::Auth(_) | Command::Enroll(_) | Command::Revoke(_) | Command::Login(_) => {
            let mut context = AuthContext { format, terminal, clock: &SystemClock, connection: &connection };
            return decide(&mut context, command).await.map(|()| true);
        }
        Command::Backup(_) | Command::Support(_) | Command::Restore(RestoreArgs { from: Some(_), .. }) => {
            let mut context =
                BackupContext { format, terminal, clock: &SystemClock, connection: &connection };
            return copy(&mut context, command).await.map(|()| true);
        }
        _ => {}
    }
    let connection = connection.check()?;
    let bus = reach::connect(&connection).await?;
    let hub = Hub::new(bus, connection.timeout).at(connection.url.to_string());
    let mut session = Session { hub, format, terminal, clock: Arc::new(SystemClock), then: None };
    let answered = ask(&mut session, command, export).await;
    answered.map_err(|error| error.because(session.hub.bus().refusal()))
}

/// Runs the commands about keys and logins, which ask no service of the hub.
async fn decide(context: &mut AuthContext<'_>, command: Command) -> Result<(), CtlError> {
    match command {
        Command::Auth(command) => auth::run(context, command).await,
        Command::Enroll(args) => auth::enroll(context, args).await,
        Command::Revoke(args) => auth::revoke(context, args).await,
        Command::Login(args) => login::run(context, &args),
        _ => Ok(()),
    }
}

/// Copies of a hub and files for support, which do without a server where they must.
async fn copy(context: &mut BackupContext<'_>, command: Command) -> Result<(), CtlError> {
    match command {
        Command::Backup(args) => backup::save(context, &args).await,
        Command::Support(args) => support::run(context, &args).await,
        Command::Restore(args) => match &args.from {
            Some(from) => backup::restore(context, from, &args).await,
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

async fn ask(
    session: &mut Session<'_>,
    mut command: Command,
    export: Option<Export>,
) -> Result<bool, CtlError> {
    names::resolve(session, &mut command).await?;
    if command.is_about_now() {
        incidents::print_incidents(session).await;
    }
    match command {
        Command::Audit(args) => return audit::run(session, args.site).await,
        Command::Restore(_) => return restore::run(session).await,
        Command::Status(args) => status::run(session, args, export).await?,
        Command::Devices(args) => devices::list(session, args).await?,
        Command::Device(args) => devices::one(session, args).await?,
        Command::Site { site, point } => status::site(session, site, point).await?,
        Command::Fleet { point } => status::fleet(session, point).await?,
        Command::Groups(args) => groups::run(session, args).await?,
        Command::Hubs => hubs::list(session).await?,
        Command::View(command) => defined::run(session, command).await?,
        Command::Why(WhyArgs { about: Some(WhyAbout::Rollout { deployment }), .. }) => {
            rollout::why(session, deployment).await?;
        }
        Command::Why(args) => why::run(session, args).await?,
        Command::Changes(args) => history::changes(session, args).await?,
        Command::Timeline(args) => timeline::run(session, args).await?,
        Command::Diff(args) => history::diff(session, args).await?,
        Command::Verify => return history::verify(session).await,
        Command::Watch(WatchArgs { about: Some(WatchAbout::Approvals { within }), .. }) => {
            rollout::approvals::run(session, within).await?;
        }
        Command::Watch(args) => return watch::run(session, &args).await,
        Command::Subscription(command) => subscriptions::run(session, command).await?,
        Command::Top => Box::pin(top::run(session)).await?,
        Command::Quarantine(command) => return rejected_reports(session, command).await,
        Command::Apply(args) => publish::apply(session, args).await?,
        Command::Remove(args) => {
            publish::remove(session, args.device.resolved()?, args.deployment).await?;
        }
        Command::Retire { device } => publish::retire(session, device.resolved()?).await?,
        Command::Publisher(PublisherCommand::Status) => publish::status(session).await?,
        Command::Rollout(command) => return rollout::run(session, command).await,
        Command::Plan(command) => return plans::plan(session, command).await,
        Command::Instance(command) => return plans::instance(session, command).await,
        Command::Operation(command) => return plans::operation(session, command).await,
        Command::Node(command) => return plans::node(session, command).await,
        Command::Cluster(command) => return plans::cluster(session, command).await,
        Command::Capability(command) => return plans::capability(session, command).await,
        Command::Disruption(command) => return plans::disruption(session, command).await,
        Command::Streams(command) => return streams::run(session, command).await,
        Command::Package(command) => return packages::run(session, command).await,
        Command::Webhook(command) => webhooks::run(session, command).await?,
        // Answered before a connection was made.
        Command::App(_)
        | Command::Auth(_)
        | Command::Enroll(_)
        | Command::Revoke(_)
        | Command::Login(_)
        | Command::Backup(_)
        | Command::Support(_)
        | Command::Version
        | Command::Completions { .. }
        | Command::Complete { .. } => {}
    }
    Ok(true)
}

/// Lists, shows or judges rejected reports.
async fn rejected_reports(session: &mut Session<'_>, command: QuarantineCommand) -> Result<bool, CtlError> {
    match command {
        QuarantineCommand::List(args) => quarantine::list(session, args).await?,
        QuarantineCommand::Show { quarantine_seq } => quarantine::show(session, quarantine_seq).await?,
        QuarantineCommand::Requeue(args) => {
            return quarantine::judge(session, QuarantineAction::Requeue, args).await;
        }
        QuarantineCommand::Drop(args) => {
            return quarantine::judge(session, QuarantineAction::Drop, args).await;
        }
    }
    Ok(true)
}

fn version(format: Format, terminal: &mut Terminal) -> Result<(), CtlError> {
    match format {
        Format::Json => terminal.print_json(&format!("{}\n", json!({ "version": VERSION })))?,
        Format::Table => terminal.print(&format!("muster {VERSION}\n"))?,
    }
    Ok(())
}
