//! Takes what verbs ask of a run, hands it on to the container, and answers when that has.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use report::{
    Answer, Answers, Body, HostMessage, List, MAX_FRAME, PolicyOrder, PolicyOutcome, Printable,
    Received, encode,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Mutex as Turn, Notify, mpsc},
    task::JoinSet,
    time::timeout,
};

use super::{
    amend::{Amendment, Direction, amend},
    ending,
    history::History,
    word::{Change, Reply, Request, hear, say},
};
use crate::channel;

/// Where verbs reach whoever attends to a run.
#[derive(Debug)]
pub(crate) struct Control {
    listener: UnixListener,
    run: Arc<Run>,
}

/// A run, as far as it can be changed.
#[derive(Debug)]
struct Run {
    directory: PathBuf,
    /// What its container sees, read-only.
    channel: PathBuf,
    state: Mutex<State>,
    /// Something was said by the container.
    heard: Notify,
    /// One change after the other.
    turn: Turn<()>,
    orders: mpsc::Sender<HostMessage>,
    /// How long the container is waited for.
    patience: Duration,
}

#[derive(Debug)]
struct State {
    history: History,
    answers: Answers,
}

impl Control {
    /// Opens the socket in the run's directory, which only this user can enter. What the container
    /// was asked for and has not answered is asked again; what is to be said to it comes out of the
    /// receiver.
    ///
    /// Must be called within the runtime.
    pub(crate) fn open(
        run_dir: &Path,
        history: History,
        answers: Answers,
    ) -> io::Result<(Self, mpsc::Receiver<HostMessage>)> {
        let socket = socket(run_dir);
        // Of a collector that was killed: whoever holds the run's lock is the only one.
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&socket)?;
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
        let (orders, taken) = mpsc::channel(UNSENT);
        let run = Run {
            directory: run_dir.to_owned(),
            channel: channel::directory(run_dir),
            state: Mutex::new(State { history, answers }),
            heard: Notify::new(),
            turn: Turn::new(()),
            orders,
            patience: PATIENCE,
        };
        run.ask_again();
        let run = Arc::new(run);
        Ok((Self { listener, run }, taken))
    }

    /// Takes note of what the container says.
    pub(crate) fn hear(&self, message: &Received) {
        if let Body::Policy(report) = &message.body {
            self.run.state().answers.add(report, message.t);
            self.run.heard.notify_waiters();
        }
    }

    /// Has the container end its guest, without waiting for it. `false` where it does not listen.
    pub(crate) fn stop(&self) -> bool {
        self.run.stop(GRACE_MS)
    }

    /// Serves verbs for as long as it is polled.
    pub(crate) async fn serve(&self) -> std::convert::Infallible {
        let mut asking = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if asking.len() < AT_ONCE => {
                    let Ok((stream, _)) = accepted else {
                        // Without descriptors there is nothing to do but to wait for some.
                        tokio::time::sleep(BREATH).await;
                        continue;
                    };
                    if is_ours(&stream) {
                        let run = Arc::clone(&self.run);
                        asking.spawn(async move { attend(&stream, &run).await });
                    }
                }
                Some(_) = asking.join_next() => {}
            }
        }
    }
}

/// Where the socket of a run is.
pub(super) fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("control.sock")
}

/// Whether the other end is this user, or root, who may do as it likes anyway.
pub(super) fn is_ours(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let peer = stream.peer_cred();
    peer.is_ok_and(|peer| peer.uid() == own || peer.uid() == 0)
}

/// Hears one request and answers it.
async fn attend(stream: &UnixStream, run: &Run) {
    let heard = timeout(PATIENCE, hear(stream)).await;
    let reply = match heard {
        Ok(Ok(Some(request))) => run.answer(request).await,
        Ok(Err(error)) => refused(&format!("it is no request: {error}")),
        // It is gone, or does not say what it wants.
        Ok(Ok(None)) | Err(_) => return,
    };
    // Whoever does not listen to the answer is told by the record.
    let _ = timeout(PATIENCE, say(stream, &reply)).await;
}

impl Run {
    async fn answer(&self, request: Request) -> Reply {
        match request {
            Request::Change { direction, entries } => {
                let _turn = self.turn.lock().await;
                self.change(direction, &entries).await
            }
            Request::Stop { grace_ms } => {
                if self.stop(grace_ms) {
                    Reply::Stopping
                } else {
                    refused(NOT_LISTENING)
                }
            }
        }
    }

