//! Up to `depth` calls wait in the worker's socket, so that a busy worker never sleeps between two of them.
use std::io;

use bytes::Bytes;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot};

use crate::{http, worker};

type Call = (Bytes, oneshot::Sender<Bytes>);

pub async fn run(port: &str, depth: &str, command: &[&str]) -> io::Result<()> {
    let depth: usize = depth.parse().map_err(io::Error::other)?;
    let (socket, _child) = worker::spawn(command)?;
    let (read, mut write) = socket.into_split();
    let (calls, mut waiting) = mpsc::unbounded_channel::<Call>();
    // Answers come in the order of the calls; the channel's bound is how many calls are in the socket.
    let (sent, mut open) = mpsc::channel::<oneshot::Sender<Bytes>>(depth);
    tokio::spawn(async move {
        while let Some((body, answer)) = waiting.recv().await {
            if sent.send(answer).await.is_err() || write.write_all(&worker::frame(&body)).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        let mut read = BufReader::with_capacity(1 << 16, read);
        while let Some(answer) = open.recv().await {
            let Ok(body) = worker::read_frame(&mut read).await else { return };
            // The client may have gone.
            let _ = answer.send(body);
        }
    });
    http::serve(port, move |body| {
        let calls = calls.clone();
        async move {
            let (answer, body_of_answer) = oneshot::channel();
            calls.send((body, answer)).ok()?;
            body_of_answer.await.ok()
        }
    })
    .await
}
