//! The entry point of `muster-agent-kubernetes`: the agent with a runtime for a cluster. It parses the settings and returns the
//! exit code.

use std::process::ExitCode;
use std::sync::Arc;

use muster_agent::app::{RuntimeParts, host_runtime, start_with_runtime};
use muster_agent::config::RuntimeKind;
use muster_agent::config::kubernetes::KubernetesArgs;
use muster_agent::runtime::Runtime;
use muster_agent::runtime::kubernetes::KubernetesRuntime;
use muster_service::clock::SystemClock;

fn main() -> ExitCode {
    let args: KubernetesArgs = muster_service::config::parse();
    if let Some(command) = &args.agent.command {
        return muster_agent::commands::run(command);
    }
    let (config, settings) = match args.check() {
        Ok(checked) => checked,
        Err(problems) => return muster_service::exit::usage("muster-agent-kubernetes", &problems),
    };
    let common = config.common.clone();
    let runtime = move |parts: RuntimeParts<'_>| {
        if parts.config.runtime != RuntimeKind::Kubernetes {
            return host_runtime(parts);
        }
        let RuntimeParts { config, packages, exits, .. } = parts;
        let device = config.device.clone();
        let runtime = KubernetesRuntime::new(device, &config.data_dir, settings, packages, exits)?;
        Ok(Arc::new(runtime) as Arc<dyn Runtime>)
    };
    muster_service::run("muster-agent-kubernetes", &common, |supervisor| async move {
        start_with_runtime(Arc::new(SystemClock), config, &supervisor, runtime).await
    })
}
