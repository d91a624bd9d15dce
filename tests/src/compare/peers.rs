//! CONNECT proxies that Debian carries, each with an allowlist and the least that it needs besides.

use std::{
    fs,
    net::SocketAddr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::Context;

use super::{contestant::Rules, ends::NAME, ours::others};

/// What a peer is made to deny here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denies {
    /// It has no list of names.
    Nothing,
    /// Every name but one.
    AllButOne,
    /// Every name that is not on a list.
    ByList,
}

/// A peer that may be installed.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its name, and that of its package.
    pub name: &'static str,
    /// What it denies.
    pub denies: Denies,
    program: &'static str,
    configure: fn(&Path, SocketAddr, Rules) -> anyhow::Result<()>,
    arguments: fn(&Path) -> Vec<String>,
    directory: PathBuf,
}

/// The peers that are installed; their files go below `directory`.
pub fn installed(directory: &Path) -> anyhow::Result<Vec<Peer>> {
    let all = [
        (
            "tinyproxy-bin",
            "/usr/bin/tinyproxy",
            tinyproxy as fn(&Path, SocketAddr, Rules) -> anyhow::Result<()>,
            (|at| vec!["-d".to_owned(), "-c".to_owned(), file(at, "main")]) as fn(&Path) -> _,
        ),
        ("squid", "/usr/sbin/squid", squid, |at| {
            vec!["-N".to_owned(), "-f".to_owned(), file(at, "main")]
        }),
        ("privoxy", "/usr/sbin/privoxy", privoxy, |at| {
            vec!["--no-daemon".to_owned(), file(at, "main")]
        }),
        (
            "trafficserver",
            "/usr/bin/traffic_server",
            trafficserver,
            |at| vec![format!("--run-root={}", file(at, "runroot.yaml"))],
        ),
        ("apache2-bin", "/usr/sbin/apache2", apache, |at| {
            vec!["-f".to_owned(), file(at, "main"), "-DFOREGROUND".to_owned()]
        }),
    ];
    let mut peers = Vec::new();
    for (name, program, configure, arguments) in all {
        if Path::new(program).exists() {
            let directory = directory.join(name);
            fs::create_dir_all(&directory)?;
            crate::programs::open_to(&directory, 0o777)?;
            peers.push(Peer {
                name,
                denies: match name {
                    "trafficserver" => Denies::Nothing,
                    "apache2-bin" => Denies::AllButOne,
                    _ => Denies::ByList,
                },
                program,
                configure,
                arguments,
                directory,
            });
        }
    }
    Ok(peers)
}

impl Peer {
    /// Starts it on `address`.
    pub fn start(&self, address: SocketAddr, rules: Rules) -> anyhow::Result<Child> {
        (self.configure)(&self.directory, address, rules)
            .with_context(|| format!("configure {}", self.name))?;
        Command::new(self.program)
            .args((self.arguments)(&self.directory))
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("start {}", self.program))
    }

    /// Its version, as the package has it.
    pub fn version(&self) -> anyhow::Result<String> {
        let mut query = Command::new("dpkg-query");
        query.args(["-W", "-f=${Version}", self.name]);
        crate::process::output_of(&mut query)
    }
}

fn file(directory: &Path, name: &str) -> String {
    directory.join(name).display().to_string()
}

fn tinyproxy(at: &Path, address: SocketAddr, rules: Rules) -> anyhow::Result<()> {
    let escape = |name: String| format!("^{}$", name.replace('.', "\\."));
    let names = names(rules).map(escape);
    fs::write(at.join("names"), lines(names))?;
    let ports = rules.ports.map(|port| format!("ConnectPort {port}"));
    let main = format!(
        "Port {}\nListen {}\nMaxClients {}\nTimeout 600\nLogLevel Critical\nAllow 127.0.0.1\n\
         {}\nFilterDefaultDeny Yes\nFilterExtended Yes\nFilter \"{}\"\n",
        address.port(),
        address.ip(),
        rules.connections,
        ports.join("\n"),
        file(at, "names"),
    );
    Ok(fs::write(at.join("main"), main)?)
}

fn squid(at: &Path, address: SocketAddr, rules: Rules) -> anyhow::Result<()> {
    fs::write(at.join("names"), lines(names(rules)))?;
    let main = format!(
        "http_port {address}\nacl names dstdomain \"{}\"\nacl ports port {} {}\n\
         http_access allow CONNECT names ports\nhttp_access deny all\ncache deny all\n\
         access_log none\ncache_store_log none\ncache_log /dev/null\npid_filename none\n\
         coredump_dir {}\ndns_nameservers 127.0.0.1\nshutdown_lifetime 0 seconds\n",
        file(at, "names"),
        rules.ports[0],
        rules.ports[1],
        at.display(),
    );
    Ok(fs::write(at.join("main"), main)?)
}

fn privoxy(at: &Path, address: SocketAddr, rules: Rules) -> anyhow::Result<()> {
    let main = format!(
        "confdir {0}\nlogdir {0}\nactionsfile names.action\nlisten-address {address}\ndebug 0\n\
         max-client-connections {1}\n",
        at.display(),
        rules.connections,
    );
    let allowed = names(rules).map(|name| format!("{name}/"));
    let actions = format!(
        "{{+block{{not on the list}}}}\n/\n{{-block}}\n{}",
        lines(allowed)
    );
    fs::write(at.join("names.action"), actions)?;
    Ok(fs::write(at.join("main"), main)?)
}

