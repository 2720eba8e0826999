//! People and programs log in to a gateway of a secured hub, and each recorded change names the person.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use muster_bus::Bus;
use muster_identity::{Role, creds, jwt};
use muster_simulator::child::{Child, Spec};
use muster_simulator::repository::{BRANCH, Repository, write_devices};
use muster_tests::guarded::Guarded;
use muster_tests::server::{device, free_port};
use muster_tests::story::sleeper;
use muster_tests::system::{GATEWAY, INGEST, PUBLISHER, ROLLUP, program};
use muster_tests::wait::{soon, until};
use serde_json::{Value, json};

use tokio_util::sync::CancellationToken;

use super::client::{Answer, get, send};

const ROLLOUT: &str = "\
apiVersion: muster/v1
kind: Rollout
waves: [{name: ours, site: plant7, approval: before}]
approvals: {need: 2}
";
/// The content of a key file for sessions.
pub(crate) const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
/// The cookie of a session.
pub(crate) const SESSION: &str = "__Host-muster";
/// The cookie of a login page.
const ATTEMPT: &str = "__Host-muster-login";

/// A secured hub with a gateway that has a login.
pub(crate) struct LoginStage {
    pub(crate) hub: Guarded,
    pub(crate) addr: SocketAddr,
    processes: Vec<Child>,
}

/// A browser with its cookies.
#[derive(Default, Clone)]
pub(crate) struct Browser {
    pub(crate) cookies: Vec<(String, String)>,
}

impl LoginStage {
    /// The hub without services.
    pub(crate) async fn start() -> Self {
        let hub = Guarded::start_plain();
        let ingest = Bus::connect(hub.config(Role::Ingest), &CancellationToken::new()).await.unwrap();
        soon("the streams", Box::pin(ingest.converge())).await.unwrap();
        hub.mirror().await;
        let mut stage = Self { hub, addr: SocketAddr::from(([127, 0, 0, 1], 0)), processes: Vec::new() };
        stage.addr = stage.start_gateway(KEY).await;
        stage
    }

    /// Starts one more gateway with this key of sessions.
    pub(crate) async fn start_gateway(&mut self, key: &str) -> SocketAddr {
        self.start_gateway_with(key, &[]).await
    }

    /// The same with more settings.
    pub(crate) async fn start_gateway_with(&mut self, key: &str, more: &[&str]) -> SocketAddr {
        let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let file = self.hub.dir().join(format!("session-{}.key", addr.port()));
        std::fs::write(&file, key).unwrap();
        let (file, addr_arg) = (file.display().to_string(), addr.to_string());
        let accounts = self.hub.auth().join("nats-server.conf").display().to_string();
        let args = [
            "--insecure-http",
            "--people-addr",
            &addr_arg,
            "--session-key",
            &file,
            "--revocations",
            &accounts,
        ];
        self.spawn(Role::Gateway, GATEWAY, &[&args[..], more].concat());
        until(
            "the gateway",
            async || get(addr, "/live").await.map(|page| page.status),
            |status| status.as_ref().is_ok_and(|status| *status == 200),
        )
        .await
        .unwrap();
        addr
    }

    pub(crate) fn spawn(&mut self, role: Role, binary: &str, args: &[&str]) {
        let creds = self.hub.creds(role);
        self.spawn_with(&creds, binary, args);
    }

    /// Starts a program with these credentials.
    pub(crate) fn spawn_with(&mut self, creds: &Path, binary: &str, args: &[&str]) {
        let (creds, url) = (creds.display().to_string(), self.hub.url());
        let args = [&["--nats-url", &url, "--creds", &creds], args].concat();
        let args = args.into_iter().map(str::to_owned).collect();
        let name = format!("{binary}-{}", self.processes.len());
        let spec = Spec { name, program: program(binary), args };
        self.processes.push(Child::start(spec, self.hub.dir()).unwrap());
    }

    /// `muster login` with these credentials.
    pub(crate) fn login(&self, creds: &Path, args: &[&str]) -> Output {
        let (url, creds) = (format!("http://{}", self.addr), creds.display().to_string());
        self.hub.muster(&[&["login", &url, "--creds", &creds], args].concat())
    }

