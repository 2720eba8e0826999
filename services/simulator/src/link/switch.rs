//! Links behind one address: one for all clients, or one for each client (by its IP address), so that the links of devices
//! that share the address break one by one. A client keeps its link through all its connections.
//!
//! The caller that opens the switch gets every new link and decides when it breaks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::relay::{self, ConnectionContext};
use super::{ACCEPT_PAUSE, CONNECTIONS_MAX, Direction, Link};

/// Clients that get a link of their own; those beyond are turned away.
pub(crate) const CLIENTS_MAX: usize = CONNECTIONS_MAX;

/// Which clients share a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// All clients share one link.
    All,
    /// Every client has its own link.
    Each,
}

/// Links behind one address. Dropping it ends them and their connections.
#[derive(Debug)]
pub(crate) struct Switch {
    address: SocketAddr,
    lines: Arc<Lines>,
    _stop: DropGuard,
}

/// The callback that gets every new link with its number, which selects its schedule.
pub(crate) type OnLink = Box<dyn Fn(Arc<Link>, IpAddr, usize) + Send + Sync>;

struct Lines {
    server: String,
    sharing: Sharing,
    address: SocketAddr,
    on_link: OnLink,
    links: Mutex<BTreeMap<IpAddr, (Arc<Link>, ConnectionContext)>>,
}

impl Switch {
    /// Listens on an address for clients of `server` (`HOST:PORT`, looked up at every connection). `seed` decides the
    /// jitter. A link that all share is there at once, others with their first connection.
    ///
    /// # Errors
    /// The address could not be bound.
    pub(crate) async fn open(
        listen: SocketAddr,
        server: &str,
        seed: u64,
        sharing: Sharing,
        on_link: OnLink,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let links = Mutex::default();
        let lines = Arc::new(Lines { server: server.to_owned(), sharing, address, on_link, links });
        if sharing == Sharing::All {
            lines.road(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        }
        let stop = CancellationToken::new();
        let accepting = accept(listener, Arc::clone(&lines), fastrand::Rng::with_seed(seed));
        tokio::spawn(stop.clone().run_until_cancelled_owned(accepting));
        Ok(Self { address, lines, _stop: stop.drop_guard() })
    }

    /// Where clients connect to.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Links there are.
    pub(crate) fn links(&self) -> usize {
        self.lines.table().len()
    }

    /// Cuts the links of these clients, and mends those of all others. A shared link is cut if there is any client.
    pub(crate) fn cut_off(&self, clients: &BTreeSet<IpAddr>) {
        let is_shared = self.lines.sharing == Sharing::All;
        for (client, (link, _)) in self.lines.table().iter() {
            link.cut_off(if is_shared { !clients.is_empty() } else { clients.contains(client) });
        }
    }

    /// Connections carried to the server so far.
    pub(crate) fn connections(&self) -> u64 {
        self.sum(Link::connections)
    }

    /// Bytes handed to the server ([`Direction::Up`]) or to clients so far.
    pub(crate) fn carried(&self, direction: Direction) -> u64 {
        self.sum(|link| link.carried(direction))
    }

    /// Bytes taken and thrown away so far, while a link was half open.
    pub(crate) fn swallowed(&self) -> u64 {
        self.sum(Link::swallowed)
    }

    fn sum(&self, of: impl Fn(&Link) -> u64) -> u64 {
        self.lines.table().values().map(|(link, _)| of(link)).sum()
    }
}

impl Lines {
    /// The connection context of a client, created if the client is new; `None` beyond [`CLIENTS_MAX`].
    fn road(&self, client: IpAddr) -> Option<ConnectionContext> {
        let client = match self.sharing {
            Sharing::All => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Sharing::Each => client.to_canonical(),
        };
        let mut links = self.table();
        if let Some((_, road)) = links.get(&client) {
            return Some(road.clone());
        }
        if links.len() >= CLIENTS_MAX {
            return None;
        }
        let (link, road) = Link::unheard(self.address, self.server.clone());
        let link = Arc::new(link);
        links.insert(client, (Arc::clone(&link), road.clone()));
        drop(links);
        (self.on_link)(link, client, number(client));
        Some(road)
    }

    /// Entries are whole at any moment, so a panic elsewhere cannot have left half of one.
    fn table(&self) -> MutexGuard<'_, BTreeMap<IpAddr, (Arc<Link>, ConnectionContext)>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { server, sharing, .. } = self;
        write!(f, "Lines {{ server: {server:?}, sharing: {sharing:?}, links: {} }}", self.table().len())
    }
}