    /// Writes it down, then tells the container, which does it once however often it is told. What
    /// could not be written is lost only with this process.
    fn stop(&self, grace_ms: u64) -> bool {
        if self.orders.is_closed() || self.orders.capacity() == 0 {
            return false;
        }
        let _ = ending::write_down(&self.directory, grace_ms);
        self.orders.try_send(HostMessage::Stop { grace_ms }).is_ok()
    }

    async fn change(&self, direction: Direction, entries: &[String]) -> Reply {
        let outstanding = self.outstanding();
        if let Some((generation, digest)) = outstanding
            && self.answered(generation, &digest).await.is_none()
        {
            return Reply::Unconfirmed { generation };
        }
        let list = {
            let state = self.state();
            state.history.list(&state.answers)
        };
        let amendment = match amend(&list, direction, entries) {
            Ok(Some(amendment)) => amendment,
            Ok(None) => return Reply::Unchanged(self.unchanged(list.len())),
            Err(error) => return refused(&error.to_string()),
        };
        let (generation, digest) = match self.ask(&amendment) {
            Ok(asked) => asked,
            Err(error) => return refused(&error.to_string()),
        };
        match self.answered(generation, &digest).await {
            None => Reply::Unconfirmed { generation },
            Some(answer) if answer.outcome == PolicyOutcome::InForce => {
                let told = answer.detail.map(|detail| detail.to_string());
                Reply::InForce(Change {
                    generation,
                    digest,
                    entries: amendment.policy.len(),
                    added: amendment.added,
                    removed: amendment.removed,
                    warnings: amendment.warnings.into_iter().chain(told).collect(),
                })
            }
            Some(answer) => {
                let why = answer.detail.map(|detail| detail.to_string());
                refused(&why.unwrap_or_else(|| "the container does not say why".into()))
            }
        }
    }

    /// Writes it down, then asks the container: what is sent is known to whoever comes after us.
    fn ask(&self, amendment: &Amendment) -> io::Result<(u64, String)> {
        if self.orders.capacity() == 0 {
            return Err(io::Error::other(NOT_LISTENING));
        }
        let (generation, digest) = {
            let mut state = self.state();
            let asked = state.history.append(amendment)?;
            (asked.generation, asked.digest.clone())
        };
        self.send(generation, &digest, amendment.policy.entries())?;
        Ok((generation, digest))
    }

    /// A list that no frame holds is laid beside the channel.
    fn send(&self, generation: u64, digest: &str, entries: Vec<String>) -> io::Result<()> {
        let order = |list| {
            HostMessage::Policy(PolicyOrder {
                generation,
                digest: Printable::new(digest),
                list,
            })
        };
        let mut message = order(List::Allow(entries));
        if encode(&message, MAX_FRAME).is_err()
            && let HostMessage::Policy(PolicyOrder {
                list: List::Allow(entries),
                ..
            }) = &message
        {
            let name = format!("policy-{generation}");
            lay(&self.channel.join(&name), entries)?;
            message = order(List::File(name));
        }
        self.orders
            .try_send(message)
            .map_err(|_| io::Error::other(NOT_LISTENING))
    }

    /// After another collector, which may have been killed before it could send what it wrote down.
    fn ask_again(&self) {
        let outstanding = {
            let state = self.state();
            let outstanding = state.history.outstanding(&state.answers);
            outstanding.map(|(asked, list)| (asked.generation, asked.digest.clone(), list))
        };
        if let Some((generation, digest, list)) = outstanding {
            // Whoever asks next is told that the container has not answered.
            let _ = self.send(generation, &digest, list.into_iter().collect());
        }
        if let Some(grace_ms) = ending::asked(&self.directory) {
            let _ = self.orders.try_send(HostMessage::Stop { grace_ms });
        }
    }

    /// What the container says of a list, unless it takes too long.
    async fn answered(&self, generation: u64, digest: &str) -> Option<Answer> {
        let answered = async {
            loop {
                let heard = self.heard.notified();
                if let Some(answer) = self.state().answers.on(generation, digest) {
                    return answer.clone();
                }
                heard.await;
            }
        };
        let answer = timeout(self.patience, answered).await.ok()?;
        // The container has read it, or never will.
        let _ = fs::remove_file(self.channel.join(format!("policy-{generation}")));
        Some(answer)
    }