    /// A program's token.
    pub(crate) fn token(&self, creds: &Path) -> Result<String, String> {
        let file = self.hub.dir().join("program.token");
        let done = self.login(creds, &["--token", file.to_str().unwrap()]);
        if !done.status.success() {
            return Err(String::from_utf8(done.stderr).unwrap());
        }
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "for its owner alone");
        Ok(std::fs::read_to_string(file).unwrap().trim().to_owned())
    }

    /// A browser in which a role has logged in.
    pub(crate) async fn browser(&self, role: Role) -> Browser {
        let mut browser = Browser::default();
        let nonce = browser.login_page(self.addr).await;
        let done = self.login(&self.hub.creds(role), &["--nonce", &nonce]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let code = String::from_utf8(done.stdout).unwrap();
        let entered = browser.post(self.addr, "/login", &format!("code={}", code.trim())).await;
        assert_eq!((entered.status, entered.header("location")), (303, Some("/")), "{entered:?}");
        browser
    }

    /// The logs of the processes.
    pub(crate) fn logs(&self) -> String {
        self.processes.iter().map(|process| std::fs::read_to_string(process.log()).unwrap()).collect()
    }
}

impl Browser {
    /// Opens the login page; its nonce.
    pub(crate) async fn login_page(&mut self, addr: SocketAddr) -> String {
        let page = self.get(addr, "/login").await;
        assert_eq!(page.status, 200, "{page:?}");
        let (_, rest) = page.body.split_once("--nonce ").expect("the command with the nonce");
        rest.split(' ').next().unwrap().to_owned()
    }

    pub(crate) async fn get(&mut self, addr: SocketAddr, path: &str) -> Answer {
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\n{}Connection: close\r\n\r\n", self.cookie());
        self.take(send(addr, &head).await.unwrap())
    }

    /// Posts a form as a page of the gateway does.
    pub(crate) async fn post(&mut self, addr: SocketAddr, path: &str, form: &str) -> Answer {
        self.post_with(addr, path, &format!("Origin: http://{addr}\r\n"), form).await
    }

    /// Posts a form with these headers.
    pub(crate) async fn post_with(
        &mut self,
        addr: SocketAddr,
        path: &str,
        headers: &str,
        form: &str,
    ) -> Answer {
        let (cookie, length) = (self.cookie(), form.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {addr}\r\n{cookie}{headers}Connection: close\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{form}"
        );
        self.take(send(addr, &request).await.unwrap())
    }

    fn cookie(&self) -> String {
        let pairs: Vec<_> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if pairs.is_empty() { String::new() } else { format!("Cookie: {}\r\n", pairs.join("; ")) }
    }

    /// Keeps the cookies that an answer sets.
    fn take(&mut self, answer: Answer) -> Answer {
        for line in answer.head.lines() {
            let Some((header, cookie)) = line.split_once(": ") else { continue };
            if !header.eq_ignore_ascii_case("set-cookie") {
                continue;
            }
            let (name, value) = cookie.split(';').next().unwrap().split_once('=').unwrap();
            self.cookies.retain(|(known, _)| known != name);
            if !cookie.contains("Max-Age=0;") {
                self.cookies.push((name.to_owned(), value.to_owned()));
            }
        }
        answer
    }

    /// The value of a cookie.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.cookies.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Asks with a token.
pub(crate) async fn ask(addr: SocketAddr, method: &str, path: &str, token: &str) -> Answer {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {addr}\r\nAuthorization: Bearer {token}\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n"
    );
    send(addr, &head).await.unwrap()
}

/// The public key of credentials.
pub(crate) fn key_of(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    jwt::read(creds::token(&text).unwrap()).unwrap().sub
}

/// A hub with services, and a change of `web` that waits for two approvals.
pub(crate) async fn with_services() -> (LoginStage, Repository) {
    with_services_of(&sleeper("web", 1), ROLLOUT).await
}

/// A hub with services, and a change of `web` that a rollout holds.
pub(crate) async fn with_services_of(web: &str, rollout: &str) -> (LoginStage, Repository) {
    let mut stage = LoginStage::start().await;
    let repository = Repository::create(stage.hub.dir().join("repository")).await.unwrap();
    write_devices(&repository, &[device("press-4")]).unwrap();
    repository.write("fleet/web.yaml", web).unwrap();
    repository.write("fleet/rollout.yaml", rollout).unwrap();
    repository.commit("web").await.unwrap();
    let git = repository.dir().display().to_string();
    stage.spawn(
        Role::Publisher,
        PUBLISHER,
        &["--git-url", &git, "--git-branch", BRANCH, "--git-poll", "200ms"],
    );
    let (data, keeper) =
        (stage.hub.dir().join("rollup").display().to_string(), stage.hub.creds(Role::Keeper));
    stage.spawn(Role::Rollup, ROLLUP, &["--data-dir", &data, "--readers-creds", keeper.to_str().unwrap()]);
    stage.spawn(Role::Ingest, INGEST, &["--lease", "5s"]);
    (stage, repository)
}

