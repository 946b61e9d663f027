//! One call at a time: what a call costs at least when the handler is a process of its own.
use std::io;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::sync::Mutex;

use crate::{http, worker};

pub async fn run(port: &str, command: &[&str]) -> io::Result<()> {
    let (socket, _child) = worker::spawn(command)?;
    let socket = Arc::new(Mutex::new(socket));
    http::serve(port, move |body| {
        let socket = Arc::clone(&socket);
        async move {
            // In a task of its own, which a client that hangs up does not end: half an exchange would spoil the next.
            let exchange = tokio::spawn(async move {
                let mut socket = socket.lock().await;
                socket.write_all(&worker::frame(&body)).await?;
                worker::read_frame(&mut *socket).await
            });
            exchange.await.ok()?.ok()
        }
    })
    .await
}
