//! Serves tools: on the control socket, and over the network to clients that were let in.

use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use crate::management::server::Server;
use crate::management::socket::{Bound, Serving};
use crate::net::client::ClientStream;

/// Served until it is dropped.
pub(super) struct Tools {
    _socket: Option<Serving>,
    clients: AbortHandle,
}

impl Tools {
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

impl Drop for Tools {
    fn drop(&mut self) {
        self.clients.abort(); // and with it all that it talks to
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
            Some(_) = talks.join_next() => {} // what it said is logged
        }
    }
}
