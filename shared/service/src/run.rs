//! From the checked settings to the exit code: log, health, start, wait, drain. The whole of a service's `main`
//! beyond its arguments.
//!
//! The watch over signals and the drain has a thread and a runtime of its own, so that a signal is heard and the
//! deadline holds even when every worker is stuck.

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
use crate::health;
use crate::life::{DRAIN_DEADLINE, Life, Stage};
use crate::telemetry;
use crate::version::VERSION;

/// Why a process cannot be set up at all.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot set the log up")]
    Telemetry(#[source] telemetry::Error),
    #[error("cannot start the threads of the process")]
    Threads(#[source] io::Error),
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
}

/// Runs a service until it is asked to stop, or a task of it fails; gives the exit code ([`Exit`]).
///
/// `start` makes the service run within the [`Life`] it is given and returns a handle, which is kept until the
/// process has drained. It is dropped unfinished when the process is asked to stop before it is done. The process is
/// ready when `start` is done and every latch it took is released.
pub fn run<S, F, H, E>(program: &'static str, common: &Common, start: S) -> ExitCode
where
    S: FnOnce(Life) -> F + Send + 'static,
    F: Future<Output = Result<H, E>> + Send,
    H: Send + 'static,
    E: Into<BoxError> + Send,
{
    let exit = supervise(program, common, start).unwrap_or_else(|error| {
        // The log may be what is missing. If standard error is closed too, the exit code still tells.
        let _ = writeln!(io::stderr(), "{program}: {}", chain(&error));
        Exit::Failed
    });
    exit.into()
}

fn supervise<S, F, H, E>(program: &'static str, common: &Common, start: S) -> Result<Exit, Error>
where
    S: FnOnce(Life) -> F + Send + 'static,
    F: Future<Output = Result<H, E>> + Send,
    H: Send + 'static,
    E: Into<BoxError> + Send,
{
    telemetry::init(common.log_format, &common.log_filter).map_err(Error::Telemetry)?;
    let workers = Builder::new_multi_thread().enable_all().build().map_err(Error::Threads)?;
    let watch = Builder::new_current_thread().enable_all().build().map_err(Error::Threads)?;
    let life = Life::new();
    let build = Info::new(vec![("service", program), ("version", VERSION)]);
    life.health().metrics(|registry| registry.register("build", "What this process was built from", build));
    // Before the first word: whoever reads it may send a signal, which must drain the process, not kill it.
    let mut signals = watch.block_on(async { Signals::listen() }).map_err(Error::Signals)?;
    tracing::info!(
        service.name = program,
        service.version = VERSION,
        nats.url = %common.nats_url,
        "starting"
    );
    let kept = begin(&workers, &life, common.http_addr, start);
    let exit = watch.block_on(until_stopped(&life, &mut signals));
    drop(kept);
    // Not waiting: a thread that is stuck must not hold up a process that has said how it ends.
    workers.shutdown_background();
    Ok(exit)
}

/// Starts the service as a task, so that its failure is treated like any other's. Its handle waits in the channel.
fn begin<S, F, H, E>(
    workers: &Runtime,
    life: &Life,
    http_addr: Option<SocketAddr>,
    start: S,
) -> oneshot::Receiver<H>
where
    S: FnOnce(Life) -> F + Send + 'static,
    F: Future<Output = Result<H, E>> + Send,
    H: Send + 'static,
    E: Into<BoxError> + Send,
{
    let (keep, kept) = oneshot::channel();
    let starting = life.health().latch("start");
    let within = life.clone();
    let _workers = workers.enter();
    life.spawn(Stage::Intake, "start", async move {
        if let Some(addr) = http_addr {
            let addr = health::serve(&within, addr).await?;
            tracing::info!(http.addr = %addr, "serving /live, /ready and /metrics");
        }
        let stop = within.stop_token();
        if let Some(handle) = stop.run_until_cancelled(start(within)).await {
            match handle {
                Ok(handle) => {
                    // Refused only when the process is ending already; the handle is then dropped here.
                    let _ = keep.send(handle);
                    starting.release();
                    tracing::info!("started");
                }
                // It noticed the stop itself, which is no failure.
                Err(_) if stop.is_cancelled() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok::<_, BoxError>(())
    });
    kept
}

/// Waits for a reason to stop, then drains, unless a second signal says not to.
async fn until_stopped(life: &Life, signals: &mut Signals) -> Exit {
    tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal = %signal, deadline_seconds = DRAIN_DEADLINE.as_secs(), "stopping");
            if signal == Signal::Quit {
                return Exit::AtOnce;
            }
        }
        () = life.stopped() => tracing::info!(deadline_seconds = DRAIN_DEADLINE.as_secs(), "stopping"),
    }
    tokio::select! {
        signal = signals.next() => {
            tracing::warn!(signal = %signal, "a second signal: leaving at once");
            Exit::AtOnce
        }
        drained = life.drain(DRAIN_DEADLINE) => {
            let clean = drained.late.is_empty() && life.failure().is_none();
            tracing::info!(clean, "stopped");
            if clean { Exit::Clean } else { Exit::Failed }
        }
    }
}