/// A client's number: the same address has the same schedule again. 0 for the link that all share.
fn number(client: IpAddr) -> usize {
    match client {
        IpAddr::V4(ip) => u32::from(ip) as usize,
        IpAddr::V6(ip) => (u128::from(ip) & 0xffff_ffff) as usize,
    }
}

async fn accept(listener: TcpListener, lines: Arc<Lines>, mut rng: fastrand::Rng) {
    // Dropped with this future, which ends every relay with the switch.
    let mut relays = JoinSet::new();
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        while relays.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, from)) => {
                if let Some(carried) = carried(&lines, stream, from, rng.fork()) {
                    relays.spawn(async move {
                        carried.await;
                        drop(place);
                    });
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the link");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn carried(
    lines: &Lines,
    stream: TcpStream,
    from: SocketAddr,
    rng: fastrand::Rng,
) -> Option<impl Future<Output = ()> + Send + use<>> {
    let road = lines.road(from.ip());
    if road.is_none() {
        tracing::warn!(client = %from, "refused a client: {CLIENTS_MAX} clients have a link already");
    }
    road.map(|road| relay::forward(stream, road, rng))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;
    use tokio::time::timeout;

    use super::*;
    use crate::link::Condition;

    const SOON: Duration = Duration::from_secs(10);

    async fn client(from: &str, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        socket.connect(to).await.unwrap()
    }

    async fn opened(sharing: Sharing) -> (Switch, TcpListener, tokio::sync::mpsc::Receiver<Arc<Link>>) {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (sender, links) = tokio::sync::mpsc::channel(8);
        let on_link: OnLink = Box::new(move |link, _, _| sender.try_send(link).unwrap());
        let (listen, to) = ("127.0.0.1:0".parse().unwrap(), server.local_addr().unwrap().to_string());
        (Switch::open(listen, &to, 7, sharing, on_link).await.unwrap(), server, links)
    }

    async fn is_carried(client: &mut TcpStream, server: &TcpListener) -> bool {
        let (mut far, _) = timeout(SOON, server.accept()).await.unwrap().unwrap();
        client.write_all(b"x").await.unwrap();
        let mut heard = [0];
        timeout(SOON, far.read_exact(&mut heard)).await.unwrap().is_ok()
    }

    #[tokio::test]
    async fn of_two_clients_one_is_cut_off_and_the_other_is_carried() {
        let (switch, server, mut links) = opened(Sharing::Each).await;
        let mut one = client("127.0.0.1", switch.address()).await;
        let link = timeout(SOON, links.recv()).await.unwrap().unwrap();
        assert!(is_carried(&mut one, &server).await);
        link.set(Condition::Cut);
        let mut two = client("127.0.0.2", switch.address()).await;
        assert!(is_carried(&mut two, &server).await);
        let ended = timeout(SOON, one.read(&mut [0])).await.unwrap();
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        assert_eq!((switch.links(), switch.connections()), (2, 2));
    }

    #[tokio::test]
    async fn a_client_that_a_person_cuts_off_stays_so_whatever_its_schedule_sets() {
        let (switch, server, mut links) = opened(Sharing::Each).await;
        let mut one = client("127.0.0.1", switch.address()).await;
        let mut two = client("127.0.0.2", switch.address()).await;
        let link = timeout(SOON, links.recv()).await.unwrap().unwrap();
        for client in [&mut one, &mut two] {
            assert!(is_carried(client, &server).await);
        }
        switch.cut_off(&BTreeSet::from(["127.0.0.1".parse().unwrap()]));
        link.set(Condition::Stalled);
        link.set(Condition::Open);
        assert_eq!(link.condition(), Condition::Cut);
        let ended = timeout(SOON, one.read(&mut [0])).await.unwrap();
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        let mut again = client("127.0.0.2", switch.address()).await;
        assert!(is_carried(&mut again, &server).await, "the other one is carried");
        switch.cut_off(&BTreeSet::new());
        assert_eq!(link.condition(), Condition::Open);
        assert!(is_carried(&mut client("127.0.0.1", switch.address()).await, &server).await);
    }

    #[tokio::test]
    async fn a_shared_link_is_there_before_its_first_client() {
        let (switch, server, mut links) = opened(Sharing::All).await;
        timeout(SOON, links.recv()).await.unwrap().unwrap();
        for from in ["127.0.0.1", "127.0.0.2"] {
            assert!(is_carried(&mut client(from, switch.address()).await, &server).await);
        }
        assert_eq!((switch.links(), switch.connections()), (1, 2));
    }
}
