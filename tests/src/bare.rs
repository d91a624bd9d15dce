//! Guests without an engine: the real entrypoint and proxy in namespaces that the tests make, and
//! the collector's own channel to hear them.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context, anyhow, ensure};
use host_collector::{
    channel::{Attendance, Channel, Terms},
    session::{self, Session},
};
use report::{Enforcement, Received};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;

use crate::{
    case::{Case, GUEST_MODULE, Network, Outcome},
    internet::{Internet, Subnet},
    namespace::Namespace,
    process::{Finished, Running, output_of},
    programs::{Programs, open_to, public_directory},
    schema,
};

const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/sh
sandbox:x:1000:1000::/tmp:/bin/sh
sandbox-proxy:x:990:990::/nonexistent:/usr/sbin/nologin
";
const GROUP: &str = "root:x:0:\nsandbox:x:1000:\nsandbox-proxy:x:990:\ngames:x:60:sandbox\nusers:x:100:other,sandbox\n";
/// The last part of a guest's address.
const ADDRESS: u8 = 200;
/// A machine that forwards what it is asked to, by source routes and segment routing too, and lets
/// anybody ping and bind any port, as engines do: what holds on it holds by no default.
const CARELESS: &str = "
cd /proc/sys/net
for on in ipv4/conf/*/forwarding ipv4/conf/*/accept_source_route ipv6/conf/*/forwarding \
    ipv6/conf/*/accept_source_route ipv6/conf/*/seg6_enabled ipv4/conf/*/accept_local; do
    if test -e $on; then echo 1 >$on; fi
