//! Reads the name that a TLS client asks for, and takes nothing off the stream.
//!
//! rustls parses, as its servers do; no handshake of ours follows. The hello may come in any number
//! of segments and records: with a post-quantum key share it does not fit one segment. Where the
//! client encrypts its hello, the name seen here is the outer one, and that must be the authorised.

use std::io;

use rustls::{
    Error, InvalidMessage, PeerMisbehaved,
    server::{Accepted, Acceptor},
};
use tokio::time::{Instant, timeout_at};

use crate::{
    client::{Client, SPEAK_FIRST},
    extensions::Hello,
};

/// The name in a `ClientHello` (SNI, RFC 6066 §3), as text; `None` where there is none.
pub(crate) type ServerName = Option<String>;

/// What is decided on and counted of a `ClientHello`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// The name in the clear, the outer one where there are two.
    pub(crate) name: ServerName,
    pub(crate) offers_ech: bool,
}

/// Why there is no `ClientHello` to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HelloError {
    #[error("the client ended or went silent before its ClientHello was whole")]
    Gone,
    #[error("not a TLS ClientHello")]
    NotTls,
    #[error("the server name in the ClientHello is not a host name")]
    BadName,
}

/// Waits for the `ClientHello` at the start of what `client` sends, and leaves it pending.
pub(crate) async fn read(client: &mut Client) -> Result<Greeting, HelloError> {
    let deadline = Instant::now() + SPEAK_FIRST;
    let mut hello = Assembly::default();
    loop {
        if let Some(name) = hello.read(&client.pending)? {
            let offers_ech = Hello::at_the_start_of(&client.pending).offers_ech();
            return Ok(Greeting { name, offers_ech });
        }
        match timeout_at(deadline, client.more()).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0) | Err(_)) | Err(_) => return Err(HelloError::Gone),
        }
    }
}

/// A `ClientHello` in the making.
#[derive(Default)]
pub(crate) struct Assembly {
    acceptor: Acceptor,
    /// How much of the stream was taken.
    length: usize,
}

impl Assembly {
    /// Reads on in `stream`, which has grown since the last time. `None` until the hello is whole.
    pub(crate) fn read(&mut self, stream: &[u8]) -> Result<Option<ServerName>, HelloError> {
        let mut bytes = stream.get(self.length..).unwrap_or_default();
        while !bytes.is_empty() {
            // What is not taken will never be: its buffer is full of something that is no hello.
            let taken = self
                .acceptor
                .read_tls(&mut bytes)
                .map_err(|_: io::Error| HelloError::NotTls)?;
            self.length += taken;
            match self.acceptor.accept() {
                Ok(Some(accepted)) => return name_of(&accepted, stream).map(Some),
                Ok(None) if taken > 0 && self.length <= MAX_HELLO => {}
                Ok(None) => return Err(HelloError::NotTls),
                Err((error, _alert)) => return Err(HelloError::from(error)),
            }
        }
        Ok(None)
    }
}

/// The name that rustls read, if it is the only one to be read.
fn name_of(accepted: &Accepted, stream: &[u8]) -> Result<ServerName, HelloError> {
    let hello = accepted.client_hello();
    let name = hello.server_name();
    if Hello::at_the_start_of(stream).bears_out(name) {
        Ok(name.map(str::to_owned))
    } else {
        Err(HelloError::BadName)
    }
}

impl From<Error> for HelloError {
    fn from(error: Error) -> Self {
        let bad_name = error
            == Error::PeerMisbehaved(PeerMisbehaved::ServerNameMustContainOneHostName)
            || error == Error::InvalidMessage(InvalidMessage::InvalidServerName);
        if bad_name {
            Self::BadName
        } else {
            Self::NotTls
        }
    }
}

/// The greatest hello with its record headers, in bytes.
pub(crate) const MAX_HELLO: usize = 64 * 1024;

#[cfg(test)]
pub(crate) mod samples {
    //! What real clients say first, as rustls makes it.

    use std::sync::Arc;

    use rustls::{ClientConfig, ClientConnection, RootCertStore, pki_types::ServerName as Name};

    pub(crate) fn hello_for(
        name: Name<'static>,
        change: impl FnOnce(&mut ClientConfig),
    ) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        change(&mut config);
        let mut bytes = Vec::new();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn hello(name: &str) -> Vec<u8> {
        hello_for(Name::try_from(name.to_owned()).unwrap(), |_| {})
    }

