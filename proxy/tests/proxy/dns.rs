//! A resolver that knows the names it was given.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr, UdpSocket},
    thread,
};

/// Answers A and AAAA queries on a free port until the test ends.
pub(crate) fn serve(names: &[(&str, &[IpAddr])]) -> SocketAddr {
    let names: HashMap<String, Vec<IpAddr>> = names
        .iter()
        .map(|(name, addresses)| ((*name).to_owned(), addresses.to_vec()))
        .collect();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut query = [0; 1500];
        while let Ok((length, peer)) = socket.recv_from(&mut query) {
            if let Some(answer) = answer(&query[..length], &names) {
                socket.send_to(&answer, peer).unwrap();
            }
        }
    });
    address
}

/// RFC 1035 §4.1: the question is repeated, answers point back to its name.
fn answer(query: &[u8], names: &HashMap<String, Vec<IpAddr>>) -> Option<Vec<u8>> {
    let (name, end) = name(query, 12)?;
    let question = query.get(12..end + 4)?;
    let kind = u16::from_be_bytes([query[end], query[end + 1]]);
    let known = names.get(&name);
    let records: Vec<_> = known
        .into_iter()
        .flatten()
        .filter_map(|address| record(*address, kind))
        .collect();
    let code = if known.is_some() { 0 } else { 3 };
    let count = u8::try_from(records.len()).unwrap();
    let header = [
        query[0],
        query[1],
        0x81,
        0x80 | code,
        0,
        1,
        0,
        count,
        0,
        0,
        0,
        0,
    ];
    Some([&header[..], question, &records.concat()].concat())
}

fn record(address: IpAddr, kind: u16) -> Option<Vec<u8>> {
    let (own_kind, data) = match address {
        IpAddr::V4(address) => (1, address.octets().to_vec()),
        IpAddr::V6(address) => (28, address.octets().to_vec()),
    };
    let length = u8::try_from(data.len()).unwrap();
    let head = [
        0xc0,
        12,
        0,
        u8::try_from(own_kind).unwrap(),
        0,
        1,
        0,
        0,
        0,
        60,
        0,
        length,
    ];
    (own_kind == kind).then(|| [&head[..], &data].concat())
}

fn name(message: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels.join("."), at));
        }
        labels.push(String::from_utf8(message.get(at..at + length)?.to_ascii_lowercase()).ok()?);
        at += length;
    }
}
