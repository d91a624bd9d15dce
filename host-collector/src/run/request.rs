//! What was asked for, checked without an engine: what makes no sense is said before anything is
//! looked up or made.

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use policy::Policy;

use super::{
    bundle::bundle, error::ConfigError, identity::Owner, publish::ingress, variables::variables,
};
use crate::{
    allow::allowlist,
    attend::Launcher,
    cli::{NetworkMode, RunArgs},
    engine::{EngineKind, WORKSPACE, check_arguments},
    environment::Environment,
    session::{Launched, PolicyIdentity},
};

/// A request that makes sense.
#[derive(Debug)]
pub(super) struct Request {
    /// What may be reached, under an allowlist.
    pub(super) policy: Option<Policy>,
    /// The directory of the host that the guest may change.
    pub(super) workspace: Option<Workspace>,
    /// Names of variables, all of them set.
    pub(super) variables: Vec<String>,
    /// The CA bundle to give to the container.
    pub(super) bundle: Option<String>,
    /// Published ports, as the entrypoint takes them.
    pub(super) ingress: Vec<String>,
}

/// A directory, by its real path.
#[derive(Debug)]
pub(super) struct Workspace {
    pub(super) path: String,
    owner: Owner,
}

impl Request {
    pub(super) async fn check(
        args: &RunArgs,
        launcher: Launcher,
        environment: &Environment,
    ) -> Result<Self, ConfigError> {
        let is_allowlist = args.network == NetworkMode::Allowlist;
        if !is_allowlist && !args.allow.is_empty() {
            return Err(ConfigError::UnusedList(args.network.as_str()));
        }
        let own_terminal = args.tty && !args.detach && launcher == Launcher::Ours;
        if own_terminal && !rustix::termios::isatty(rustix::stdio::stdin()) {
            return Err(ConfigError::NoTerminal);
        }
        check_arguments(&args.engine_arg, is_allowlist)?;
        let variables = variables(&args.env, environment)?;
        let ingress = args
            .publish
            .iter()
            .map(|port| ingress(port))
            .collect::<Result<_, _>>()?;
        let workspace = args
            .workspace
            .as_deref()
            .map(Workspace::check)
            .transpose()?;
        let bundle = match &args.host_ca {
            None => None,
            Some(named) => Some(utf8(bundle(named.as_deref(), environment)?)?),
        };
        let policy = match args.network {
            NetworkMode::Allowlist => Some(allowlist(&args.allow, environment).await?),
            NetworkMode::Default | NetworkMode::None => None,
        };
        Ok(Self {
            policy,
            workspace,
            variables,
            bundle,
            ingress,
        })
    }

    /// Whose the workspace is.
    pub(super) fn workspace_owner(&self) -> Option<Owner> {
        self.workspace.as_ref().map(|workspace| workspace.owner)
    }

    /// Where the command starts.
    pub(super) fn workdir(&self, args: &RunArgs) -> Option<String> {
        let mounted = || self.workspace.as_ref().map(|_| WORKSPACE.to_owned());
        args.workdir.clone().or_else(mounted)
    }

    /// What is odd about the allowlist.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.policy
            .iter()
            .flat_map(Policy::warnings)
            .map(ToString::to_string)
            .collect()
    }

    /// What the log will say of the launch.
    pub(super) fn record(
        &self,
        args: &RunArgs,
        engine: EngineKind,
        command: Vec<String>,
    ) -> Launched {
        let policy = self.policy.as_ref();
        let labels = args.labels.clone();
        Launched {
            image: args.image.clone(),
            workspace: self
                .workspace
                .as_ref()
                .map(|workspace| workspace.path.clone()),
            workdir: self.workdir(args),
            agent: labels.agent,
            branch: labels.branch,
            routed_from: labels.routed_from,
            route_reason: labels.route_reason,
            route_id: labels.route_id,
            route_attempt: labels.route_attempt,
            handoff_from: labels.handoff_from,
            handoff_session: labels.handoff_session,
            command,
            engine: Some(engine.as_str().to_owned()),
            runtime: args.runtime.clone(),
            network: Some(args.network.as_str().to_owned()),
            egress_enforcement_requested: policy.map(|_| args.enforce.as_str().to_owned()),
            egress_allow: policy.map(Policy::entries),
            egress_policy: policy.map(|policy| PolicyIdentity {
                digest: policy.digest().to_string(),
                generation: report::FIRST_GENERATION,
                ..PolicyIdentity::default()
            }),
            env_names: Some(self.variables.clone()),
            ..Launched::default()
        }
    }
}

impl Workspace {
    fn check(path: &Path) -> Result<Self, ConfigError> {
        let wrong = |source| ConfigError::Workspace {
            path: path.to_owned(),
            source,
        };
        let real = path.canonicalize().map_err(wrong)?;
        let found = real.metadata().map_err(wrong)?;
        if !found.is_dir() {
            return Err(wrong(io::ErrorKind::NotADirectory.into()));
        }
        Ok(Self {
            path: utf8(real)?,
            owner: Owner {
                uid: found.uid(),
                gid: found.gid(),
            },
        })
    }
}

/// Who runs this program.
pub(super) fn caller() -> Owner {
    Owner {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
    }
}