done
for off in ipv4/conf/*/rp_filter ipv4/ip_unprivileged_port_start; do echo 0 >$off; done
echo 0 2147483647 >ipv4/ping_group_range";
/// What an engine's default environment has, and nothing of this machine's.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A fake internet, for one bare guest at a time.
#[derive(Debug)]
pub struct Lab {
    programs: Programs,
    internet: Internet,
}

impl Lab {
    /// Makes one. Namespaces keep labs apart, so all have the same addresses.
    pub fn create() -> anyhow::Result<Self> {
        Ok(Self {
            programs: Programs::locate()?,
            internet: Internet::start(Subnet::new(1))?,
        })
    }

    /// Runs a case and checks it.
    pub fn check(&self, case: &Case) -> anyhow::Result<()> {
        self.internet.reset()?;
        let subnet = self.internet.subnet();
        let guest = Bare::create(&self.programs, &self.internet, case.proxy)?;
        let channel = Channel::open(guest.directory.path(), Terms::random(None)?)?;
        let mut env = vec![];
        if case.network == Network::Allowlist {
            env.extend([
                ("SANDBOX_EGRESS_ALLOW", hand_over(case, subnet, &channel)?),
                ("SANDBOX_RUN_AS", "sandbox".to_owned()),
                ("SANDBOX_REPORT", "required".to_owned()),
                ("SANDBOX_REPORT_NONCE", channel.nonce().expose().to_owned()),
                ("SANDBOX_RUN_ID", "bare".to_owned()),
            ]);
            let enforce = case.enforce.clone();
            env.extend(enforce.map(|by| ("SANDBOX_ENFORCE", by)));
        }
        let env = env
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        let running = guest.start(env.chain(case.env(subnet)), case.command(subnet))?;
        let (finished, attendance) = attend(channel, running, |_| ())?;
        let account = self.internet.account()?;
        schema::check(&serde_json::to_value(recorded(&attendance))?)?;
        let line = attendance.was_launched().then(|| line(&attendance));
        let reports = attendance.reports.as_ref();
        if let Some(enforcing) = reports.and_then(|reports| reports.account.enforcing()) {
            let (found, wanted) = (enforcing.backend.as_str(), case.backend());
            ensure!(
                found == wanted,
                "the rules are those of {found}, not {wanted}"
            );
        }
        case.check(
            subnet,
            &Outcome {
                finished,
                line,
                account,
            },
        )
    }
}

/// The allowlist, or the name of a file of it, as the collector hands it over.
fn hand_over(case: &Case, subnet: Subnet, channel: &Channel) -> anyhow::Result<String> {
    let entries = case.allow(subnet);
    if !case.is_long() {
        return Ok(entries.join(","));
    }
    let file = channel.directory().join("allow.txt");
    fs::write(&file, entries.join("\n")).context("write a long allowlist")?;
    Ok("@/run/sandbox-egress/host/allow.txt".to_owned())
}

/// Listens to a guest until it has ended; `on_message` sees every report when it is stored.
pub(crate) fn attend(
    channel: Channel,
    running: Running,
    on_message: impl FnMut(&Received) + Send + 'static,
) -> anyhow::Result<(Finished, Attendance)> {
    let (over, is_over) = oneshot::channel();
    let listener = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let over = async { drop(is_over.await) };
        anyhow::Ok(runtime.block_on(channel.attend(over, on_message)))
    });
    let finished = running.finish();
    // Nobody waits for it any more where the container has ended the channel itself.
    let _ = over.send(());
    let attendance = listener
        .join()
        .map_err(|_| anyhow!("the listener panicked"))??;
    Ok((finished?, attendance))
}

/// The session line that the collector would write, as far as it depends on what it heard.
fn recorded(attendance: &Attendance) -> Session {
    Session {
        v: Some(session::VERSION),
        time: "2026-01-31T12:00:00.000Z".to_owned(),
        host: Some("lab".to_owned()),
        run_id: Some("0123456789abcdef01234567".to_owned()),
        launch: session::Launched {
            engine: Some("docker".to_owned()),
            network: Some("allowlist".to_owned()),
            ..session::Launched::default()
        },
        finished: Some(true),
        network: session::Network::of(attendance),
        ..Session::default()
    }
}

/// What the collector heard, under the names that a session line has for it.
fn line(attendance: &Attendance) -> Value {
    let Some(reports) = &attendance.reports else {
        return Value::Null;
    };
    let account = &reports.account;
    let denied = account.refused(usize::MAX).into_iter().map(|picked| {
        json!({
            "host": picked.key.target.host, "address": picked.key.target.address,
            "port": picked.key.target.port, "proto": picked.key.proto,
            "reason": picked.key.reason, "count": picked.seen.count,
        })
    });
    let allowed = account
        .reached()
        .pick(usize::MAX)
        .into_iter()
        .map(|picked| {
            json!({
                "host": picked.key.host, "address": picked.key.address, "port": picked.key.port,
                "connections": picked.seen.connections, "failures": picked.seen.failures,
            })
        });
    let totals = account.totals();
    let distinct = account.refused_distinct();
    let mut line = json!({
        "egress_channel": {"state": attendance.verdict().state, "reason": attendance.shortfall()},
        "egress_degradations": account.enforcing().map(|enforcing| &enforcing.degradations),
        "egress_enforcement": account.enforcing().map(|enforcing| enforcing.enforcement),
        "end_reason": account.exit().map(|exit| exit.end_reason),
        "signal": account.exit().and_then(|exit| exit.signal),
        "processes": {"outlived_root": account.exit().map(|exit| exit.outlived_root)},
        "egress_denied_by_reason": totals.denied,
        "egress_denied_hosts": denied.collect::<Vec<_>>(),
        "egress_denied_hosts_distinct": distinct.count,
        "egress_hosts": allowed.collect::<Vec<_>>(),
    });
    let bound = if attendance.verdict().state.is_final() {
        ""
    } else {
        "_at_least"
    };
    let numbers = [
        ("egress_denied", totals.denied.values().sum::<u64>()),
        ("egress_allowed", totals.connections),
    ];
    let by_address = account
        .enforcing()
        .is_some_and(|enforcing| enforcing.enforcement == Enforcement::Address);
    let numbers = numbers
        .into_iter()
        // Nobody counts what passes by its address.
        .filter(|(field, _)| !by_address || *field != "egress_allowed")
        .map(|(field, number)| (format!("{field}{bound}"), number.into()));
    let estimated = (
        "egress_denied_hosts_distinct_estimated".to_owned(),
        true.into(),
    );
    if let Some(fields) = line.as_object_mut() {
        fields.extend(numbers);
        fields.extend(distinct.estimated.then_some(estimated));
    }
    line
}

/// A place for one guest: namespace, files and the directory of its channel.
#[derive(Debug)]
pub(crate) struct Bare {
    namespace: Namespace,
    pub(crate) directory: TempDir,
}

impl Bare {
    pub(crate) fn create(
        programs: &Programs,
        internet: &Internet,
        proxy: bool,
    ) -> anyhow::Result<Self> {
        let namespace = Namespace::create("guest")?;
        internet.plug_guest(&namespace, ADDRESS)?;
        output_of(namespace.command("sh").args(["-c", CARELESS]))
            .context("make a careless machine")?;
        let directory = public_directory()?;
        let bare = Self {
            namespace,
            directory,
        };
        bare.lay_files(programs, internet, proxy)
            .context("lay the files of a guest")?;
        Ok(bare)
    }

    /// Starts the entrypoint as process 1, with `env` and no other variable of note.
    pub(crate) fn start(
        &self,
        env: impl IntoIterator<Item = (String, String)>,
        command: Vec<String>,
    ) -> anyhow::Result<Running> {
        let mut child = self.namespace.command("unshare");
        child
            .args(["--mount", "--pid", "--fork", "--kill-child", "bash"])
            .arg(self.path("guest.sh"))
            .arg(self.directory.path())
            .args(command)
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .env("SSL_CERT_FILE", self.path("workspace/ca.pem"))
            .envs(env);
        Running::start(&mut child)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn lay_files(
        &self,
        programs: &Programs,
        internet: &Internet,
        proxy: bool,
    ) -> anyhow::Result<()> {
        for name in ["etc", "bin", "workspace"] {
            fs::create_dir(self.path(name))?;
        }
        let [resolver, _] = internet.subnet().resolver();
        let (module, text) = GUEST_MODULE;
        for (name, text) in [
            (&*format!("workspace/{module}"), text),
            ("etc/passwd", PASSWD),
            ("etc/group", GROUP),
            ("etc/resolv.conf", &format!("nameserver {resolver}\n")),
            ("workspace/ca.pem", internet.root_certificate()),
            ("guest.sh", include_str!("guest.sh")),
        ] {
            fs::write(self.path(name), text)?;
            open_to(&self.path(name), 0o644)?;
        }
        let proxy = proxy.then_some("sandbox-egress-proxy");
        for program in ["sandbox-entrypoint"].into_iter().chain(proxy) {
            place(&programs.path(program), &self.path("bin").join(program))?;
        }
        open_to(&self.path("workspace"), 0o777)?;
        Ok(())
    }
}

/// Copies rather than links: where the build is may be closed to other users, or another disk.
fn place(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(from, to)
        .with_context(|| format!("copy {}", from.display()))
        .map(drop)
}
