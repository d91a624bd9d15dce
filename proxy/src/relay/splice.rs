//! Moves bytes from socket to socket through a pipe, without looking at them.
//!
//! Worth it only for a direction that carries much: a pipe costs more than a copy of a few bytes. A
//! pipe is held only while there is something to move, or while a peer does not take what is in it.

use std::{future::poll_fn, io};

use rustix::io::Errno;
use tokio::{io::Interest, net::TcpStream};

use super::{Line, copy, pipes::Pipe};

/// Why a direction is not spliced any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopped {
    /// Its source has ended.
    Ended,
    /// It carries little, or there is no pipe to be had: it may prove itself anew.
    NotWorthIt,
    /// It is not granted here.
    Refused,
}

/// Splices for as long as it is worth it. Nothing is left in a pipe unless it fails.
pub(super) async fn carry(line: &mut Line<'_, impl Fn(usize)>) -> io::Result<Stopped> {
    let mut weak = 0;
    while weak < WEAK_BURSTS {
        let from: &TcpStream = line.from.as_ref();
        poll_fn(|cx| from.poll_read_ready(cx)).await?;
        let Some(mut pipe) = line.spares.pipes.take() else {
            return Ok(Stopped::NotWorthIt);
        };
        let (moved, stopped) = burst(line, &mut pipe).await?;
        line.spares.pipes.put_back(pipe);
        if let Some(stopped) = stopped {
            return Ok(stopped);
        }
        weak = if moved < WEAK { weak + 1 } else { 0 };
    }
    Ok(Stopped::NotWorthIt)
}