/// The engine's arguments and the log hold text.
fn utf8(path: PathBuf) -> Result<String, ConfigError> {
    path.into_os_string()
        .into_string()
        .map_err(|path| ConfigError::Workspace {
            path: path.into(),
            source: io::Error::new(io::ErrorKind::InvalidFilename, "the name is not UTF-8"),
        })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Verb};

    fn parsed(arguments: &[&str]) -> RunArgs {
        let cli = Cli::try_parse_from(["host-collector", "run"].iter().chain(arguments)).unwrap();
        let Verb::Run(args) = cli.verb else {
            unreachable!()
        };
        *args
    }

    async fn check(arguments: &[&str]) -> Result<Request, String> {
        let environment = Environment::of([("TOKEN", "x")]);
        let request = Request::check(&parsed(arguments), Launcher::Ours, &environment).await;
        request.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_request_that_makes_no_sense_is_refused_before_an_engine_is_looked_for() {
        for (arguments, part) in [
            (&["img"][..], "nothing is allowed"),
            (
                &["--network", "none", "--allow", "a.example", "img"],
                "no effect with --network none",
            ),
            (
                &["--workspace", "/nowhere", "--allow", "a.example", "img"],
                "--workspace /nowhere",
            ),
            (
                &["--workspace", "/dev/null", "--allow", "a.example", "img"],
                "name a directory",
            ),
            (
                &["--env", "A=b", "--allow", "a.example", "img"],
                "name only",
            ),
            (
                &["--publish", "x", "--allow", "a.example", "img"],
                "for example 8080:80",
            ),
            (
                &["--engine-arg=--privileged", "--allow", "a.example", "img"],
                "leave it out",
            ),
            (
                &["--host-ca=/nowhere", "--allow", "a.example", "img"],
                "/nowhere",
            ),
        ] {
            let line = check(arguments)
                .await
                .err()
                .unwrap_or_else(|| panic!("{arguments:?} passed"));
            assert!(line.contains(part) && !line.contains('\n'), "{line}");
        }
    }

    #[tokio::test]
    async fn the_workspace_is_known_by_its_real_path_and_owner() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        let request = check(&[
            "--network",
            "none",
            "--workspace",
            link.to_str().unwrap(),
            "img",
        ])
        .await
        .unwrap();
        let workspace = request.workspace.unwrap();
        assert_eq!(
            workspace.path,
            dir.path().canonicalize().unwrap().to_str().unwrap()
        );
        assert_eq!(workspace.owner, caller());
    }

    #[tokio::test]
    async fn without_an_allowlist_there_is_no_policy() {
        assert!(
            check(&["--network", "default", "img"])
                .await
                .unwrap()
                .policy
                .is_none()
        );
        assert!(
            check(&["--allow", "a.example", "img"])
                .await
                .unwrap()
                .policy
                .is_some()
        );
    }

    #[tokio::test]
    async fn the_command_starts_in_the_workspace_unless_told_otherwise() {
        for (arguments, expected) in [
            (&["--network", "none", "img"][..], None),
            (
                &["--network", "none", "--workspace", "/tmp", "img"],
                Some("/workspace"),
            ),
            (
                &[
                    "--network",
                    "none",
                    "--workspace",
                    "/tmp",
                    "--workdir",
                    "/srv",
                    "img",
                ],
                Some("/srv"),
            ),
            (
                &["--network", "none", "--workdir", "/srv", "img"],
                Some("/srv"),
            ),
        ] {
            let workdir = check(arguments).await.unwrap().workdir(&parsed(arguments));
            assert_eq!(workdir.as_deref(), expected, "{arguments:?}");
        }
    }

    #[tokio::test]
    async fn the_record_has_the_list_in_its_canonical_form_and_no_value() {
        let arguments = [
            "--allow",
            "B.example,a.example",
            "--env",
            "TOKEN",
            "--agent",
            "me",
            "img",
        ];
        let request = check(&arguments).await.unwrap();
        let record = request.record(&parsed(&arguments), EngineKind::Podman, vec!["x".into()]);
        assert_eq!(record.egress_allow.unwrap(), ["a.example", "b.example"]);
        assert_eq!(record.env_names.unwrap(), ["TOKEN"]);
        assert_eq!(
            (record.engine.as_deref(), record.agent.as_deref()),
            (Some("podman"), Some("me"))
        );
        assert_eq!(record.egress_policy.unwrap().generation, 1);
        assert_eq!(record.egress_enforcement_requested.as_deref(), Some("name"));
    }

    #[tokio::test]
    async fn the_record_says_who_was_asked_to_decide() {
        for by in ["name", "address", "auto"] {
            let arguments = ["--enforce", by, "--allow", "a.example", "img"];
            let request = check(&arguments).await.unwrap();
            let record = request.record(&parsed(&arguments), EngineKind::Docker, Vec::new());
            assert_eq!(record.egress_enforcement_requested.as_deref(), Some(by));
        }
    }

    #[tokio::test]
    async fn without_a_list_the_record_has_nothing_about_one() {
        let arguments = ["--network", "none", "img"];
        let record = check(&arguments).await.unwrap().record(
            &parsed(&arguments),
            EngineKind::Docker,
            Vec::new(),
        );
        assert_eq!(
            (
                record.egress_allow,
                record.egress_policy,
                record.egress_enforcement_requested
            ),
            (None, None, None)
        );
    }

    #[tokio::test]
    async fn what_is_odd_about_a_list_is_a_warning() {
        let odd = check(&["--allow", "a.example,*.b.example,c.b.example", "img"])
            .await
            .unwrap();
        assert_eq!(odd.warnings().len(), 1, "{:?}", odd.warnings());
        assert!(
            check(&["--network", "none", "img"])
                .await
                .unwrap()
                .warnings()
                .is_empty()
        );
    }

    #[test]
    fn a_path_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStringExt as _;
        let path = PathBuf::from(std::ffi::OsString::from_vec(vec![b'/', 0xff]));
        assert!(utf8(path).unwrap_err().to_string().contains("not UTF-8"));
    }
}
