//! The environment that the guest gets: its own, without what was said to PID 1.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::Path,
};

use crate::accounts::User;

/// Variables by name.
pub(crate) type Environment = BTreeMap<OsString, OsString>;

/// What the guest keeps of PID 1's environment: nothing that is reserved, and a home of its own
/// instead of root's.
pub(crate) fn inherited(
    all: impl IntoIterator<Item = (OsString, OsString)>,
    user: Option<&User>,
) -> Environment {
    let mut kept: Environment = all
        .into_iter()
        .filter(|(name, _)| !is_reserved(name))
        .collect();
    if let Some(user) = user {
        let home = OsStr::new("HOME");
        if kept.get(home).is_none_or(|value| value == ROOT_HOME) {
            let own = user.home.as_deref().unwrap_or_else(|| Path::new("/"));
            kept.insert(home.into(), own.into());
        }
    }
    kept
}

/// Tells clients where the proxy is. A courtesy: what does not read these is redirected.
///
/// A proxy that was named before is replaced, since it is out of reach; a choice of another kind is
/// kept. `ALL_PROXY` is HTTP as well: of SOCKS some clients only say that they lack a package for
/// it, and do so for the mere variable (ADR 15).
pub(crate) fn add_proxy(environment: &mut Environment, port: u16) {
    let http = format!("http://127.0.0.1:{port}");
    for (name, value) in [
        ("HTTP_PROXY", http.clone()),
        ("HTTPS_PROXY", http.clone()),
        ("ALL_PROXY", http),
        ("NO_PROXY", "localhost,127.0.0.1,::1".to_owned()),
    ] {
        environment.insert(name.to_lowercase().into(), value.clone().into());
        environment.insert(name.into(), value.into());
    }
    let node = environment.entry("NODE_USE_ENV_PROXY".into());
    node.or_insert_with(|| "1".into());
    let java = format!(
        "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort={port} -Dhttps.proxyHost=127.0.0.1 \
         -Dhttps.proxyPort={port} -Dhttp.nonProxyHosts=localhost|127.*|[::1]"
    );
    let java = match environment.get(OsStr::new("JAVA_TOOL_OPTIONS")) {
        Some(own) => {
            let mut both = own.clone();
            both.push(" ");
            both.push(java);
            both
        }
        None => java.into(),
    };
    environment.insert("JAVA_TOOL_OPTIONS".into(), java);
}

/// Has git go through the proxy over SSH too, so that the record has it and a refusal explains
/// itself; without it, git would reach the address that it was told by DNS.
///
/// An ssh that the user chose is kept. So is everything where `program` could be read otherwise by
/// one of the two shells that it passes, or by ssh.
pub(crate) fn add_ssh(environment: &mut Environment, port: u16, program: &Path) {
    let chosen = ["GIT_SSH_COMMAND", "GIT_SSH"];
    if chosen
        .iter()
        .any(|name| environment.contains_key(OsStr::new(name)))
    {
        return;
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if let Some(program) = program.to_str().filter(|path| path.chars().all(plain)) {
        let command =
            format!("ssh -o ProxyCommand='{program} connect --proxy 127.0.0.1:{port} %h %p'");
        environment.insert("GIT_SSH_COMMAND".into(), command.into());
    }
}

/// `SANDBOX_…` is how PID 1 is spoken to; the nonce of the report channel is among it.
fn is_reserved(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"SANDBOX_")
}