    pub(crate) fn nameless_hello() -> Vec<u8> {
        hello_for(Name::try_from("a.example").unwrap(), |config| {
            config.enable_sni = false;
        })
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::{IpAddr, ServerName as Name};

    use super::{
        samples::{hello, hello_for, nameless_hello},
        *,
    };

    fn read_whole(bytes: &[u8]) -> Result<Option<ServerName>, HelloError> {
        Assembly::default().read(bytes)
    }

    /// The same handshake message in records of `size` bytes each (RFC 8446 §5.1).
    fn in_records_of(size: usize, hello: &[u8]) -> Vec<u8> {
        let (header, message) = hello.split_at(5);
        message
            .chunks(size)
            .flat_map(|part| {
                let length = u16::try_from(part.len()).unwrap().to_be_bytes();
                [&header[..3], &length, part].concat()
            })
            .collect()
    }

    /// A hello whose server name is replaced by another of the same length.
    fn with_name_bytes(name: &str, bytes: &[u8]) -> Vec<u8> {
        let mut hello = hello(name);
        let at = hello
            .windows(name.len())
            .position(|w| w == name.as_bytes())
            .unwrap();
        hello[at..at + name.len()].copy_from_slice(bytes);
        hello
    }

    #[test]
    fn a_hello_split_at_any_byte_gives_its_name() {
        let hello = hello("files.example.com");
        for cut in 0..hello.len() {
            let mut assembly = Assembly::default();
            assert_eq!(assembly.read(&hello[..cut]), Ok(None), "cut at {cut}");
            let name = assembly
                .read(&hello)
                .unwrap_or_else(|e| panic!("cut at {cut}: {e}"));
            assert_eq!(
                name,
                Some(Some("files.example.com".to_owned())),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn a_hello_in_many_records_gives_its_name() {
        let hello = hello("files.example.com");
        for size in [1, 2, 7, 64, 100] {
            let name = read_whole(&in_records_of(size, &hello));
            assert_eq!(
                name,
                Ok(Some(Some("files.example.com".to_owned()))),
                "records of {size}"
            );
        }
    }

    #[test]
    fn a_hello_larger_than_one_record_gives_its_name() {
        let hello = hello_for(Name::try_from("a.example").unwrap(), |config| {
            config.alpn_protocols = (0..200).map(|_| vec![b'x'; 250]).collect();
        });
        assert!(hello.len() > 40_000, "{}", hello.len());
        assert_eq!(read_whole(&hello), Ok(Some(Some("a.example".to_owned()))));
    }

    #[test]
    fn a_hello_without_a_name_is_told_from_one_with_a_bad_name() {
        let address = Name::IpAddress(IpAddr::try_from("192.0.2.1").unwrap());
        assert_eq!(read_whole(&hello_for(address, |_| {})), Ok(Some(None)));
        assert_eq!(read_whole(&nameless_hello()), Ok(Some(None)));
        for bytes in [b"a.\0xample", b"a example", b"a..xample"] {
            let read = read_whole(&with_name_bytes("a.example", bytes));
            assert_eq!(
                read,
                Err(HelloError::BadName),
                "{:?}",
                String::from_utf8_lossy(bytes)
            );
        }
    }

    #[test]
    fn a_name_is_read_whatever_its_case() {
        let read = read_whole(&with_name_bytes("a.example", b"A.eXaMpLe"));
        assert_eq!(read, Ok(Some(Some("a.example".to_owned()))));
    }

    #[test]
    fn what_is_no_hello_is_not_tls() {
        let hello = hello("a.example");
        let mut not_a_hello = hello.clone();
        not_a_hello[5] = 2;
        let alert = [21, 3, 3, 0, 2, 1, 0];
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"SSH-2.0-x\r\n",
            &not_a_hello,
            &alert,
            &[0x16, 9, 9, 0, 5, 1, 2, 3, 4, 5],
        ] {
            assert_eq!(read_whole(bytes), Err(HelloError::NotTls), "{bytes:?}");
        }
    }

    #[test]
    fn a_hello_without_end_is_given_up() {
        let mut assembly = Assembly::default();
        let mut endless = in_records_of(
            1000,
            &[&[22, 3, 1, 0, 0][..], &[1, 0, 0xff, 0xff], &vec![0; 80_000]].concat(),
        );
        endless.truncate(76_000);
        assert_eq!(assembly.read(&endless), Err(HelloError::NotTls));
    }
}
