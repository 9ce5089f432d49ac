//! An HTTP proxy that answers CONNECT as it is told and notes what it was asked.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Connects to the asked port of 127.0.0.1, whatever the name is.
pub(crate) struct ConnectProxy {
    pub(crate) address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for ConnectProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ConnectProxy {
    /// `answer` is the status line of every answer; a tunnel follows one with 200.
    pub(crate) async fn start(answer: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (noted, answer) = (Arc::clone(&heads), answer.to_owned());
        let task = tokio::spawn(async move {
            let mut tasks = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                tasks.spawn(serve(socket, Arc::clone(&noted), answer.clone()));
            }
        });
        Self { address, heads, task }
    }

    /// The heads of all requests.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn serve(mut socket: TcpStream, noted: Arc<Mutex<Vec<String>>>, answer: String) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let port = head.split(' ').nth(1).and_then(|place| place.rsplit(':').next()?.parse::<u16>().ok());
    noted.lock().unwrap_or_else(PoisonError::into_inner).push(head);
    socket.write_all(format!("{answer}\r\n\r\n").as_bytes()).await.ok()?;
    if answer.contains(" 200 ") {
        let mut upstream = TcpStream::connect(("127.0.0.1", port?)).await.ok()?;
        tokio::io::copy_bidirectional(&mut socket, &mut upstream).await.ok()?;
    }
    Some(())
}
