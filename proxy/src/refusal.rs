//! Why a connection goes no further: refused here, or let through and failed on its own account.

use std::{io, net::IpAddr, time::Duration};

use policy::{Denial, DenyReason};
use report::Target;

/// An attempt that goes no further, and what it was for.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) target: Target,
    pub(crate) refusal: Refusal,
}

/// Why an attempt goes no further.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Policy does not let it through.
    Denied(Denial),
    /// The request can be read in no way, or in more than one. Counted as `malformed`.
    Unclear(String),
    /// As many connections as there may be are open.
    Busy,
    /// Policy let it through, and it did not work. Never counted as a denial.
    Failed(Failure),
}

/// Why an allowed attempt did not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("no such name")]
    NoSuchName,
    #[error("the resolver does not answer")]
    ResolverSilent,
    #[error("the resolver could not answer: {0}")]
    Resolver(String),
    #[error("connection refused")]
    ConnectionRefused,
    #[error("no connection within {} seconds", .0.as_secs())]
    ConnectionTimeout(Duration),
    #[error("no route to the destination")]
    Unroutable,
    #[error("could not connect: {0}")]
    Connection(io::ErrorKind),
    /// Answered as [`Refusal::Busy`]: it is a limit, and not the destination's doing.
    #[error("the proxy has no descriptor left for it")]
    Exhausted,
    #[error("the upstream proxy answered {0}")]
    UpstreamProxy(u16),
    #[error("the upstream proxy did not answer in HTTP/1.1")]
    UpstreamProxyProtocol,
    #[error("the connection ended before the response did")]
    Incomplete,
    #[error("the response is not HTTP/1.1: {0}")]
    Response(String),
}

impl Refused {
    /// An attempt that policy does not let through.
    pub(crate) fn new(target: Target, denial: Denial) -> Self {
        Self {
            target,
            refusal: Refusal::Denied(denial),
        }
    }
}

impl Refusal {
    /// The reason to count it under; `None` for a failure, which is not a denial.
    pub(crate) fn reason(&self) -> Option<DenyReason> {
        match self {
            Self::Denied(denial) => Some(denial.reason),
            Self::Unclear(_) => Some(DenyReason::Malformed),
            Self::Busy => Some(DenyReason::Limit),
            Self::Failed(_) => None,
        }
    }

    /// The address that the host resolved to, where that is why.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Denied(denial) => denial.address,
            Self::Unclear(_) | Self::Busy | Self::Failed(_) => None,
        }
    }

    /// What a client is told that would change it, or what is wrong with what it said.
    pub(crate) fn hint(&self) -> Option<&str> {
        match self {
            Self::Denied(denial) => denial.hint.as_deref(),
            Self::Unclear(words) => Some(words),
            Self::Busy => Some(BUSY),
            Self::Failed(_) => None,
        }
    }
}

impl From<Denial> for Refusal {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        if failure == Failure::Exhausted {
            Self::Busy
        } else {
            Self::Failed(failure)
        }
    }
}

impl Failure {
    /// The error type of `Proxy-Status` (RFC 9209 §2.3).
    pub(crate) fn error_type(&self) -> &'static str {
        match self {
            Self::NoSuchName | Self::Resolver(_) => "dns_error",
            Self::ResolverSilent => "dns_timeout",
            Self::ConnectionRefused => "connection_refused",
            Self::ConnectionTimeout(_) => "connection_timeout",
            Self::Unroutable => "destination_ip_unroutable",
            Self::Exhausted => "connection_limit_reached",
            Self::Connection(_) | Self::UpstreamProxy(_) => "destination_unavailable",
            Self::Incomplete => "http_response_incomplete",
            Self::Response(_) | Self::UpstreamProxyProtocol => "http_protocol_error",
        }
    }

    /// The status that a client is answered with.
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::ResolverSilent | Self::ConnectionTimeout(_) => 504,
            Self::Exhausted => 503,
            Self::NoSuchName
            | Self::Resolver(_)
            | Self::ConnectionRefused
            | Self::Unroutable
            | Self::Connection(_)
            | Self::UpstreamProxy(_)
            | Self::UpstreamProxyProtocol
            | Self::Incomplete
            | Self::Response(_) => 502,
        }
    }
}

/// Whether the proxy, or the machine, has run out of descriptors or of memory for sockets.
pub(crate) fn is_exhaustion(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}

const BUSY: &str =
    "as many connections as this sandbox may have are open; close some, then try again";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_out_of_descriptors_is_a_limit_and_no_failure_of_the_destination() {
        let refusal = Refusal::from(Failure::Exhausted);
        assert_eq!(refusal.reason(), Some(DenyReason::Limit));
        for (errno, exhausted) in [
            (libc::EMFILE, true),
            (libc::ENFILE, true),
            (libc::ENOBUFS, true),
            (libc::ECONNREFUSED, false),
        ] {
            let error = io::Error::from_raw_os_error(errno);
            assert_eq!(is_exhaustion(&error), exhausted, "{error}");
        }
    }

    #[test]
    fn a_failure_is_never_counted_as_a_denial() {
        assert_eq!(Refusal::from(Failure::ConnectionRefused).reason(), None);
        assert_eq!(Refusal::Busy.reason(), Some(DenyReason::Limit));
        assert_eq!(
            Refusal::Unclear(String::new()).reason(),
            Some(DenyReason::Malformed)
        );
        assert_eq!(
            Refusal::from(Denial::new(DenyReason::NotTls)).reason(),
            Some(DenyReason::NotTls)
        );
    }
}
