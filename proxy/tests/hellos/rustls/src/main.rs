//! Says hello to a name on port 443 as rustls does: plain, with a GREASE ECH extension, or with a
//! hello that is really encrypted.
//!
//! Usage: say-hello plain|grease|encrypted NAME. Encrypted, the hello on the wire names
//! `front.example`, and `NAME` is inside.

use std::{env, error::Error, io::Write as _, net::TcpStream, sync::Arc};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore,
    client::{EchConfig, EchGreaseConfig, EchMode},
    crypto::{aws_lc_rs, aws_lc_rs::hpke::ALL_SUPPORTED_SUITES, hpke::Hpke},
    pki_types::{EchConfigListBytes, ServerName},
};

/// X25519, HKDF-SHA256 and AES-128-GCM.
static SUITE: &dyn Hpke = aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_128;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [mode, name] = arguments.as_slice() else {
        return Err("usage: say-hello plain|grease|encrypted NAME".into());
    };
    let (public, _) = SUITE.generate_key_pair()?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = match mode.as_str() {
        "plain" => builder.with_safe_default_protocol_versions()?,
        "grease" => builder.with_ech(EchMode::Grease(EchGreaseConfig::new(SUITE, public)))?,
        "encrypted" => {
            let list = EchConfigListBytes::from(config_list("front.example", &public.0));
            builder.with_ech(EchMode::Enable(EchConfig::new(list, ALL_SUPPORTED_SUITES)?))?
        }
        other => return Err(format!("unknown mode {other}").into()),
    };
    let config = builder
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let server = ServerName::try_from(name.to_owned())?;
    let mut connection = ClientConnection::new(Arc::new(config), server)?;
    let mut stream = TcpStream::connect((name.as_str(), 443))?;
    while connection.wants_write() {
        connection.write_tls(&mut stream)?;
    }
    Ok(stream.flush()?)
}

/// What a DNS record would carry under `ech` (RFC 9849 section 4).
fn config_list(public_name: &str, key: &[u8]) -> Vec<u8> {
    let mut contents = vec![7, 0, 0x20];
    contents.extend(sized(key));
    contents.extend(sized(&[0, 1, 0, 1]));
    contents.push(64);
    contents.push(public_name.len() as u8);
    contents.extend(public_name.as_bytes());
    contents.extend(sized(&[]));
    let mut config = vec![0xfe, 0x0d];
    config.extend(sized(&contents));
    sized(&config)
}

/// After its length in two bytes.
fn sized(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}