const ROOT_HOME: &str = "/root";

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    fn user(home: Option<&str>) -> User {
        User {
            uid: 1000,
            gid: 1000,
            groups: Vec::new(),
            home: home.map(Into::into),
        }
    }

    #[test]
    fn nothing_that_was_said_to_pid_1_reaches_the_guest() {
        let all = variables(&[
            ("SANDBOX_REPORT_NONCE", "secret"),
            ("SANDBOX_ANYTHING", "x"),
            ("PATH", "/bin"),
        ]);
        let kept = inherited(all, None);
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["PATH"]);
    }

    #[test]
    fn roots_home_becomes_the_guests_own() {
        for (home, own, expected) in [
            (Some("/root"), Some("/home/sandbox"), "/home/sandbox"),
            (None, Some("/home/sandbox"), "/home/sandbox"),
            (Some("/root"), None, "/"),
            (Some("/chosen"), Some("/home/sandbox"), "/chosen"),
        ] {
            let all = home
                .map(|home| variables(&[("HOME", home)]))
                .unwrap_or_default();
            let kept = inherited(all, Some(&user(own)));
            assert_eq!(kept[OsStr::new("HOME")], expected, "{home:?} {own:?}");
        }
    }

    #[test]
    fn clients_find_the_proxy_in_either_spelling() {
        let mut environment = Environment::new();
        add_proxy(&mut environment, 3128);
        for name in ["HTTPS_PROXY", "https_proxy", "http_proxy", "ALL_PROXY"] {
            assert_eq!(
                environment[OsStr::new(name)],
                "http://127.0.0.1:3128",
                "{name}"
            );
        }
    }

    #[test]
    fn what_the_user_chose_for_java_is_kept() {
        let mut environment = inherited(variables(&[("JAVA_TOOL_OPTIONS", "-Xmx1g")]), None);
        add_proxy(&mut environment, 1);
        let java = environment[OsStr::new("JAVA_TOOL_OPTIONS")]
            .to_str()
            .unwrap();
        assert!(java.starts_with("-Xmx1g -Dhttp.proxyHost="), "{java}");
    }

    #[test]
    fn variables_that_only_resemble_reserved_ones_are_kept() {
        let kept = inherited(
            variables(&[("SANDBOX", "1"), ("MY_SANDBOX_X", "2"), ("sandbox_x", "3")]),
            None,
        );
        assert_eq!(kept.len(), 3);
    }

    #[test]
    fn a_value_that_is_not_text_is_handed_on_as_it_is() {
        use std::os::unix::ffi::OsStringExt as _;
        let odd = OsString::from_vec(vec![0xff, 0xfe]);
        let kept = inherited([("X".into(), odd.clone())], None);
        assert_eq!(kept[OsStr::new("X")], odd);
    }

    #[test]
    fn loopback_is_never_asked_of_the_proxy() {
        let mut environment = Environment::new();
        add_proxy(&mut environment, 9);
        assert_eq!(
            environment[OsStr::new("NO_PROXY")],
            "localhost,127.0.0.1,::1"
        );
        assert_eq!(
            environment[OsStr::new("no_proxy")],
            environment[OsStr::new("NO_PROXY")]
        );
    }

    #[test]
    fn a_proxy_of_the_launchers_own_is_replaced() {
        let mut environment = inherited(variables(&[("https_proxy", "http://elsewhere:1")]), None);
        add_proxy(&mut environment, 3128);
        assert_eq!(
            environment[OsStr::new("https_proxy")],
            "http://127.0.0.1:3128"
        );
    }

    fn ssh_command(own: &[(&str, &str)], program: &str) -> Option<String> {
        let mut environment = inherited(variables(own), None);
        add_ssh(&mut environment, 3128, Path::new(program));
        let command = environment.get(OsStr::new("GIT_SSH_COMMAND"))?;
        Some(command.to_str().unwrap().to_owned())
    }

    #[test]
    fn git_goes_through_the_proxy_over_ssh() {
        let command = ssh_command(&[], "/usr/local/bin/sandbox-egress-proxy").unwrap();
        assert_eq!(
            command,
            "ssh -o ProxyCommand='/usr/local/bin/sandbox-egress-proxy connect --proxy \
             127.0.0.1:3128 %h %p'"
        );
    }

    #[test]
    fn an_ssh_that_the_user_chose_is_kept() {
        let own = [("GIT_SSH_COMMAND", "ssh -i key")];
        assert_eq!(ssh_command(&own, "/bin/proxy").unwrap(), "ssh -i key");
        assert_eq!(ssh_command(&[("GIT_SSH", "/opt/ssh")], "/bin/proxy"), None);
    }

    #[test]
    fn a_path_that_a_shell_could_read_otherwise_is_left_out() {
        for program in [
            "/a b/proxy",
            "/a'b/proxy",
            "/a%h/proxy",
            "/a$x/proxy",
            "/a;b",
        ] {
            assert_eq!(ssh_command(&[], program), None, "{program}");
        }
    }

    #[test]
    fn what_the_user_chose_for_node_is_kept() {
        for (own, expected) in [(&[("NODE_USE_ENV_PROXY", "0")][..], "0"), (&[], "1")] {
            let mut environment = inherited(variables(own), None);
            add_proxy(&mut environment, 1);
            assert_eq!(environment[OsStr::new("NODE_USE_ENV_PROXY")], expected);
        }
    }

    #[test]
    fn no_variable_names_a_socks_proxy() {
        let mut environment = Environment::new();
        add_proxy(&mut environment, 1);
        for (name, value) in &environment {
            assert!(
                !value.to_str().unwrap().contains("socks"),
                "{}",
                name.display()
            );
        }
    }
}