    fn outstanding(&self) -> Option<(u64, String)> {
        let state = self.state();
        let outstanding = state.history.outstanding(&state.answers);
        outstanding.map(|(asked, _)| (asked.generation, asked.digest.clone()))
    }

    fn unchanged(&self, entries: usize) -> Change {
        let state = self.state();
        let (generation, digest) = state.history.in_force(&state.answers);
        Change {
            generation,
            digest: digest.to_owned(),
            entries,
            ..Change::default()
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused(reason: &str) -> Reply {
    Reply::Refused {
        reason: Printable::new(reason).to_string(),
    }
}

/// A line for each entry. The container's root may be anybody on the host, and has no
/// `DAC_OVERRIDE`: the file is open to others, and the directories above it are not.
fn lay(path: &Path, entries: &[String]) -> io::Result<()> {
    let mut text = entries.join("\n");
    text.push('\n');
    let part = path.with_extension("part");
    fs::write(&part, text)?;
    fs::set_permissions(&part, fs::Permissions::from_mode(0o644))?;
    fs::rename(part, path)
}

/// For a container to say what became of a list, and for a verb to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);
/// What engines give a container that they stop.
const GRACE_MS: u64 = 10_000;
/// Orders that no container has taken: each change waits for the one before it.
const UNSENT: usize = 8;
/// Verbs that are answered at once; others wait in the socket's queue.
const AT_ONCE: usize = 4;
const BREATH: Duration = Duration::from_millis(100);
const NOT_LISTENING: &str = "the container does not listen; end it with the engine";

#[cfg(test)]
mod tests {
    use policy::Policy;
    use report::PolicyReport;

    use super::*;

    struct Fixture {
        dir: tempfile::TempDir,
        control: Control,
        orders: mpsc::Receiver<HostMessage>,
    }

    fn opened(dir: tempfile::TempDir, answers: Answers) -> Fixture {
        let launched = Policy::parse("a.example").unwrap();
        let digest = launched.digest().to_string();
        let history = History::read(dir.path(), &launched.entries(), &digest).unwrap();
        let (control, orders) = Control::open(dir.path(), history, answers).unwrap();
        Fixture {
            dir,
            control,
            orders,
        }
    }

    fn fixture() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(channel::directory(dir.path())).unwrap();
        opened(dir, Answers::default())
    }

    fn allow(entry: &str) -> Request {
        Request::Change {
            direction: Direction::Allow,
            entries: vec![entry.into()],
        }
    }

    async fn ask(dir: &Path, request: &Request) -> Reply {
        let stream = UnixStream::connect(socket(dir)).await.unwrap();
        say(&stream, request).await.unwrap();
        hear(&stream).await.unwrap().unwrap()
    }

    fn said(order: &PolicyOrder, outcome: PolicyOutcome) -> Received {
        let report = PolicyReport {
            generation: order.generation,
            digest: order.digest.clone(),
            outcome,
            detail: Some(Printable::new("why")),
        };
        Received {
            body: Body::Policy(report),
            seq: 9,
            t: 5,
        }
    }

    /// A container that answers all lists so.
    async fn contain(
        control: &Control,
        orders: &mut mpsc::Receiver<HostMessage>,
        outcome: PolicyOutcome,
    ) {
        while let Some(order) = orders.recv().await {
            let HostMessage::Policy(order) = order else {
                panic!("{order:?}")
            };
            control.hear(&said(&order, outcome));
        }
    }

    #[tokio::test]
    async fn a_change_is_answered_once_the_container_has_confirmed_it() {
        let Fixture {
            dir,
            control,
            mut orders,
        } = fixture();
        let asking = async {
            let first = ask(dir.path(), &allow("b.example")).await;
            let again = ask(dir.path(), &allow("b.example")).await;
            (first, again)
        };
        let (first, again) = tokio::select! {
            replies = asking => replies,
            never = control.serve() => match never {},
            () = contain(&control, &mut orders, PolicyOutcome::InForce) => panic!("ended"),
        };
        let Reply::InForce(change) = first else {
            panic!("{first:?}")
        };
        assert_eq!((change.generation, change.entries), (2, 2));
        assert_eq!(change.added, ["b.example"]);
        // What the container says of it is not kept from who asked.
        assert_eq!(change.warnings, ["why"]);
        let unchanged = matches!(&again, Reply::Unchanged(same) if same.generation == 2 && same.digest == change.digest);
        assert!(unchanged, "{again:?}");
    }

    #[tokio::test]
    async fn what_the_container_refuses_is_not_in_the_next_list() {
        let Fixture {
            dir,
            control,
            mut orders,
        } = fixture();
        let requests = [allow("b.example"), allow("c.example")];
        let reply = tokio::select! {
            reply = ask(dir.path(), &requests[0]) => reply,
            never = control.serve() => match never {},
            () = contain(&control, &mut orders, PolicyOutcome::Refused) => panic!("ended"),
        };
        assert_eq!(reply, refused("why"));
        let reply = tokio::select! {
            reply = ask(dir.path(), &requests[1]) => reply,
            never = control.serve() => match never {},
            () = contain(&control, &mut orders, PolicyOutcome::InForce) => panic!("ended"),
        };
        assert!(
            matches!(&reply, Reply::InForce(change) if change.entries == 2 && change.generation == 3),
            "{reply:?}"
        );
    }

    #[tokio::test]
    async fn a_container_that_does_not_answer_is_not_waited_for_and_gets_no_other_list() {
        let Fixture {
            dir,
            mut control,
            mut orders,
        } = fixture();
        Arc::get_mut(&mut control.run).unwrap().patience = Duration::from_millis(20);
        let asking = async {
            let first = ask(dir.path(), &allow("b.example")).await;
            let second = ask(dir.path(), &allow("c.example")).await;
            (first, second)
        };
        let replies = tokio::select! {
            replies = asking => replies,
            never = control.serve() => match never {},
        };
        let unconfirmed = Reply::Unconfirmed { generation: 2 };
        assert_eq!(replies, (unconfirmed.clone(), unconfirmed));
        assert!(orders.try_recv().is_ok() && orders.try_recv().is_err());
    }

    #[tokio::test]
    async fn another_collector_asks_for_what_was_not_answered() {
        let Fixture {
            dir,
            control,
            mut orders,
        } = fixture();
        let list = Policy::parse("a.example").unwrap().entries();
        let amendment = amend(
            &list.into_iter().collect(),
            Direction::Allow,
            &["b.example".to_owned()],
        );
        control.run.ask(&amendment.unwrap().unwrap()).unwrap();
        let first = orders.try_recv().unwrap();
        drop((control, orders));
        let mut next = opened(dir, Answers::default());
        assert_eq!(next.orders.try_recv().unwrap(), first);
        // One that has the answer does not.
        let HostMessage::Policy(order) = first else {
            panic!("{first:?}")
        };
        let mut answers = Answers::default();
        let Body::Policy(report) = said(&order, PolicyOutcome::InForce).body else {
            panic!("no report")
        };
        answers.add(&report, 1);
        drop((next.control, next.orders));
        assert!(opened(next.dir, answers).orders.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_list_that_no_frame_holds_is_a_file_that_goes_when_it_was_read() {
        let Fixture {
            dir,
            control,
            mut orders,
        } = fixture();
        let entries: Vec<_> = (0..2000).map(|n| format!("name-{n}.example")).collect();
        let request = Request::Change {
            direction: Direction::Allow,
            entries,
        };
        let laid = channel::directory(dir.path()).join("policy-2");
        let containing = async {
            let Some(HostMessage::Policy(order)) = orders.recv().await else {
                panic!("no order")
            };
            assert_eq!(order.list, List::File("policy-2".into()));
            let policy = Policy::parse(&fs::read_to_string(&laid).unwrap()).unwrap();
            assert_eq!(policy.digest().to_string(), order.digest.as_str());
            control.hear(&said(&order, PolicyOutcome::InForce));
            std::future::pending::<()>().await;
        };
        let reply = tokio::select! {
            reply = ask(dir.path(), &request) => reply,
            never = control.serve() => match never {},
            () = containing => panic!("ended"),
        };
        assert!(matches!(reply, Reply::InForce(change) if change.entries == 2001));
        assert!(!laid.exists());
    }

    #[tokio::test]
    async fn rubbish_is_answered_and_others_are_served() {
        let Fixture {
            dir,
            control,
            mut orders,
        } = fixture();
        let asking = async {
            let stream = UnixStream::connect(socket(dir.path())).await.unwrap();
            say(&stream, &"rubbish").await.unwrap();
            let reply = hear::<Reply>(&stream).await.unwrap().unwrap();
            assert!(matches!(reply, Reply::Refused { .. }), "{reply:?}");
            ask(dir.path(), &Request::Stop { grace_ms: 7 }).await
        };
        let reply = tokio::select! {
            reply = asking => reply,
            never = control.serve() => match never {},
        };
        assert_eq!(reply, Reply::Stopping);
        assert_eq!(
            orders.try_recv().unwrap(),
            HostMessage::Stop { grace_ms: 7 }
        );
    }

    #[tokio::test]
    async fn the_socket_is_this_user_s_and_one_that_was_left_is_replaced() {
        let Fixture { dir, control, .. } = fixture();
        drop(control);
        assert!(socket(dir.path()).exists());
        let next = opened(dir, Answers::default());
        let mode = fs::metadata(socket(next.dir.path())).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        assert!(UnixStream::connect(socket(next.dir.path())).await.is_ok());
    }

    #[tokio::test]
    async fn an_end_is_said_again_by_whoever_comes_next() {
        let Fixture {
            dir,
            control,
            orders: _orders,
        } = fixture();
        let reply = control.run.answer(Request::Stop { grace_ms: 7 }).await;
        assert_eq!(reply, Reply::Stopping);
        drop(control);
        let mut next = opened(dir, Answers::default());
        assert_eq!(
            next.orders.try_recv().unwrap(),
            HostMessage::Stop { grace_ms: 7 }
        );
        assert!(next.orders.try_recv().is_err());
    }

    #[tokio::test]
    async fn an_end_that_was_refused_is_said_by_nobody() {
        let Fixture {
            dir,
            control,
            orders,
        } = fixture();
        drop(orders);
        let reply = control.run.answer(Request::Stop { grace_ms: 7 }).await;
        assert_eq!(reply, refused(NOT_LISTENING));
        drop(control);
        assert!(opened(dir, Answers::default()).orders.try_recv().is_err());
    }

    #[tokio::test]
    async fn changes_that_come_at_once_are_made_one_after_the_other() {
        let Fixture {
            dir,
            control,
            mut orders,
        } = fixture();
        let requests = ["b.example", "c.example", "d.example"].map(allow);
        let asking = async {
            tokio::join!(
                ask(dir.path(), &requests[0]),
                ask(dir.path(), &requests[1]),
                ask(dir.path(), &requests[2]),
            )
        };
        let (first, second, third) = tokio::select! {
            replies = asking => replies,
            never = control.serve() => match never {},
            () = contain(&control, &mut orders, PolicyOutcome::InForce) => panic!("ended"),
        };
        let mut generations = [first, second, third].map(|reply| {
            let Reply::InForce(change) = reply else {
                panic!("{reply:?}")
            };
            (change.generation, change.entries)
        });
        generations.sort_unstable();
        assert_eq!(generations, [(2, 2), (3, 3), (4, 4)]);
    }

    #[tokio::test]
    async fn a_container_that_takes_no_orders_is_given_so_many_and_no_more() {
        let Fixture {
            control,
            orders: _orders,
            ..
        } = fixture();
        for _ in 0..UNSENT {
            let reply = control.run.answer(Request::Stop { grace_ms: 1 }).await;
            assert_eq!(reply, Reply::Stopping);
        }
        let stop = control.run.answer(Request::Stop { grace_ms: 1 }).await;
        let change = control.run.answer(allow("b.example")).await;
        for reply in [stop, change] {
            assert_eq!(reply, refused(NOT_LISTENING));
        }
        // What was not asked for is not waited for.
        assert_eq!(control.run.outstanding(), None);
    }

    #[tokio::test]
    async fn a_verb_that_says_nothing_or_goes_away_keeps_nobody_waiting() {
        let Fixture {
            dir,
            control,
            orders: _orders,
        } = fixture();
        let asking = async {
            let silent = UnixStream::connect(socket(dir.path())).await.unwrap();
            drop(UnixStream::connect(socket(dir.path())).await.unwrap());
            let reply = ask(dir.path(), &Request::Stop { grace_ms: 1 }).await;
            drop(silent);
            reply
        };
        let reply = tokio::select! {
            reply = asking => reply,
            never = control.serve() => match never {},
        };
        assert_eq!(reply, Reply::Stopping);
    }

    #[tokio::test]
    async fn a_mistake_in_an_entry_costs_no_generation() {
        let Fixture { control, .. } = fixture();
        let reply = control.run.answer(allow("*")).await;
        assert!(matches!(reply, Reply::Refused { .. }), "{reply:?}");
        assert_eq!(control.run.outstanding(), None);
    }
}
