//! The resolver itself: another process than PID 1, with another user than root and the guest.

use std::{
    collections::HashSet,
    io::{self, Read as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream as StdStream,
    },
    time::Instant,
};

use policy::HostName;
use report::{FrameReader, encode};
use tokio::{
    io::AsyncWriteExt as _,
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinSet,
};

use super::{
    ask::{Ask, Family, Heard},
    confine,
    schedule::Schedule,
    words::{FromResolver, MAX_FRAME, Questions, Resolved},
};
use crate::link::parse;

/// Serves PID 1 on standard input until that ends.
pub(crate) fn serve() -> io::Result<()> {
    let stream: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let stream = StdStream::from(stream);
    let questions = read_questions(&stream)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    confine::process()?;
    runtime.block_on(async {
        stream.set_nonblocking(true)?;
        let (reader, writer) = UnixStream::from_std(stream)?.into_split();
        let servers: Vec<_> = questions
            .resolvers
            .iter()
            .map(|&address| (address, PORT))
            .collect();
        let ask = Ask::new(&servers).map_err(io::Error::other)?;
        let names = questions.host_names().map_err(io::Error::other)?;
        let mut asking = Asking::new(ask, names, writer);
        tokio::select! {
            result = asking.go_on() => result,
            () = end(reader) => Ok(()),
        }
    })
}

fn read_questions(mut stream: &StdStream) -> io::Result<Questions> {
    let mut reader = FrameReader::new(report::link::MAX_FRAME);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        if let Some(questions) = parse(&mut reader)? {
            return Ok(questions);
        }
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => reader.push(buffer.get(..count).unwrap_or_default()),
        }
    }
}

/// Nothing more comes from PID 1: when the stream has something to read, it has ended.
async fn end(reader: OwnedReadHalf) {
    // An error is an end too.
    let _ = reader.readable().await;
}

/// Names that are asked for again and again.
struct Asking {
    ask: Ask,
    names: Vec<HostName>,
    /// Of questions: two for each name, as [`question`] has them.
    schedule: Schedule,
    asked: JoinSet<(usize, Heard)>,
    to_pid1: OwnedWriteHalf,
    /// Questions of which nothing has been heard yet.
    unheard: HashSet<usize>,
}

impl Asking {
    fn new(ask: Ask, names: Vec<HostName>, to_pid1: OwnedWriteHalf) -> Self {
        let questions = names.len() * FAMILIES.len();
        Self {
            ask,
            names,
            schedule: Schedule::new(questions, Instant::now()),
            asked: JoinSet::new(),
            to_pid1,
            unheard: (0..questions).collect(),
        }
    }

    async fn go_on(&mut self) -> io::Result<()> {
        if self.names.is_empty() {
            self.tell(&FromResolver::AllAsked).await?;
        }
        loop {
            self.ask_what_is_due();
            let next = self.schedule.next().filter(|_| self.has_room());
            tokio::select! {
                Some(heard) = self.asked.join_next() => {
                    let (question, heard) = heard.map_err(io::Error::other)?;
                    self.hear(question, heard).await?;
                }
                () = due(next) => {}
            }
        }
    }

    fn ask_what_is_due(&mut self) {
        while self.has_room() {
            let Some(number) = self.schedule.take(Instant::now()) else {
                return;
            };
            let (index, family) = question(number);
            if let Some(name) = self.names.get(index) {
                let (ask, name) = (self.ask.clone(), name.clone());
                self.asked
                    .spawn(async move { (number, ask.addresses(&name, family).await) });
            }
        }
    }

    fn has_room(&self) -> bool {
        self.asked.len() < AT_ONCE
    }

