//! Published ports: the engine forwards them, and the container's firewall must let them in.

/// A port that cannot be published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--publish {0}: not of the form [[IP:]HOST:]PORT[/tcp|/udp]; for example 8080:80")]
pub struct PublishError(String);

/// The port of the container in `[[IP:]HOST:]PORT[/PROTO]`, as the entrypoint takes it.
pub(super) fn ingress(published: &str) -> Result<String, PublishError> {
    let refuse = || PublishError(published.to_owned());
    let (ports, proto) = published.split_once('/').unwrap_or((published, "tcp"));
    if !matches!(proto, "tcp" | "udp") {
        return Err(refuse());
    }
    let container = ports.rsplit(':').next().unwrap_or_default();
    let (low, high) = container.split_once('-').unwrap_or((container, container));
    let port = |text: &str| {
        text.parse::<u16>()
            .ok()
            .filter(|&port| port != 0)
            .ok_or_else(refuse)
    };
    match (port(low)?, port(high)?) {
        (low, high) if low == high => Ok(format!("{proto}:{low}")),
        (low, high) if low < high => Ok(format!("{proto}:{low}-{high}")),
        _ => Err(refuse()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_s_side_is_what_the_firewall_lets_in() {
        for (published, expected) in [
            ("80", "tcp:80"),
            ("8080:80", "tcp:80"),
            ("127.0.0.1:8080:80/tcp", "tcp:80"),
            ("[::1]:8080:80", "tcp:80"),
            ("127.0.0.1::53/udp", "udp:53"),
            ("6000-6010:7000-7010", "tcp:7000-7010"),
        ] {
            assert_eq!(ingress(published).unwrap(), expected, "{published}");
        }
    }

    #[test]
    fn what_is_no_port_is_refused_with_an_example() {
        for published in ["", "x", "0", "80:", "80/sctp", "9-8", "80:70000"] {
            let line = ingress(published).unwrap_err().to_string();
            assert!(line.contains("for example 8080:80"), "{line}");
        }
    }
}
