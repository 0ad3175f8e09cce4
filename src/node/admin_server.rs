//! Administration server of a node: answers tools on the control socket, and remote clients that
//! the transport has admitted. It has threads of its own, so that a probe or an operator gets an
//! answer while the program blocks every thread of its runtime.

use std::io;

use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use crate::management::server::Server;
use crate::management::socket::{BoundSocket, Serving};
use crate::net::client::ClientStream;
use crate::runtime::OwnRuntime;

/// Number of threads. A request may run a turn of the Replicator on its thread; the other thread
/// answers probes meanwhile.
const THREADS: usize = 2;

/// The running server. Dropping it ends the server and all its connections, also in the middle of
/// an answer, without waiting for them.
pub(super) struct AdminServer {
    _socket: Option<Serving>, // `None`: no control socket is configured
    clients: AbortHandle,     // of the task that runs `answer`
    _runtime: OwnRuntime,     // of both
}

/// Starts the threads for [`AdminServer::serve`]. The control socket must be bound on this runtime.
/// Fails if the system gives no I/O driver; panics if it refuses the first thread.
pub(super) fn start_threads() -> io::Result<OwnRuntime> {
    OwnRuntime::start("ostraca-tools", THREADS)
}

impl AdminServer {
    /// Starts to serve the control socket, whose callers may make every request, and the `clients`
    /// that the transport has admitted, which may make those that `server` allows to remote ones.
    /// May be called outside of a runtime. Connections to the socket that waited since it was bound
    /// are served as well.
    pub(super) fn serve(
        runtime: OwnRuntime,
        socket: Option<BoundSocket>,
        clients: mpsc::Receiver<ClientStream>,
        server: &Server,
    ) -> Self {
        let socket = {
            let _on_its_threads = runtime.handle().enter();
            socket.map(|socket| socket.serve(server.for_operators()))
        };
        let clients = runtime.handle().spawn(answer(clients, server.clone())).abort_handle();
        Self { _socket: socket, clients, _runtime: runtime }
    }
}

impl Drop for AdminServer {
    /// Ends the service of remote clients with all their connections. Does not wait for it.
    fn drop(&mut self) {
        self.clients.abort(); // also ends the tasks of its connections
    }
}

/// Serves each client in a task of its own, and logs its arrival. A task that panics ends only its
/// own connection. Once the transport has dropped the sender and all queued clients were taken,
/// returns and ends all connections, answered or not.
async fn answer(mut clients: mpsc::Receiver<ClientStream>, server: Server) {
    let mut talks = JoinSet::new(); // ≤ net.limits.clients
    loop {
        tokio::select! {
            client = clients.recv() => {
                let Some(client) = client else { return };
                tracing::info!(peer = %client.peer(), "management.client");
                let server = server.clone();
                talks.spawn(async move { server.serve(client).await });
            }
            Some(_) = talks.join_next() => {} // removes an ended connection
        }
    }
}
