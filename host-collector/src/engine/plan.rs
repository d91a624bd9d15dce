//! How a container is launched, worked out as data: the engine client's arguments and environment.

use std::path::PathBuf;

use super::{ClientOutput, EngineKind};
use crate::{
    channel::{Secret, Transport},
    run_id::RunId,
};

/// Everything that a launch depends on.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The run.
    pub run_id: RunId,
    /// The engine, which decides a few spellings.
    pub engine: EngineKind,
    /// Whether the engine's root is an ordinary user of the host.
    pub rootless: bool,
    /// The image.
    pub image: String,
    /// What follows the image.
    pub command: Vec<String>,
    /// Where the engine shall write the container's id.
    pub cidfile: PathBuf,
    /// Whether the client stays with the container, or leaves it alone once that runs.
    pub output: ClientOutput,
    /// Keep standard input open.
    pub interactive: bool,
    /// Give it a terminal.
    pub tty: bool,
    /// Name of the container.
    pub name: Option<String>,
    /// The network.
    pub network: Network,
    /// Who the guest is.
    pub identity: Identity,
    /// The host directory to mount at [`WORKSPACE`].
    pub workspace: Option<String>,
    /// The working directory.
    pub workdir: Option<String>,
    /// Names of variables to hand on from this process's environment.
    pub env: Vec<String>,
    /// The CA bundle of the host.
    pub host_ca: Option<String>,
    /// Ports to publish, as the engine takes them.
    pub publish: Vec<String>,
    /// Ports of the container that are published, as the entrypoint takes them.
    pub ingress: Vec<String>,
    /// The OCI runtime.
    pub runtime: Option<String>,
    /// Arguments of the user's own.
    pub engine_args: Vec<String>,
}

/// What the container may reach.
#[derive(Debug, Clone)]
pub enum Network {
    /// An allowlist.
    Allowlist(Guard),
    /// Whatever the engine's default network reaches.
    Default,
    /// Nothing.
    None,
}

/// What an allowlist needs inside.
#[derive(Debug, Clone)]
pub struct Guard {
    /// The directory of the report channel; none where nothing of this host can be mounted.
    pub channel: Option<PathBuf>,
    /// The ways that reports may take.
    pub transport: Transport,
    /// The canonical entries, separated by commas, or `@` and the file inside that has them. Where
    /// one variable cannot hold them: in pieces.
    pub allow: Vec<String>,
    /// The secret of the report channel.
    pub nonce: Secret,
    /// `name`, `address` or `auto`.
    pub enforce: &'static str,
    /// `required` or `best-effort`.
    pub report: &'static str,
}

/// Who the guest is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// Whom the image says.
    Image,
    /// Whom the engine makes it.
    Engine(String),
    /// Whom this project's entrypoint makes it, which starts as root.
    Entrypoint(String),
}

/// What to start: a client of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Its arguments. No value of a variable is among them, but for paths that are the same in
    /// every container: arguments can be read by every user of the host.
    pub arguments: Vec<String>,
    /// Variables that it gets in addition to ours, for `--env NAME` to find.
    pub environment: Vec<(String, String)>,
}

/// Where the workspace is mounted.
pub const WORKSPACE: &str = "/workspace";
/// This project's entrypoint, in every image that has it.
pub const ENTRYPOINT: &str = "/usr/local/bin/sandbox-entrypoint";
/// Where the report channel's directory is mounted.
pub const HOST_DIRECTORY: &str = "/run/sandbox-egress/host";
/// Where PID 1 listens for a channel that the engine brings.
const ATTACH_DIRECTORY: &str = "/run/sandbox-egress/attach";
/// Where the host's CA bundle is mounted: where most programs of most images look.
pub const CA_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The label by which a run's container is found.
pub(crate) const LABEL: &str = "sandbox-egress.run";
/// Variables of this name speak to the entrypoint, not to the guest.
pub const RESERVED: &str = "SANDBOX_";

/// Works out how to launch.
#[must_use]
pub fn plan(launch: &Launch) -> Plan {
    let mut plan = Plan {
        arguments: vec!["run".into()],
        environment: Vec::new(),
    };
    // First, so that what the run needs comes later and wins.
    plan.arguments.extend(launch.engine_args.iter().cloned());
    plan.frame(launch);
    plan.surroundings(launch);
    plan.identity(launch);
    match &launch.network {
        Network::Allowlist(guard) => plan.guard(launch, guard),
        Network::Default => {}
        Network::None => plan.add(["--network", "none"]),
    }
    plan.add(["--", &launch.image]);
    plan.arguments.extend(launch.command.iter().cloned());
    plan
}

