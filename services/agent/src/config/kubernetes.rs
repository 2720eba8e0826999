//! The settings of `muster-agent-kubernetes`: those of every agent, and those of its cluster.

use std::path::PathBuf;

use muster_service::Problems;

use super::{Args, Config, RuntimeKind};
use crate::reconcile::OnExit;
use crate::runtime::kubernetes::{HELM_DEFAULT, KubernetesSettings, NAMESPACE_PREFIX_DEFAULT};

/// Characters of the prefix of namespaces: half of a namespace's 63 remain for the deployment.
const PREFIX_CHARS_MAX: usize = 31;

/// Runs charts and manifests in a Kubernetes cluster (--runtime kubernetes), and reports every change to the hub, also after
/// outages.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "muster-agent-kubernetes", version = muster_service::VERSION)]
pub struct KubernetesArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub agent: Args,

    /// Kubeconfig of the cluster; without it the agent uses the service account of its pod
    #[arg(long, env = "MUSTER_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<String>,

    /// Helm command, 3.13 or newer, or 4
    #[arg(long, env = "MUSTER_HELM", value_name = "PATH", default_value = HELM_DEFAULT)]
    pub helm: String,

    /// Prefix of the namespace of a deployment, for components without the property namespace
    #[arg(long, env = "MUSTER_NAMESPACE_PREFIX", value_name = "TEXT", default_value = NAMESPACE_PREFIX_DEFAULT)]
    pub namespace_prefix: String,
}

impl KubernetesArgs {
    /// Checks the settings.
    ///
    /// # Errors
    /// Every setting that cannot be used.
    pub fn check(&self) -> Result<(Config, KubernetesSettings), Problems> {
        let mut problems = Problems::default();
        let config = self.agent.check_for(&mut problems, RuntimeKind::ALL);
        let kubeconfig = problems.optional("--kubeconfig", self.kubeconfig.as_deref(), Problems::file);
        let prefix = prefix(&mut problems, &self.namespace_prefix);
        let stops = config.as_ref().is_some_and(|config| {
            config.runtime == RuntimeKind::Kubernetes && config.on_exit == OnExit::Stop
        });
        if stops {
            let rule = "must be keep with --runtime kubernetes: objects in a cluster outlive the agent";
            problems.refuse("--on-exit", &self.agent.on_exit, rule);
        }
        problems.finish(|| {
            let settings = KubernetesSettings {
                kubeconfig: kubeconfig?,
                helm: PathBuf::from(&self.helm),
                namespace_prefix: prefix?,
            };
            Some((config?, settings))
        })
    }
}

fn prefix(problems: &mut Problems, text: &str) -> Option<String> {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if text.len() <= PREFIX_CHARS_MAX && text.bytes().all(is_allowed) && !text.starts_with('-') {
        return Some(text.to_owned());
    }
    let rule = format!(
        "must have at most {PREFIX_CHARS_MAX} characters of a-z, 0-9 and '-', and not begin with '-'"
    );
    problems.refuse("--namespace-prefix", text, rule);
    None
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;

    fn check(words: &[&str]) -> Result<(Config, KubernetesSettings), Problems> {
        let device =
            ["muster-agent-kubernetes", "--site=plant7", "--device=cluster", "--data-dir=/tmp/muster-k"];
        KubernetesArgs::try_parse_from([&device, words].concat()).unwrap().check()
    }

    #[test]
    fn settings_of_a_cluster_are_checked_and_workloads_are_kept() {
        KubernetesArgs::command().debug_assert();
        let (config, settings) = check(&["--runtime=kubernetes"]).unwrap();
        assert_eq!(config.runtime, RuntimeKind::Kubernetes);
        assert_eq!((settings.kubeconfig, &*settings.namespace_prefix), (None, NAMESPACE_PREFIX_DEFAULT));
        assert!(check(&["--runtime=simulated", "--on-exit=stop"]).is_ok());
        for bad in [
            &["--runtime=kubernetes", "--on-exit=stop"][..],
            &["--namespace-prefix=A"],
            &["--namespace-prefix=-a"],
            &["--kubeconfig=/no/such/file"],
        ] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }
}
