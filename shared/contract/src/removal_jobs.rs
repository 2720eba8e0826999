//! The rules of removal jobs ([`RemovalPhase`](crate::desired::RemovalPhase)): which components may be one.

use crate::decode::Violation;
use crate::desired::{Profile, ProfileType};
use crate::profile::{Readiness, Workload};

/// Whether a component of this type can be a removal job.
///
/// # Errors
/// The broken rule.
pub fn check_removal_job(profile: ProfileType, workload: &Workload) -> Result<(), &'static str> {
    if matches!(profile, ProfileType::Helm | ProfileType::Kubernetes) {
        return Err("is not for objects of a cluster: use the hooks of a chart (helm.sh/hook)");
    }
    if matches!(workload, Workload::Process(process) if process.readiness != Readiness::Exit) {
        return Err("needs a process that ends: set readiness to {type: exit}");
    }
    if workload.gate().timeout.is_none() {
        return Err("needs a timeout: a job that hangs would hold the removal up for good");
    }
    if workload.gate().wait_before.is_some() {
        return Err("excludes waitBefore: nothing starts before it");
    }
    Ok(())
}

impl Profile {
    /// The rules of removal jobs.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn check_removal_jobs(&self) -> Result<(), Violation> {
        if self.components.iter().all(|component| component.runs_at.is_some()) {
            let rule =
                "are removal jobs alone: a deployment needs a component that runs while it is installed";
            return Err(Violation::at("components", rule));
        }
        let jobs = self.components.iter().enumerate().filter(|(_, component)| component.runs_at.is_some());
        for (at, component) in jobs {
            let path = format!("components[{at}]");
            let workload = Workload::of(self.profile_type, component);
            let workload = workload.map_err(|broken| broken.within(&path))?;
            let checked = check_removal_job(self.profile_type, &workload);
            checked.map_err(|rule| Violation::at(format!("{path}.runsAt"), rule))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::canonical::Digest;
    use crate::desired::DesiredDeployment;

    fn refusal(profile: &str, components: &Value) -> Option<String> {
        let entry: DesiredDeployment = serde_json::from_value(json!({
            "id": "web", "name": "web", "applicationId": "com-acme", "targetGeneration": 1, "digest": Digest::of_bytes(b""),
            "profile": { "type": profile, "components": components },
        }))
        .unwrap();
        entry.check_content().err().map(|violation| violation.to_string())
    }

    #[test]
    fn a_removal_job_is_of_a_type_whose_end_is_known() {
        let main = json!({ "name": "main", "properties": { "command": "x" } });
        let job =
            |properties: Value| json!({ "name": "job", "runsAt": "pre-delete", "properties": properties });
        let of_process = |properties: Value| refusal("process", &json!([main, job(properties)]));
        let exit = json!({ "command": "x", "readiness": { "type": "exit" }, "timeout": "5m" });
        assert_eq!(of_process(exit.clone()), None);
        let runs_on = of_process(json!({ "command": "x" })).unwrap();
        assert!(
            runs_on.contains("profile.components[1].runsAt") && runs_on.contains("{type: exit}"),
            "{runs_on}"
        );
        let mut waits = exit.clone();
        waits["waitBefore"] = json!("3s");
        assert!(of_process(waits).unwrap().contains("waitBefore"));
        let endless = of_process(json!({ "command": "x", "readiness": { "type": "exit" } })).unwrap();
        assert!(endless.contains("needs a timeout"), "{endless}");
        let alone = refusal("process", &json!([job(exit)])).unwrap();
        assert!(alone.contains("removal jobs alone"), "{alone}");
        let of_simulated = json!([{ "name": "main" }, { "name": "job", "runsAt": "post-delete", "properties": { "timeout": "5m" } }]);
        assert_eq!(refusal("simulated", &of_simulated), None);
        for cluster in ["helm", "kubernetes"] {
            assert!(refusal(cluster, &of_simulated).unwrap().contains("helm.sh/hook"), "{cluster}");
        }
    }
}
