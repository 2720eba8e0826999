//! Runs a service from its checked settings to its exit code: log, health, start, wait, drain.
//!
//! Signals and the drain have a thread and a runtime of their own, so that signals work and the deadline holds even if every
//! worker is stuck.

mod signals;

use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use prometheus_client::metrics::info::Info;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use self::signals::{Signal, Signals};
use crate::config::Common;
use crate::error::{BoxError, chain};
use crate::exit::Exit;
use crate::health_server;
use crate::supervisor::{DRAIN_DEADLINE, Stage, Supervisor};
use crate::telemetry;
use crate::version::VERSION;

/// The process cannot be set up.
#[derive(Debug, thiserror::Error)]
enum SetupError {
    #[error("cannot set the log up")]
    Telemetry(#[source] telemetry::TelemetryError),
    #[error("cannot start the threads of the process")]
    Threads(#[source] io::Error),
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
}

/// Runs a service until a signal or a failed task stops it; returns the exit code ([`Exit`]).
///
/// `start` spawns the service's tasks in the [`Supervisor`] and returns a handle, which is kept until the process has
/// drained. If the process has to stop before that, the future of `start` is dropped. The process is ready when `start` has
/// returned and every latch is released.
pub fn run<S, F, H, E>(program: &'static str, common: &Common, start: S) -> ExitCode
where
    S: FnOnce(Supervisor) -> F + Send + 'static,
    F: Future<Output = Result<H, E>> + Send,
    H: Send + 'static,
    E: Into<BoxError> + Send,
{
    let exit = supervise(program, common, start).unwrap_or_else(|error| {
        // There may be no log. If standard error is closed too, only the exit code reports it.
        let _ = writeln!(io::stderr(), "{program}: {}", chain(&error));
        Exit::Failed
    });
    exit.into()
}

fn supervise<S, F, H, E>(program: &'static str, common: &Common, start: S) -> Result<Exit, SetupError>
where
    S: FnOnce(Supervisor) -> F + Send + 'static,
    F: Future<Output = Result<H, E>> + Send,
    H: Send + 'static,
    E: Into<BoxError> + Send,
{
    telemetry::init(common.log_format, &common.log_filter).map_err(SetupError::Telemetry)?;
    let workers = Builder::new_multi_thread().enable_all().build().map_err(SetupError::Threads)?;
    let watch = Builder::new_current_thread().enable_all().build().map_err(SetupError::Threads)?;
    let supervisor = Supervisor::new();
    let build = Info::new(vec![("service", program), ("version", VERSION)]);
    supervisor
        .health()
        .metrics(|registry| registry.register("build", "Version and commit of this process", build));
    // Before the first log line: a reader of that line may send a signal, which must drain the process, not kill it.
    let mut signals = watch.block_on(async { Signals::listen() }).map_err(SetupError::Signals)?;
    tracing::info!(
        service.name = program,
        service.version = VERSION,
        nats.url = %common.nats_url,
        "starting"
    );
    let kept = begin(&workers, &supervisor, common.http_addr, start);
    let exit = watch.block_on(until_stopped(&supervisor, &mut signals));
    drop(kept);
    // In the background, because a stuck thread must not delay the end of the process.
    workers.shutdown_background();
    Ok(exit)
}

/// Starts the service as a task, so that its failure stops the process like that of any task. The channel holds its handle.
fn begin<S, F, H, E>(
    workers: &Runtime,
    supervisor: &Supervisor,
    http_addr: Option<SocketAddr>,
    start: S,
) -> oneshot::Receiver<H>
where
    S: FnOnce(Supervisor) -> F + Send + 'static,
    F: Future<Output = Result<H, E>> + Send,
    H: Send + 'static,
    E: Into<BoxError> + Send,
{
    let (keep, kept) = oneshot::channel();
    let starting = supervisor.health().latch("start");
    let within = supervisor.clone();
    let _workers = workers.enter();
    supervisor.spawn(Stage::Intake, "start", async move {
        if let Some(addr) = http_addr {
            let addr = health_server::serve(&within, addr).await?;
            tracing::info!(http.addr = %addr, "serving /live, /ready and /metrics");
        }
        let stop = within.stop_token();
        if let Some(handle) = stop.run_until_cancelled(start(within)).await {
            match handle {
                Ok(handle) => {
                    // This fails only if the process is ending; the handle is then dropped here.
                    let _ = keep.send(handle);
                    starting.release();
                    tracing::info!("started");
                }
                // The start ended because of the stop, which is no failure.
                Err(_) if stop.is_cancelled() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok::<_, BoxError>(())
    });
    kept
}

/// Waits for a reason to stop, then drains, unless a second signal ends the drain.
async fn until_stopped(supervisor: &Supervisor, signals: &mut Signals) -> Exit {
    tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal = %signal, deadline_seconds = DRAIN_DEADLINE.as_secs(), "stopping");
            if signal == Signal::Quit {
                return Exit::AtOnce;
            }
        }
        () = supervisor.stopped() => tracing::info!(deadline_seconds = DRAIN_DEADLINE.as_secs(), "stopping"),
    }
    tokio::select! {
        signal = signals.next() => {
            tracing::warn!(signal = %signal, "a second signal: leaving at once");
            Exit::AtOnce
        }
        drained = supervisor.drain(DRAIN_DEADLINE) => {
            let clean = drained.late.is_empty() && supervisor.failure().is_none();
            tracing::info!(clean, "stopped");
            if clean { Exit::Clean } else { Exit::Failed }
        }
    }
}