/// The decisions about `web` that are recorded.
pub(crate) async fn decisions(stage: &LoginStage, token: &str) -> Vec<Value> {
    let answer = ask(stage.addr, "GET", "/api/v1/rollouts/web/history", token).await;
    let rollouts = answer.json()["rollouts"].as_array().cloned().unwrap_or_default();
    rollouts.first().map(|rollout| rollout["decisions"].as_array().unwrap().clone()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_logs_in_with_a_key_and_each_change_names_person_and_gateway() {
    let (stage, _repository) = with_services().await;
    let addr = stage.addr;
    let outside = get(addr, "/").await.unwrap();
    assert_eq!((outside.status, outside.header("location")), (303, Some("/login")));
    let refused = get(addr, "/api/v1/fleet").await.unwrap();
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer realm=\"muster\"")));

    let mut operator = stage.browser(Role::Operator).await;
    assert!(operator.value(SESSION).is_some() && operator.value(ATTEMPT).is_none());
    let page = async || stage.browser_page(&operator, "/").await;
    let shown = until("the first screen", page, |page| page.status == 200).await;
    assert!(shown.body.contains("operator, operator") && shown.body.contains("Log out"), "{}", shown.body);
    let waits = async || stage.browser_page(&operator, "/rollouts/web").await;
    let waiting = until("the rollout waits", waits, |page| page.body.contains("Approve wave ours")).await;
    assert_eq!(waiting.status, 200);
    let approved = operator.post(addr, "/rollouts/web/approve", "wave=ours&reason=seen").await;
    assert_eq!(approved.status, 303, "{approved:?}");

    let (gateway, person) =
        (key_of(&stage.hub.creds(Role::Gateway)), key_of(&stage.hub.creds(Role::Operator)));
    let token = stage.token(&stage.hub.creds(Role::Operator)).unwrap();
    let recorded = decisions(&stage, &token).await;
    let by = json!({
        "key": gateway, "name": "gateway", "role": "gateway",
        "onBehalfOf": { "key": person, "name": "operator", "role": "operator" },
    });
    assert_eq!((recorded.len(), &recorded[0]["requestedBy"]), (1, &by));
    let again = ask(addr, "POST", "/api/v1/rollouts/web/approve", &token).await;
    assert_eq!(again.status, 200, "{again:?}");
    assert_eq!(
        decisions(&stage, &token).await.len(),
        1,
        "one person approves once, by page, token or command"
    );

    let viewer = stage.token(&stage.hub.creds(Role::Viewer)).unwrap();
    assert_eq!(ask(addr, "GET", "/api/v1/rollouts/web", &viewer).await.status, 200);
    for (method, path) in
        [("POST", "/api/v1/rollouts/web/pause"), ("POST", "/quarantine/drop"), ("GET", "/api/v1/quarantine")]
    {
        let refused = ask(addr, method, path, &viewer).await;
        assert!(refused.status == 403 && refused.body.contains("role operator"), "{path}: {refused:?}");
    }
    let mut looking = stage.browser(Role::Viewer).await;
    let page = looking.get(addr, "/rollouts/web").await;
    assert!(page.status == 200 && !page.body.contains("Approve wave ours"), "a viewer is offered no change");
    assert_eq!(decisions(&stage, &token).await.len(), 1);

    let code = operator.value(SESSION).unwrap().to_owned();
    let out = operator.post(addr, "/logout", "").await;
    assert_eq!((out.status, operator.value(SESSION)), (303, None));
    let logs = stage.logs();
    for secret in [&token, &viewer, &code] {
        assert!(!logs.contains(secret.as_str()), "a secret is in a log");
    }
    assert!(logs.contains("a person has logged in"), "{logs}");
    let refused = logs.lines().find(|line| line.contains("ermissions"));
    assert_eq!(refused, None, "the gateway lacked a right:\n{logs}");
}

impl LoginStage {
    async fn browser_page(&self, browser: &Browser, path: &str) -> Answer {
        browser.clone().get(self.addr, path).await
    }

    /// Credentials of a role for a name, valid for a time.
    pub(crate) fn creds(&self, role: Role, name: &str, valid: &str) -> PathBuf {
        let file = self.hub.dir().join(format!("{name}.creds"));
        let output = file.display().to_string();
        self.hub.decide(&["auth", "creds", role.as_str(), "--name", name, "--valid", valid, "-o", &output]);
        file
    }
}