/// Its package has every directory as an absolute path, which a layout file alone moves. It does not
/// start without a list of whom it serves and of where its cache is, which is nowhere.
fn trafficserver(at: &Path, address: SocketAddr, rules: Rules) -> anyhow::Result<()> {
    let own = ["sysconfdir", "datadir", "localstatedir", "runtimedir"];
    let own = own.into_iter().chain(["logdir", "cachedir"]);
    let own = own.map(|name| format!("{name}: {}", at.display()));
    let packaged = [
        "prefix: /usr",
        "exec_prefix: /usr",
        "bindir: /usr/bin",
        "sbindir: /usr/bin",
        "includedir: /usr/include",
        "libdir: /usr/lib/trafficserver",
        "libexecdir: /usr/lib/trafficserver/modules",
    ];
    let layout = packaged.map(str::to_owned).into_iter().chain(own);
    fs::write(at.join("runroot.yaml"), lines(layout))?;
    fs::write(at.join("storage.config"), "")?;
    fs::write(
        at.join("ip_allow.yaml"),
        "ip_allow:\n  - apply: in\n    ip_addrs: 127.0.0.1\n    action: allow\n    methods: ALL\n",
    )?;
    let main = format!(
        "CONFIG proxy.config.http.server_ports STRING {}:ip-in={}\n\
         CONFIG proxy.config.http.connect_ports STRING {} {}\n\
         CONFIG proxy.config.url_remap.remap_required INT 0\n\
         CONFIG proxy.config.reverse_proxy.enabled INT 0\n\
         CONFIG proxy.config.http.cache.http INT 0\n\
         CONFIG proxy.config.log.logging_enabled INT 0\n\
         CONFIG proxy.config.dns.nameservers STRING 127.0.0.1\n\
         CONFIG proxy.config.admin.user_id STRING #-1\n\
         CONFIG proxy.config.net.connections_throttle INT {}\n",
        address.port(),
        address.ip(),
        rules.ports[0],
        rules.ports[1],
        // It counts both ends of a tunnel, and keeps some for itself.
        rules.connections * 2 + 1_000,
    );
    Ok(fs::write(at.join("records.config"), main)?)
}

fn apache(at: &Path, address: SocketAddr, rules: Rules) -> anyhow::Result<()> {
    let modules = ["mpm_event", "authz_core", "proxy", "proxy_connect"];
    let load =
        |name: &str| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so");
    let main = format!(
        "ServerRoot {0}\nServerName localhost\nPidFile {0}/pid\nErrorLog /dev/null\nUser nobody\n\
         Group nogroup\nListen {address}\n{1}\n{4}\nProxyRequests On\nAllowCONNECT {2} {3}\n\
         <Proxy \"*\">\nRequire all denied\n</Proxy>\n\
         <ProxyMatch \"^{NAME}:\">\nRequire all granted\n</ProxyMatch>\n",
        at.display(),
        modules.map(load).join("\n"),
        rules.ports[0],
        rules.ports[1],
        // A tunnel has a thread for as long as it is open, and none is to be started meanwhile.
        format_args!(
            "ThreadLimit {THREADS}\nThreadsPerChild {THREADS}\nServerLimit {0}\nStartServers 2\n\
             MaxRequestWorkers {1}\nMaxSpareThreads {1}\nMinSpareThreads {THREADS}",
            rules.connections.div_ceil(THREADS),
            rules.connections.next_multiple_of(THREADS),
        ),
    );
    Ok(fs::write(at.join("main"), main)?)
}

const THREADS: u32 = 250;

/// The names of a list, without what only ours can say of them.
fn names(rules: Rules) -> impl Iterator<Item = String> {
    std::iter::once(NAME.to_owned()).chain(others(rules.entries.saturating_sub(1)))
}

fn lines(names: impl Iterator<Item = String>) -> String {
    names.map(|name| name + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configuration_names_the_address_and_the_ports() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let rules = Rules {
            ports: [4001, 4002],
            entries: 10,
            connections: 7,
        };
        for configure in [tinyproxy, squid, apache] {
            configure(at, "127.0.0.1:3999".parse().unwrap(), rules).unwrap();
            let main = fs::read_to_string(at.join("main")).unwrap();
            assert!(
                ["3999", "4001", "4002"]
                    .iter()
                    .all(|port| main.contains(port)),
                "{main}"
            );
        }
        trafficserver(at, "127.0.0.1:3999".parse().unwrap(), rules).unwrap();
        let records = fs::read_to_string(at.join("records.config")).unwrap();
        assert!(
            records.contains("3999:ip-in=127.0.0.1") && records.contains("STRING 4001 4002"),
            "{records}"
        );
        privoxy(at, "127.0.0.1:3999".parse().unwrap(), rules).unwrap();
        let names = fs::read_to_string(at.join("names.action")).unwrap();
        assert_eq!(names.lines().count(), 3 + 10);
    }
}
