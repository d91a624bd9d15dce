//! Tells from its first bytes what a client speaks.

/// What a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spoken {
    /// A TLS handshake record.
    Tls,
    /// A request line of HTTP/1, or the preface of HTTP/2.
    Http,
    /// Neither.
    Other,
}

impl Spoken {
    /// `None` while more bytes could decide it.
    ///
    /// HTTP is believed only after its whole first line: `SSH-2.0-x y` and `HELO host` begin as a
    /// request may begin, and where an address rule lets them through they must not be held up.
    pub(crate) fn classify(bytes: &[u8]) -> Option<Self> {
        match bytes.first() {
            None => None,
            Some(&HANDSHAKE) => Some(Self::Tls),
            Some(_) => classify_line(bytes),
        }
    }
}

fn classify_line(bytes: &[u8]) -> Option<Spoken> {
    let method_end = bytes.iter().position(|b| !matches!(b, b'A'..=b'Z' | b'-'));
    match method_end {
        None if bytes.len() <= LONGEST_METHOD => None,
        Some(end) if (1..=LONGEST_METHOD).contains(&end) && bytes.get(end) == Some(&b' ') => {
            match bytes.iter().position(|&b| b == b'\n') {
                None if bytes.len() < LONGEST_LINE => None,
                None => Some(Spoken::Other),
                Some(line_end) => Some(by_version(bytes.get(..line_end).unwrap_or_default())),
            }
        }
        None | Some(_) => Some(Spoken::Other),
    }
}

fn by_version(line: &[u8]) -> Spoken {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if VERSIONS.iter().any(|version| line.ends_with(version)) {
        Spoken::Http
    } else {
        Spoken::Other
    }
}

/// The record type of a handshake (RFC 8446 §5.1).
const HANDSHAKE: u8 = 22;
/// The longest registered method is `UPDATEREDIRECTREF`, 17 bytes.
const LONGEST_METHOD: usize = 32;
const LONGEST_LINE: usize = crate::head::MAX_HEAD;
const VERSIONS: [&[u8]; 3] = [b" HTTP/1.1", b" HTTP/1.0", b" HTTP/2.0"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_tell_what_is_spoken() {
        for (bytes, spoken) in [
            (&b"\x16"[..], Some(Spoken::Tls)),
            (b"", None),
            (b"GET", None),
            (b"GET / HTTP/1.1", None),
            (b"GET / HTTP/1.1\r\n", Some(Spoken::Http)),
            (b"M-SEARCH * HTTP/1.1\n", Some(Spoken::Http)),
            (b"PRI * HTTP/2.0\r\n", Some(Spoken::Http)),
            (b"GET key\r\n", Some(Spoken::Other)),
            (b"PING\r\n", Some(Spoken::Other)),
            (b"SSH-2.0-OpenSSH_9.6 Debian\r\n", Some(Spoken::Other)),
            (b"SSH-2", Some(Spoken::Other)),
            (b" GET / HTTP/1.1\r\n", Some(Spoken::Other)),
            (b"get / HTTP/1.1\r\n", Some(Spoken::Other)),
            (b"\x05\x01\x00", Some(Spoken::Other)),
            (b"\x80\x2e\x01", Some(Spoken::Other)),
            (b"\0", Some(Spoken::Other)),
        ] {
            assert_eq!(
                Spoken::classify(bytes),
                spoken,
                "{:?}",
                String::from_utf8_lossy(bytes)
            );
        }
    }

    #[test]
    fn a_line_without_end_is_not_waited_for_for_ever() {
        let method = vec![b'A'; LONGEST_METHOD + 1];
        assert_eq!(Spoken::classify(&method), Some(Spoken::Other));
        let line = [b"GET ".as_slice(), &vec![b'x'; LONGEST_LINE]].concat();
        assert_eq!(Spoken::classify(&line), Some(Spoken::Other));
    }
}
