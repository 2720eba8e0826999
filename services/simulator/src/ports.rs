//! Chooses ports for processes that have not been started yet. Another program may take a port before its process does.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use crate::error::Error;

/// Below the range from which the kernel takes ports of outgoing connections: a killed process's port stays free.
const PORTS: std::ops::Range<u16> = 10_240..32_000;
/// Ports tried before giving up.
const PORT_TRIES: usize = 1000;

/// A free address that no outgoing connection takes.
///
/// # Errors
/// No port is free.
pub(crate) fn free_address() -> Result<SocketAddr, Error> {
    let mut last = Ok(());
    for _ in 0..PORT_TRIES {
        match address_at(fastrand::u16(PORTS)) {
            Ok(address) => return Ok(address),
            Err(error) => last = Err(error),
        }
    }
    let error = last.err().unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into());
    Err(Error::Network { what: "a free port".to_owned(), source: error })
}

/// The address at a port, or another one if the port is taken.
///
/// # Errors
/// No port is free.
pub(crate) fn address_at_or_free(port: u16) -> Result<SocketAddr, Error> {
    address_at(port).or_else(|_| free_address())
}

fn address_at(port: u16) -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))?.local_addr()
}