    async fn hear(&mut self, number: usize, heard: Heard) -> io::Result<()> {
        let Heard { addresses, ttl } = heard;
        if addresses.is_empty() {
            self.schedule.failed(number, Instant::now());
        } else {
            let (index, _) = question(number);
            let index = u32::try_from(index).map_err(io::Error::other)?;
            let resolved = Resolved {
                index,
                addresses,
                ttl,
            };
            // Told before it can be asked again: whoever sees the next question knows that.
            self.tell(&FromResolver::Resolved(resolved)).await?;
            self.schedule.resolved(number, ttl, Instant::now());
        }
        if self.unheard.remove(&number) && self.unheard.is_empty() {
            self.tell(&FromResolver::AllAsked).await?;
        }
        Ok(())
    }

    async fn tell(&mut self, message: &FromResolver) -> io::Result<()> {
        let line = encode(message, MAX_FRAME).map_err(io::Error::other)?;
        self.to_pid1.write_all(&line).await
    }
}

/// The name's index and the family of a question, by its number.
fn question(number: usize) -> (usize, Family) {
    let family = if number.is_multiple_of(FAMILIES.len()) {
        Family::V4
    } else {
        Family::V6
    };
    (number / FAMILIES.len(), family)
}

async fn due(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

const PORT: u16 = 53;
/// Questions at once; each takes some sockets.
const AT_ONCE: usize = 128;
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_question_for_each_family() {
        assert_eq!(question(0), (0, Family::V4));
        assert_eq!(question(1), (0, Family::V6));
        assert_eq!(question(7), (3, Family::V6));
    }

    #[test]
    fn questions_are_read_however_they_are_written() {
        let (ours, theirs) = StdStream::pair().unwrap();
        let questions = Questions {
            resolvers: vec!["10.0.0.53".parse().unwrap()],
            names: vec!["a.example".to_owned(); 50_000],
        };
        let line = encode(&questions, report::link::MAX_FRAME).unwrap();
        let writer = std::thread::spawn(move || io::Write::write_all(&mut &theirs, &line));
        assert_eq!(read_questions(&ours).unwrap(), questions);
        writer.join().unwrap().unwrap();
    }

    #[test]
    fn without_questions_there_is_nothing_to_do() {
        let (ours, theirs) = StdStream::pair().unwrap();
        drop(theirs);
        assert!(read_questions(&ours).is_err());
    }

    #[tokio::test]
    async fn pid_1_hears_of_every_answer_and_that_there_was_one_of_all() {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let mut answering = JoinSet::new();
        // There is an address of IPv4, and no other.
        answering.spawn(async move {
            let mut query = [0; 512];
            while let Ok((_, peer)) = socket.recv_from(&mut query).await {
                let end = 12 + query[12..].iter().position(|&b| b == 0).unwrap() + 5;
                let count = u8::from(query[end - 3] == 1);
                let mut answer = vec![query[0], query[1], 0x81, 0x80, 0, 1, 0, count];
                answer.extend([0; 4]);
                answer.extend(&query[12..end]);
                if count == 1 {
                    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 203, 0, 113, 7]);
                }
                socket.send_to(&answer, peer).await.unwrap();
            }
        });
        let (ours, theirs) = UnixStream::pair().unwrap();
        let names = ["a.example", "b.example"].map(|name| HostName::parse(name).unwrap());
        let ask = Ask::new(&[(address.ip(), address.port())]).unwrap();
        let (_reader, writer) = theirs.into_split();
        answering.spawn(async move {
            let _ = Asking::new(ask, names.to_vec(), writer).go_on().await;
        });
        let reader = FrameReader::new(MAX_FRAME);
        let mut link = crate::link::Link::new(ours.into_std().unwrap(), reader).unwrap();
        let mut resolved = Vec::new();
        while let FromResolver::Resolved(name) = link.next().await.unwrap() {
            assert_eq!(
                name.addresses,
                ["203.0.113.7".parse::<std::net::IpAddr>().unwrap()]
            );
            resolved.push(name.index);
        }
        resolved.sort_unstable();
        assert_eq!(resolved, [0, 1]);
    }
}
