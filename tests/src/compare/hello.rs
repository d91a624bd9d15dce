//! What TLS clients say first.

use std::sync::Arc;

use anyhow::Context;
use rustls::{ClientConfig, ClientConnection, RootCertStore, crypto::ring, pki_types::ServerName};

/// The first bytes of a client that asks for `name`.
pub fn hello(name: &str) -> anyhow::Result<Vec<u8>> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("choose versions of TLS")?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).context("name a server")?;
    let mut client = ClientConnection::new(Arc::new(config), name).context("begin with TLS")?;
    let mut bytes = Vec::new();
    client
        .write_tls(&mut bytes)
        .context("write a ClientHello")?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_handshake_record_that_shows_the_name() {
        let bytes = hello("bench.test").unwrap();
        assert_eq!(bytes[0], 22);
        assert!(bytes.windows(10).any(|window| window == b"bench.test"));
        assert!(hello("not a name").is_err());
    }
}