impl Plan {
    fn add<'a>(&mut self, arguments: impl IntoIterator<Item = &'a str>) {
        self.arguments
            .extend(arguments.into_iter().map(ToOwned::to_owned));
    }

    /// A variable whose value only the client's environment holds.
    fn give(&mut self, name: &str, value: impl Into<String>) {
        self.add(["--env", name]);
        self.environment.push((name.into(), value.into()));
    }

    fn frame(&mut self, launch: &Launch) {
        self.add([
            "--pull",
            "never",
            "--cidfile",
            &launch.cidfile.to_string_lossy(),
        ]);
        self.add(["--label", &format!("{LABEL}={}", launch.run_id)]);
        if launch.output == ClientOutput::Dropped {
            self.add(["--detach"]);
        }
        if launch.interactive {
            self.add(["--interactive"]);
        }
        if launch.tty {
            self.add(["--tty"]);
        }
        for (option, value) in [("--name", &launch.name), ("--runtime", &launch.runtime)] {
            if let Some(value) = value {
                self.add([option, value]);
            }
        }
        self.add(["--security-opt", "no-new-privileges"]);
    }

    fn surroundings(&mut self, launch: &Launch) {
        if let Some(workspace) = &launch.workspace {
            self.add(["--mount", &bind(workspace, WORKSPACE, "")]);
        }
        if let Some(workdir) = &launch.workdir {
            self.add(["--workdir", workdir]);
        }
        for name in &launch.env {
            self.add(["--env", name]);
        }
        if let Some(bundle) = &launch.host_ca {
            self.add(["--mount", &bind(bundle, CA_BUNDLE, ",readonly")]);
            for name in CA_VARIABLES {
                // In the client's environment it would send the client itself to this path.
                self.add(["--env", &format!("{name}={CA_BUNDLE}")]);
            }
        }
        for port in &launch.publish {
            self.add(["--publish", port]);
        }
    }

    fn identity(&mut self, launch: &Launch) {
        match &launch.identity {
            Identity::Image => {}
            Identity::Engine(user) => self.add(["--user", user]),
            Identity::Entrypoint(user) => {
                self.add(["--user", "0:0", "--cap-drop", "ALL"]);
                for capability in ["SETUID", "SETGID", "SETPCAP", "KILL"] {
                    self.add(["--cap-add", capability]);
                }
                if launch.rootless && launch.engine == EngineKind::Podman {
                    // Otherwise the caller's own files belong to the container's root.
                    self.add(["--userns", "keep-id"]);
                }
                self.give("SANDBOX_RUN_AS", user);
            }
        }
    }

    fn guard(&mut self, launch: &Launch, guard: &Guard) {
        self.add(["--entrypoint", ENTRYPOINT, "--cap-add", "NET_ADMIN"]);
        if launch.engine == EngineKind::Podman {
            // It would hand on the host's proxy variables, which the guest cannot use.
            self.add(["--http-proxy=false"]);
        }
        if let Some(channel) = &guard.channel {
            let mount = bind(&channel.to_string_lossy(), HOST_DIRECTORY, ",readonly");
            self.add(["--mount", &mount]);
        }
        if guard.transport != Transport::Socket {
            // The image's own file system may be read-only.
            self.add([
                "--mount",
                &format!("type=tmpfs,dst={ATTACH_DIRECTORY},tmpfs-size=65536,tmpfs-mode=0700"),
            ]);
            self.give("SANDBOX_REPORT_TRANSPORT", guard.transport.as_str());
        }
        for (number, piece) in (1..).zip(&guard.allow) {
            match number {
                1 => self.give(ALLOW, piece),
                _ => self.give(&format!("{ALLOW}_{number}"), piece),
            }
        }
        self.give("SANDBOX_ENFORCE", guard.enforce);
        self.give("SANDBOX_REPORT", guard.report);
        if guard.channel.is_some() {
            let socket = format!("{HOST_DIRECTORY}/report.sock");
            self.give("SANDBOX_REPORT_SOCKET", socket);
        }
        self.give("SANDBOX_REPORT_NONCE", guard.nonce.expose());
        self.give("SANDBOX_RUN_ID", launch.run_id.as_str());
        if !launch.ingress.is_empty() {
            self.give("SANDBOX_INGRESS_PORTS", launch.ingress.join(","));
        }
    }
}

