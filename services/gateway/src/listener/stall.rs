//! Ends a connection whose peer takes nothing in for too long, so that a client that stops reading costs one buffer for a
//! bounded time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// A stream that fails with [`io::ErrorKind::TimedOut`] when a write waits longer than it may.
#[derive(Debug)]
pub(super) struct StallGuard<S> {
    stream: S,
    longest: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> StallGuard<S> {
    /// A stream whose writes wait no longer than `longest`.
    pub(super) const fn new(stream: S, longest: Duration) -> Self {
        Self { stream, longest, waiting: None }
    }

    /// The result of a write, or the timeout if it has waited too long.
    fn bounded<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let longest = self.longest;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + longest)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.bounded(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.bounded(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(context, closed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ClientConfig, RootCertStore, ServerConfig};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::sleep;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    #[tokio::test]
    async fn a_peer_that_reads_nothing_ends_the_stream_and_one_that_reads_does_not() {
        let (stream, mut peer) = duplex(4);
        let mut guard = StallGuard::new(stream, Duration::from_millis(20));
        let reader = tokio::spawn(async move {
            let mut bytes = [0; 12];
            peer.read_exact(&mut bytes).await.unwrap();
            peer
        });
        guard.write_all(&[7; 12]).await.unwrap();
        let _peer = reader.await.unwrap();
        let refused = guard.write_all(&[7; 12]).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
    }

    /// The two ends of a TLS connection: the server's settings and the client's.
    fn tls() -> (TlsAcceptor, TlsConnector) {
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![cert.der().clone()],
                PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap(),
            )
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        (TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(client)))
    }

    #[tokio::test(start_paused = true)]
    async fn small_frames_over_tls_do_not_keep_a_peer_that_reads_nothing() {
        const LONGEST: Duration = Duration::from_secs(20);
        const INTERVAL: Duration = Duration::from_secs(5);
        let (acceptor, connector) = tls();
        let (stream, peer) = duplex(1024);
        let name = "localhost".try_into().unwrap();
        let (server, client) =
            tokio::join!(acceptor.accept(StallGuard::new(stream, LONGEST)), connector.connect(name, peer));
        let (mut server, _client) = (server.unwrap(), client.unwrap());
        let begun = Instant::now();
        let refused = loop {
            let written = server.write_all(b"event: alive\ndata: {}\n\n").await;
            if let Err(refused) = written {
                break refused;
            }
            sleep(INTERVAL).await;
        };
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        // The transport takes some forty frames; TLS alone would take two thousand more.
        let frames = begun.elapsed().as_secs() / INTERVAL.as_secs();
        assert!(frames < 100, "ended after {frames} frames");
    }
}
