//! Administration server of a node: answers tools on the control socket, and remote clients that
//! the transport has admitted.

use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use crate::management::server::Server;
use crate::management::socket::{Bound, Serving};
use crate::net::client::ClientStream;

/// The running server. Dropping it ends the server and all its connections.
pub(super) struct AdminServer {
    _socket: Option<Serving>,
    clients: AbortHandle,
}

impl AdminServer {
    pub(super) fn serve(
        socket: Option<Bound>,
        clients: mpsc::Receiver<ClientStream>,
        server: &Server,
    ) -> Self {
        let socket = socket.map(|socket| socket.serve(server.for_operators()));
        let clients = tokio::spawn(answer(clients, server.clone())).abort_handle();
        Self { _socket: socket, clients }
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        self.clients.abort(); // also ends the tasks of its connections
    }
}

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