/// A bind mount. The engines read the value as one line of comma-separated values (RFC 4180).
pub(super) fn bind(source: &str, target: &str, options: &str) -> String {
    let field = format!("src={source}");
    let quoted = if field.contains([',', '"']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field
    };
    format!("type=bind,{quoted},dst={target}{options}")
}

/// The variable of the list; it goes on in others of this name and a number.
pub(crate) const ALLOW: &str = "SANDBOX_EGRESS_ALLOW";
/// Variables that the run gives to the entrypoint.
pub(crate) const GIVEN: [&str; 8] = [
    "SANDBOX_RUN_AS",
    ALLOW,
    "SANDBOX_REPORT_TRANSPORT",
    "SANDBOX_ENFORCE",
    "SANDBOX_REPORT",
    "SANDBOX_REPORT_SOCKET",
    "SANDBOX_REPORT_NONCE",
    "SANDBOX_RUN_ID",
];

/// What makes programs that bring a bundle of their own look at the system's.
const CA_VARIABLES: [&str; 7] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(network: Network) -> Launch {
        Launch {
            run_id: RunId::random().unwrap(),
            engine: EngineKind::Docker,
            rootless: false,
            image: "img".into(),
            command: vec!["sh".into(), "-c".into(), "x y".into()],
            cidfile: "/r/cid".into(),
            output: ClientOutput::Kept,
            interactive: false,
            tty: false,
            name: None,
            network,
            identity: Identity::Image,
            workspace: None,
            workdir: None,
            env: Vec::new(),
            host_ca: None,
            publish: Vec::new(),
            ingress: Vec::new(),
            runtime: None,
            engine_args: Vec::new(),
        }
    }

    fn allowlist() -> Launch {
        let nonce = Secret::random().unwrap();
        let guard = Guard {
            channel: Some("/r/channel".into()),
            transport: Transport::Socket,
            allow: vec!["a.example,b.example".into()],
            nonce,
            enforce: "name",
            report: "required",
        };
        Launch {
            identity: Identity::Entrypoint("1000:1000".into()),
            ..launch(Network::Allowlist(guard))
        }
    }

    fn line(launch: &Launch) -> String {
        plan(launch)
            .arguments
            .join(" ")
            .replace(launch.run_id.as_str(), "RUN")
    }

    #[test]
    fn a_plain_run_is_the_engine_s_own_with_little_around_it() {
        assert_eq!(
            line(&launch(Network::Default)),
            "run --pull never --cidfile /r/cid --label sandbox-egress.run=RUN --security-opt no-new-privileges \
             -- img sh -c x y"
        );
        assert!(line(&launch(Network::None)).ends_with("--network none -- img sh -c x y"));
    }

    #[test]
    fn an_allowlist_starts_the_entrypoint_as_root_with_few_capabilities() {
        assert_eq!(
            line(&allowlist()),
            "run --pull never --cidfile /r/cid --label sandbox-egress.run=RUN --security-opt no-new-privileges \
             --user 0:0 --cap-drop ALL --cap-add SETUID --cap-add SETGID --cap-add SETPCAP --cap-add KILL \
             --env SANDBOX_RUN_AS --entrypoint /usr/local/bin/sandbox-entrypoint --cap-add NET_ADMIN \
             --mount type=bind,src=/r/channel,dst=/run/sandbox-egress/host,readonly \
             --env SANDBOX_EGRESS_ALLOW --env SANDBOX_ENFORCE --env SANDBOX_REPORT --env SANDBOX_REPORT_SOCKET \
             --env SANDBOX_REPORT_NONCE --env SANDBOX_RUN_ID -- img sh -c x y"
        );
    }

    #[test]
    fn the_nonce_is_in_the_client_s_environment_and_not_in_its_arguments() {
        let launch = allowlist();
        let Network::Allowlist(guard) = &launch.network else {
            unreachable!()
        };
        let plan = plan(&launch);
        assert!(
            !plan
                .arguments
                .iter()
                .any(|argument| argument.contains(guard.nonce.expose()))
        );
        let given: Vec<&str> = plan
            .environment
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        let usual: Vec<&str> = GIVEN
            .into_iter()
            .filter(|name| !name.ends_with("_TRANSPORT"))
            .collect();
        assert_eq!(given, usual);
        for name in given {
            let named = plan
                .arguments
                .windows(2)
                .any(|pair| pair == ["--env", name]);
            assert!(named, "{name} is not handed on");
        }
        assert!(
            plan.environment
                .contains(&("SANDBOX_REPORT_NONCE".into(), guard.nonce.expose().into()))
        );
    }

    #[test]
    fn a_way_in_is_made_where_one_may_be_needed_and_the_door_is_left_out_where_it_cannot_be() {
        let mut launch = allowlist();
        let tmpfs = "--mount type=tmpfs,dst=/run/sandbox-egress/attach,tmpfs-size=65536,tmpfs-mode=0700 \
                     --env SANDBOX_REPORT_TRANSPORT";
        let door = "--mount type=bind,src=/r/channel,dst=/run/sandbox-egress/host,readonly";
        for (transport, channel, wants_way, wants_door) in [
            (Transport::Socket, Some("/r/channel"), false, true),
            (Transport::Auto, Some("/r/channel"), true, true),
            (Transport::Exec, None, true, false),
        ] {
            let Network::Allowlist(guard) = &mut launch.network else {
                unreachable!()
            };
            (guard.transport, guard.channel) = (transport, channel.map(Into::into));
            let line = line(&launch);
            assert_eq!(line.contains(tmpfs), wants_way, "{line}");
            assert_eq!(line.contains(door), wants_door, "{line}");
            assert_eq!(line.contains("SANDBOX_REPORT_SOCKET"), wants_door, "{line}");
        }
    }

    #[test]
    fn a_list_in_pieces_goes_on_from_variable_to_variable() {
        let mut launch = allowlist();
        if let Network::Allowlist(guard) = &mut launch.network {
            guard.allow = vec!["a.exa".into(), "mple".into()];
        }
        let plan = plan(&launch);
        for (name, piece) in [(ALLOW, "a.exa"), ("SANDBOX_EGRESS_ALLOW_2", "mple")] {
            assert!(
                plan.arguments
                    .windows(2)
                    .any(|pair| pair == ["--env", name])
            );
            assert!(plan.environment.contains(&(name.into(), piece.into())));
        }
    }

    #[test]
    fn what_the_user_hands_the_engine_comes_before_what_the_run_needs() {
        let mut launch = allowlist();
        launch.engine_args = vec!["--cap-drop".into(), "NONE".into()];
        assert!(line(&launch).starts_with("run --cap-drop NONE --pull never"));
    }

    #[test]
    fn a_variable_of_the_user_is_named_and_never_valued() {
        let mut launch = launch(Network::Default);
        launch.env = vec!["TOKEN".into()];
        let plan = plan(&launch);
        assert!(
            plan.arguments
                .windows(2)
                .any(|pair| pair == ["--env", "TOKEN"])
        );
        assert!(plan.environment.is_empty());
    }

    #[test]
    fn the_workspace_the_bundle_and_the_ports_are_handed_on() {
        let mut launch = allowlist();
        launch.workspace = Some("/home/me/a,b".into());
        launch.workdir = Some(WORKSPACE.into());
        launch.host_ca = Some("/etc/ssl/cert.pem".into());
        launch.publish = vec!["8080:80".into()];
        launch.ingress = vec!["tcp:80".into(), "udp:53".into()];
        let line = line(&launch);
        for part in [
            "--mount type=bind,\"src=/home/me/a,b\",dst=/workspace --workdir /workspace",
            "--mount type=bind,src=/etc/ssl/cert.pem,dst=/etc/ssl/certs/ca-certificates.crt,readonly",
            "--env PIP_CERT=/etc/ssl/certs/ca-certificates.crt",
            "--publish 8080:80",
            "--env SANDBOX_INGRESS_PORTS",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        assert!(
            plan(&launch)
                .environment
                .contains(&("SANDBOX_INGRESS_PORTS".into(), "tcp:80,udp:53".into()))
        );
    }

    #[test]
    fn podman_is_told_what_docker_does_by_itself() {
        let mut launch = allowlist();
        launch.engine = EngineKind::Podman;
        assert!(line(&launch).contains("--http-proxy=false"));
        assert!(!line(&launch).contains("keep-id"));
        launch.rootless = true;
        assert!(line(&launch).contains("--userns keep-id"));
    }

    #[test]
    fn terminal_name_runtime_and_user_are_options_of_the_engine() {
        let mut launch = launch(Network::Default);
        (launch.interactive, launch.tty) = (true, true);
        launch.name = Some("n".into());
        launch.runtime = Some("runsc".into());
        launch.identity = Identity::Engine("5:6".into());
        assert!(line(&launch).contains("--interactive --tty --name n --runtime runsc"));
        assert!(line(&launch).contains("--user 5:6 -- img"));
    }
}
