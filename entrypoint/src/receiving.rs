//! How much the kernel keeps for a netlink socket that is not being read.

use std::{io, os::fd::AsFd};

use rustix::{
    io::Errno,
    net::sockopt::{
        set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, socket_recv_buffer_size,
    },
};

/// Makes room for as much as ever comes at once, and returns how many bytes there is room for. More
/// than the machine allows everybody takes `NET_ADMIN` over the machine itself, which nobody has in
/// a user namespace.
pub(crate) fn enlarge(socket: impl AsFd) -> io::Result<usize> {
    match set_socket_recv_buffer_size_force(&socket, BYTES) {
        Ok(()) => {}
        Err(Errno::PERM) => set_socket_recv_buffer_size(&socket, BYTES)?,
        Err(error) => return Err(error.into()),
    }
    // The kernel doubles what it is asked for, for its own bookkeeping.
    Ok(socket_recv_buffer_size(&socket)? / 2)
}

/// What is asked for.
pub(crate) const BYTES: usize = 8 * 1024 * 1024;
/// The error of a socket for which the kernel had to throw something away.
pub(crate) const OVERRUN: i32 = Errno::NOBUFS.raw_os_error();

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn root_of_the_machine_gets_what_it_asks_for() {
        let (socket, _other) = UnixDatagram::pair().unwrap();
        assert_eq!(enlarge(&socket).unwrap(), BYTES);
    }

    #[test]
    fn a_user_without_rights_gets_what_everybody_gets() {
        let (socket, _other) = UnixDatagram::pair().unwrap();
        let all = rustix::thread::capabilities(None).unwrap();
        let mut less = all;
        less.effective = rustix::thread::CapabilitySet::empty();
        rustix::thread::set_capabilities(None, less).unwrap();
        let got = enlarge(&socket);
        rustix::thread::set_capabilities(None, all).unwrap();
        assert!((1..BYTES).contains(&got.unwrap()));
    }
}
