//! The sample fleet: its deployments, as files of a repository. All workloads are simulated, so that a device needs only its
//! agent.

/// The files of the first commit, by path.
pub(super) const FILES: [(&str, &str); 4] = [
    ("README.md", README),
    ("fleet/telemetry.yaml", TELEMETRY),
    ("fleet/gateway.yaml", GATEWAY),
    ("sites/harbour/cranes.yaml", CRANES),
];

const README: &str = "\
# A fleet

    fleet/*.yaml                    every device runs this
    sites/<site>/*.yaml             the devices of a site run this
    sites/<site>/<device>/*.yaml    one device runs this; it is in the fleet because its folder is here

An operator enrols devices. Change a file, commit, push to main: the publisher takes a commit as a whole
or refuses it as a whole.
";

const TELEMETRY: &str = r#"# Two components, the second after the first is ready.
id: telemetry
metadata: {name: telemetry}
spec:
  applicationId: com-example-telemetry
  deploymentProfile:
    type: simulated
    components:
      - name: store
        properties: {startDelay: 500ms}
      - name: collector
        properties: {startDelay: 1s, timeout: 30s}
  parameters:
    release:
      value: "1"
      targets:
        - {pointer: RELEASE, components: [collector]}
"#;

const GATEWAY: &str = r#"# Its first start fails, and it is tried again.
id: gateway
metadata: {name: gateway}
spec:
  applicationId: com-example-gateway
  deploymentProfile:
    type: simulated
    components:
      - name: gateway
        properties: {startDelay: 300ms, failStarts: 1}
"#;

const CRANES: &str = r#"# Only at this site.
id: cranes
metadata: {name: cranes}
spec:
  applicationId: com-example-cranes
  deploymentProfile:
    type: simulated
    components:
      - name: controller
        properties: {startDelay: 2s, stopDelay: 1s}
"#;