/// Moves what there is until there is no more for now: how much that was, and what else happened.
async fn burst(
    line: &mut Line<'_, impl Fn(usize)>,
    pipe: &mut Pipe,
) -> io::Result<(usize, Option<Stopped>)> {
    let mut moved = 0;
    loop {
        let from: &TcpStream = line.from.as_ref();
        match from.try_io(Interest::READABLE, || pipe.fill(from)) {
            Ok(0) => return Ok((moved, Some(Stopped::Ended))),
            Ok(more) => {
                moved += more;
                if let Some(stopped) = empty(line, pipe).await? {
                    return Ok((moved, Some(stopped)));
                }
                line.turn.spend(more).await;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok((moved, None)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_refusal(&error) => return Ok((moved, Some(Stopped::Refused))),
            Err(error) => return Err(error),
        }
    }
}

/// Moves on all that is in the pipe.
async fn empty(
    line: &mut Line<'_, impl Fn(usize)>,
    pipe: &mut Pipe,
) -> io::Result<Option<Stopped>> {
    while pipe.filled() > 0 {
        let to: &TcpStream = line.to.as_ref();
        match to.try_io(Interest::WRITABLE, || pipe.empty(to)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(moved) => (line.count)(moved),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll_fn(|cx| to.poll_write_ready(cx)).await?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_refusal(&error) => {
                rescue(line, pipe).await?;
                return Ok(Some(Stopped::Refused));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Copies what is in a pipe that may not be spliced out of.
async fn rescue(line: &mut Line<'_, impl Fn(usize)>, pipe: &mut Pipe) -> io::Result<()> {
    while pipe.filled() > 0 {
        let mut chunk = line.spares.buffers.chunk();
        chunk.fill(|memory| pipe.read(memory))?;
        copy::send(&mut line.to, chunk.bytes(), &line.count).await?;
    }
    Ok(())
}

/// Whether an error says that splicing is not granted: by the kind of socket, by a filter of system
/// calls, or for want of memory. Any other is the connection's own, and would be lost if it were not
/// heard here: a socket tells once that its peer reset it.
fn is_refusal(error: &io::Error) -> bool {
    let code = Errno::from_io_error(error);
    code.is_some_and(|code| REFUSALS.contains(&code))
}

const REFUSALS: [Errno; 6] = [
    Errno::INVAL,
    Errno::NOSYS,
    Errno::PERM,
    Errno::ACCESS,
    Errno::OPNOTSUPP,
    Errno::NOMEM,
];
/// A burst of fewer bytes would have been copied as well.
const WEAK: usize = 16 * 1024;
/// So many of them in a row, and it is copied again.
const WEAK_BURSTS: u32 = 16;

#[cfg(test)]
mod tests {
    use std::{cell::Cell, task::Poll};

    use proptest::prelude::*;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        sync::watch,
    };

    use super::*;
    use crate::{
        client::soon,
        relay::{
            pipes::Calls,
            run,
            tests::{Relayed, all_of},
        },
    };

    thread_local! {
        static FILLED: Cell<usize> = const { Cell::new(0) };
        static FILLED_LITTLE: Cell<usize> = const { Cell::new(0) };
        /// Whether what is in a pipe was not taken.
        static STUCK: Cell<bool> = const { Cell::new(false) };
        /// How many more calls of the kind that is being refused are granted.
        static GRANTED: Cell<usize> = const { Cell::new(0) };
    }

    /// The kernel, watched.
    fn counted() -> Calls {
        FILLED.set(0);
        FILLED_LITTLE.set(0);
        STUCK.set(false);
        Calls {
            fill: |from, to, length| {
                let moved = (Calls::default().fill)(from, to, length)?;
                FILLED.set(FILLED.get() + 1);
                FILLED_LITTLE.set(FILLED_LITTLE.get() + usize::from((1..100).contains(&moved)));
                Ok(moved)
            },
            empty: |from, to, length| {
                let moved = (Calls::default().empty)(from, to, length);
                STUCK.set(moved == Err(Errno::AGAIN));
                moved
            },
            ..Calls::default()
        }
    }

    fn if_granted(code: Errno) -> Result<(), Errno> {
        match GRANTED.get() {
            0 => Err(code),
            left => {
                GRANTED.set(left - 1);
                Ok(())
            }
        }
    }

    /// A kernel that refuses something from some moment on.
    #[derive(Debug, Clone, Copy)]
    enum Refuses {
        Nothing,
        Pipes,
        Filling(usize),
        Emptying(usize),
    }

    impl Refuses {
        fn calls(self) -> Calls {
            let all = counted();
            match self {
                Self::Nothing => all,
                Self::Pipes => Calls {
                    open: || Err(Errno::MFILE),
                    ..all
                },
                Self::Filling(after) => {
                    GRANTED.set(after);
                    Calls {
                        fill: |from, to, length| {
                            if_granted(Errno::INVAL)?;
                            (Calls::default().fill)(from, to, length)
                        },
                        ..all
                    }
                }
                Self::Emptying(after) => {
                    GRANTED.set(after);
                    Calls {
                        empty: |from, to, length| {
                            if_granted(Errno::PERM)?;
                            // Part of it, so that more is left in the pipe when it is refused.
                            (Calls::default().empty)(from, to, length.div_ceil(2))
                        },
                        ..all
                    }
                }
            }
        }
    }

    /// What one side does.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Send(usize),
        /// Waits until the other side has heard all so far.
        Pause,
    }

    fn pattern(length: usize, seed: usize) -> Vec<u8> {
        (0..length)
            .map(|at| u8::try_from((at * 7 + at / 251 + seed) % 251).unwrap())
            .collect()
    }

    fn script() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (1_usize..2000).prop_map(Step::Send),
            (1_usize..100_000).prop_map(Step::Send),
            (200_000_usize..600_000).prop_map(Step::Send),
            Just(Step::Pause),
        ];
        proptest::collection::vec(step, 0..8)
    }

    fn kernel() -> impl Strategy<Value = Refuses> {
        prop_oneof![
            Just(Refuses::Nothing),
            Just(Refuses::Pipes),
            (0_usize..6).prop_map(Refuses::Filling),
            (0_usize..6).prop_map(Refuses::Emptying),
        ]
    }

    /// What one side says, and how much came from it before.
    struct Part {
        steps: Vec<Step>,
        says: Vec<u8>,
        early: usize,
    }

    impl Part {
        fn new(steps: Vec<Step>, seed: usize, early: usize) -> Self {
            let lengths = steps.iter().map(|step| match step {
                Step::Send(length) => *length,
                Step::Pause => 0,
            });
            let says = pattern(early + lengths.sum::<usize>(), seed);
            Self { steps, says, early }
        }

        /// Plays it to its end, and gives back what was heard.
        async fn play(
            &self,
            stream: &mut TcpStream,
            heard: &watch::Sender<usize>,
            mut other_heard: watch::Receiver<usize>,
        ) -> Vec<u8> {
            let (mut from, mut to) = stream.split();
            let speaking = async {
                let mut said = self.early;
                for step in &self.steps {
                    match *step {
                        Step::Send(length) => {
                            to.write_all(&self.says[said..said + length]).await.unwrap();
                            said += length;
                        }
                        Step::Pause => {
                            other_heard.wait_for(|heard| *heard == said).await.unwrap();
                        }
                    }
                }
                to.shutdown().await.unwrap();
            };
            let listening = async {
                let mut all = Vec::new();
                while from.read_buf(&mut all).await.unwrap() > 0 {
                    heard.send_replace(all.len());
                }
                all
            };
            tokio::join!(speaking, listening).1
        }
    }

    /// Has both sides play: what each has heard, and what was counted.
    async fn play(up: &Part, down: &Part, relayed: &mut Relayed) -> (Vec<u8>, Vec<u8>, u64) {
        let early = &up.says[..up.early];
        relayed.client.pending.extend_from_slice(early);
        let (guest_heard, at_guest) = watch::channel(0);
        let (far_heard, at_far) = watch::channel(0);
        let Relayed {
            guest,
            far,
            client,
            upstream,
            flow,
            spares,
        } = relayed;
        let (at_guest, at_far, ()) = tokio::join!(
            up.play(guest, &guest_heard, at_far),
            down.play(far, &far_heard, at_guest),
            run(client, upstream, flow, spares),
        );
        assert_eq!(spares.pipes.count(), spares.pipes.count_spare());
        (at_guest, at_far, flow.moved())
    }

    /// The same on a runtime and with a relay of its own.
    fn played(up: &Part, down: &Part, calls: Calls) -> (Vec<u8>, Vec<u8>, u64) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let playing = async {
            let mut relayed = Relayed::over(calls).await;
            play(up, down, &mut relayed).await
        };
        runtime
            .enable_all()
            .build()
            .unwrap()
            .block_on(soon(playing))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn each_side_hears_exactly_what_the_other_says(
            up in script(),
            down in script(),
            early in 0_usize..100_000,
            refuses in kernel(),
        ) {
            let (up, down) = (Part::new(up, 0, early), Part::new(down, 1, 0));
            let (at_guest, at_far, moved) = played(&up, &down, refuses.calls());
            prop_assert_eq!(at_guest.len(), down.says.len());
            prop_assert!(at_guest == down.says, "other bytes came down than were sent");
            prop_assert_eq!(at_far.len(), up.says.len());
            prop_assert!(at_far == up.says, "other bytes went up than were sent");
            prop_assert_eq!(moved, (up.says.len() + down.says.len()) as u64);
        }
    }

    #[test]
    fn both_directions_are_spliced_once_they_are_bulk() {
        for (up, down) in [(MUCH, 0), (0, MUCH)] {
            let calls = counted();
            let part = |length| Part::new(vec![Step::Send(length)], 0, 0);
            played(&part(up), &part(down), calls);
            assert!(FILLED.get() > 1, "{up} up, {down} down");
        }
    }

    #[test]
    fn a_conversation_is_not_spliced() {
        let calls = counted();
        let talk = || Part::new([Step::Send(8 * 1024), Step::Pause].repeat(100), 0, 0);
        played(&talk(), &talk(), calls);
        assert_eq!(FILLED.get(), 0);
    }

    #[test]
    fn bulk_that_becomes_a_conversation_is_copied_again() {
        let steps = [
            vec![Step::Send(MUCH), Step::Pause],
            [Step::Send(9), Step::Pause].repeat(100),
        ];
        let (talks, listens) = (Part::new(steps.concat(), 0, 0), Part::new(vec![], 0, 0));
        played(&talks, &listens, counted());
        let small = FILLED_LITTLE.get();
        assert!((1..=WEAK_BURSTS as usize).contains(&small), "{small}");
    }

    #[tokio::test]
    async fn a_connection_cut_off_in_a_splice_leaves_nothing_for_the_next() {
        let mut relayed = Relayed::over(counted()).await;
        {
            let Relayed {
                far,
                client,
                upstream,
                flow,
                spares,
                ..
            } = &mut relayed;
            let bytes = vec![7; 8 * MUCH];
            tokio::select! {
                biased;
                () = run(client, upstream, flow, spares) => panic!("the relay ended"),
                sent = far.write_all(&bytes) => panic!("nobody reads: {sent:?}"),
                () = poll_fn(|_| if STUCK.get() { Poll::Ready(()) } else { Poll::Pending }) => {}
            }
        }
        let Relayed {
            mut guest,
            far: _far,
            client,
            flow,
            spares,
            ..
        } = relayed;
        assert_eq!(
            spares.pipes.count(),
            0,
            "what was in the pipe is gone with it"
        );
        drop(client);
        let heard = soon(all_of(&mut guest)).await.unwrap().len();
        assert_eq!(
            heard as u64,
            flow.moved(),
            "what never went out is not counted"
        );
        let (says, silent) = (
            Part::new(vec![Step::Send(MUCH)], 3, 0),
            Part::new(vec![], 0, 0),
        );
        let mut next = Relayed::new().await;
        next.spares = spares;
        let (_, at_far, _) = play(&says, &silent, &mut next).await;
        assert!(at_far == says.says, "it hears what was said to another");
    }

    #[tokio::test]
    async fn a_reset_in_a_splice_is_a_reset_of_the_other_side() {
        let Relayed {
            mut guest,
            mut far,
            mut client,
            mut upstream,
            flow,
            spares,
        } = Relayed::over(counted()).await;
        let cutting = async {
            let (mut heard, bytes) = (vec![0; MUCH], vec![7; MUCH]);
            let (sent, _) = tokio::join!(far.write_all(&bytes), guest.read_exact(&mut heard));
            sent.unwrap();
            far.set_zero_linger().unwrap();
            drop(far);
        };
        soon(async { tokio::join!(cutting, run(&mut client, &mut upstream, &flow, &spares)) })
            .await;
        assert!(FILLED.get() > 1, "it was spliced");
        client.finish().await;
        drop(client);
        let error = soon(all_of(&mut guest)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn a_direction_that_is_silent_after_bulk_holds_no_pipe() {
        let Relayed {
            mut guest,
            mut far,
            mut client,
            mut upstream,
            flow,
            spares,
        } = Relayed::over(counted()).await;
        let sending = async {
            let (mut heard, bytes) = (vec![0; MUCH], vec![7; MUCH]);
            let (sent, _) = tokio::join!(far.write_all(&bytes), guest.read_exact(&mut heard));
            sent.unwrap();
        };
        tokio::select! {
            () = run(&mut client, &mut upstream, &flow, &spares) => panic!("the relay ended"),
            () = sending => {}
        }
        assert_eq!((spares.pipes.count_spare(), spares.pipes.count()), (1, 1));
    }

    const MUCH: usize = 8 * 1024 * 1024;
}
