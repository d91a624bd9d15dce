//! The rules in the kernel, in whichever of its firewalls there is, and their counters read back.
//!
//! Whatever PID 1 changes of them goes through [`Firewall`]: what does not is somebody else's doing.

mod backend;
mod counters;
mod finding;
mod held;
mod legacy;
mod nftables;
mod opened;
mod plan;
mod program;

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use policy::{AddressRule, HostName, Policy};
use sha2::{Digest as _, Sha256};

use self::{
    backend::{Backend, Loaded, not_so_loaded},
    legacy::Tables,
    nftables::Table,
    opened::Opened,
};
pub(crate) use self::{
    counters::Counters,
    finding::Finding,
    held::Held,
    plan::{AddressPlan, Plan},
};
use crate::{connections::established, failure::Failure};

/// NFLOG group of the refused packets, in the container's own network namespace.
pub(crate) const LOG_GROUP: u16 = 4100;
/// Enough of a packet for its addresses and ports, IPv6 extension headers included.
const LOG_SNAPLEN: u32 = 128;
/// Packets that the kernel gathers before it wakes PID 1.
const LOG_THRESHOLD: u32 = 64;
const LOAD: &str = "load the firewall";
/// When an opening is about to end: there is a look at it every five seconds.
pub(crate) const SOON: Duration = Duration::from_secs(15);
/// For how many seconds it goes on for a connection, and then for as many again.
pub(crate) const PROLONGED: u32 = 60;

/// Loaded rules. Nothing runs in the container before there are some.
pub(crate) struct Firewall {
    backend: Backend,
    plan: Loaded,
    /// What addresses of names were opened on, where addresses decide.
    held: Held,
    /// What the guest was let dial.
    opened: Opened,
    digest: String,
    /// Of the rules that are in force, what is no part of the account.
    set_aside: Counters,
    /// Of rules that were in force before.
    carried: Counters,
    degradations: Vec<String>,
}

/// What is to be opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    /// Whose addresses these are.
    pub(crate) name: &'a HostName,
    /// What the guest is to reach.
    pub(crate) endpoints: &'a [SocketAddr],
    /// For how long from now.
    pub(crate) seconds: u32,
}

impl Firewall {
    /// Loads the rules of `plan`: what works is found out by trying, nftables first.
    ///
    /// Must be called within the runtime.
    pub(crate) fn load(plan: Plan) -> Result<Self, Failure> {
        let nftables = match Table::load(&plan.ruleset()) {
            Ok((table, digest)) => {
                let backend = Backend::Nftables(table);
                return Ok(Self::with(Loaded::ByName(plan), backend, digest));
            }
            Err(failure) => failure,
        };
        match Tables::load(&plan) {
            Ok((tables, loaded)) => {
                let digest = Sha256::new_with_prefix(loaded);
                let backend = Backend::Legacy(tables);
                let mut firewall = Self::with(Loaded::ByName(plan), backend, digest);
                let cause = nftables.cause();
                firewall.degradations = vec![format!("nftables could not be used: {cause}")];
                Ok(firewall)
            }
            Err(legacy) => Err(legacy.after(&nftables)),
        }
    }

    /// Loads the rules of `plan`, under which addresses decide alone. That takes sets which forget,
    /// and so nftables.
    pub(crate) fn load_by_address(plan: AddressPlan) -> Result<Self, Failure> {
        let (table, digest) = Table::load(&plan.ruleset())?;
        let plan = Loaded::ByAddress(plan);
        Ok(Self::with(plan, Backend::Nftables(table), digest))
    }

    fn with(plan: Loaded, backend: Backend, digest: Sha256) -> Self {
        Self {
            backend,
            plan,
            held: Held::default(),
            opened: Opened::default(),
            digest: hex(&digest.finalize()),
            set_aside: Counters::default(),
            carried: Counters::default(),
            degradations: Vec::new(),
        }
    }

    /// What the report calls the backend.
    pub(crate) const fn backend(&self) -> &'static str {
        self.backend.name()
    }

    /// What could not be had and was done without, one sentence each.
    pub(crate) fn degradations(&self) -> impl Iterator<Item = String> {
        let lacks = self.backend.degradations();
        let own = self.degradations.iter().cloned();
        own.chain(lacks.into_iter().map(str::to_owned))
    }

    /// Whether refused packets are handed over on [`LOG_GROUP`].
    pub(crate) fn logs(&self) -> bool {
        self.backend.logs()
    }

    /// Leaves out of the account what was counted until now: it is the self-test's. Whether it is
    /// as much as the rules refused, if they count at all.
    pub(crate) fn set_aside(&mut self, refused: u64) -> Result<bool, Failure> {
        if !self.backend.counts() {
            return Ok(true);
        }
        let counted = self.counters()?;
        self.set_aside = counted;
        Ok(counted.packets >= refused)
    }

    /// Lets the guest dial what a name resolved to, also what it could dial already. All of it, or an
    /// error.
    pub(crate) fn open(&mut self, request: Request<'_>) -> io::Result<()> {
        let Request {
            name,
            endpoints,
            seconds,
        } = request;
        self.backend.open(endpoints, seconds)?;
        let now = Instant::now();
        let until = now + Duration::from_secs(seconds.into());
        self.opened.note(name, endpoints, until, now);
        Ok(())
    }

    /// Keeps open what is about to end and the guest is connected to: who resolves once and goes on
    /// connecting to what it knows is not cut off while it holds a connection there. Where addresses
    /// decide, whoever knows the names does so.
    pub(crate) fn prolong(&mut self, now: Instant) -> io::Result<()> {
        let Loaded::ByName(plan) = &self.plan else {
            return Ok(());
        };
        let ending = self.opened.ending(now, now + SOON);
        if ending.is_empty() {
            return Ok(());
        }
        let live = established(Some(plan.proxy_uid), |to| ending.contains(&to))?;
        if live.is_empty() {
            return Ok(());
        }
        let endpoints: Vec<_> = live.iter().copied().collect();
        self.backend.open(&endpoints, PROLONGED)?;
        let until = now + Duration::from_secs(PROLONGED.into());
        self.opened.prolong(&live, until, now);
        Ok(())
    }

    /// Has the rules follow another list, all of it or nothing. What the guest was let dial and that
    /// list does not open is closed.
    ///
    /// Established connections go on: what was authorised is the connection.
    pub(crate) fn follow(&mut self, policy: &Policy) -> Result<(), Failure> {
        let Loaded::ByName(plan) = &self.plan else {
            return Err(not_so_loaded());
        };
        let plan = plan.following(policy);
        let kept = self.opened.keep(policy, Instant::now());
        self.backend.follow(&plan, &kept)?;
        self.plan = Loaded::ByName(plan);
        Ok(())
    }

    /// The same where addresses decide. Of what was open, what is `held` stays so.
    pub(crate) fn follow_addresses(&mut self, policy: &Policy, held: Held) -> Result<(), Failure> {
        let Loaded::ByAddress(before) = &self.plan else {
            return Err(not_so_loaded());
        };
        let plan = before.following(policy)?;
        let still = held.all(Instant::now());
        self.backend.follow_addresses(before, &plan, &still)?;
        self.plan = Loaded::ByAddress(plan);
        self.held = held;
        Ok(())
    }

    /// Lets the guest dial the address of a name until then, on all ports of a range that the plan
    /// has; longer, if it could.
    pub(crate) fn open_range(&mut self, opening: AddressRule, until: Instant) -> io::Result<()> {
        let now = Instant::now();
        let until = self.held.end_of(opening, until);
        let seconds = held::seconds(until.saturating_duration_since(now));
        self.backend.open_range(opening, seconds)?;
        self.held.note(opening, until, now);
        Ok(())
    }

    /// SHA-256 of what was loaded, in hexadecimal.
    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }

    /// Loads the same rules again, whatever has become of them, with what was open. What was counted
    /// stays counted, and is not less than `at_least`.
    pub(crate) fn reload(&mut self, at_least: Counters) -> Result<(), Failure> {
        let counted = self.counters().unwrap_or(self.carried);
        let open = self.opened.all(Instant::now());
        self.backend.reload(&self.plan, &open)?;
        self.carried = counted.map2(at_least, u64::max);
        self.set_aside = Counters::default();
        let held = self.held.all(Instant::now());
        let reopened = self
            .backend
            .reopen(&open, &held)
            .map_err(Failure::system("open again what was open"));
        match reopened.and_then(|()| self.counters()) {
            // Whoever undid it since is found next, and answered as anybody is.
            Err(_) if self.backend.has_news() => Ok(()),
            checked => checked.map(drop),
        }
    }

    /// Waits for what others do to the rules. Of the legacy tables the kernel tells nobody.
    pub(crate) async fn changed(&mut self) -> io::Result<Finding> {
        self.backend.changed().await
    }

    /// Looks what others did to the rules until now.
    pub(crate) fn look(&mut self) -> io::Result<Finding> {
        self.backend.look()
    }

    /// Whether the kernel tells of changes. Where it does not, each look is a search.
    pub(crate) const fn is_told(&self) -> bool {
        self.backend.is_told()
    }

    /// What was counted since rules were first loaded, less what was set aside.
    pub(crate) fn counters(&self) -> Result<Counters, Failure> {
        let counted = self.backend.counters()?;
        let counted = counted.map2(self.set_aside, u64::saturating_sub);
        Ok(counted.map2(self.carried, u64::saturating_add))
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network of a test's own, with a host outside that the rules are between.
    pub(super) mod outside {
        use std::{
            io::{Read as _, Write as _},
            net::{TcpListener, TcpStream},
            process::Command,
            sync::mpsc::{Receiver, sync_channel},
            thread,
            time::Duration,
        };

        use nix::sched::{CloneFlags, unshare};

        pub(in crate::firewall) fn run(command: &str) {
            let output = Command::new("sh").args(["-ec", command]).output().unwrap();
            assert!(output.status.success(), "{command}: {output:?}");
        }

        const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));
        pub(in crate::firewall) const OUTSIDE: &str = "45.0.0.1";
        pub(in crate::firewall) const OPENED: u16 = 22;
        pub(in crate::firewall) const DENIED: u16 = 9;

        /// A network of this thread's own, and a host outside of it that takes connections on both
        /// ports, and hands over each of them.
        pub(in crate::firewall) fn with_a_host_outside() -> Receiver<TcpStream> {
            unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
            let (tell, told) = sync_channel(1);
            let (hand_over, taken) = sync_channel(1);
            let (go, gone) = sync_channel(1);
            thread::spawn(move || {
                unshare(CloneFlags::CLONE_NEWNET).unwrap();
                tell.send(nix::unistd::gettid()).unwrap();
                gone.recv().unwrap();
                run(&format!(
                    "ip addr add {OUTSIDE}/24 dev outside; ip link set outside up"
                ));
                for port in [OPENED, DENIED] {
                    let listener = TcpListener::bind((OUTSIDE, port)).unwrap();
                    let hand_over = hand_over.clone();
                    thread::spawn(move || {
                        for stream in listener.incoming() {
                            let _ = hand_over.send(stream.unwrap());
                        }
                    });
                }
                tell.send(nix::unistd::gettid()).unwrap();
            });
            let outside = told.recv().unwrap();
            run(&format!(
                "ip link set lo up; ip link add inside type veth peer name outside netns {outside}
                 ip addr add 45.0.0.2/24 dev inside; ip link set inside up"
            ));
            go.send(()).unwrap();
            told.recv().unwrap();
            taken
        }

        /// Both ends of a connection.
        pub(in crate::firewall) fn dial(port: u16, taken: &Receiver<TcpStream>) -> [TcpStream; 2] {
            let ours = TcpStream::connect((OUTSIDE, port)).unwrap();
            let theirs = taken.recv().unwrap();
            for end in [&ours, &theirs] {
                end.set_read_timeout(PATIENCE).unwrap();
            }
            [ours, theirs]
        }

        pub(in crate::firewall) fn carries([mut ours, mut theirs]: [&TcpStream; 2]) -> bool {
            let mut byte = [0];
            ours.write_all(b"x").unwrap();
            let arrived = theirs.read(&mut byte).is_ok_and(|count| count == 1);
            arrived
                && theirs.write_all(b"y").is_ok()
                && ours.read(&mut byte).is_ok_and(|count| count == 1)
        }
    }

    #[test]
    fn a_digest_is_lower_case_hexadecimal_of_full_length() {
        assert_eq!(hex(&[0, 15, 255]), "000fff");
    }

    fn nft(command: &str) -> String {
        let output = std::process::Command::new("nft").arg(command).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A firewall in a network of this thread's own.
    fn firewall() -> Firewall {
        let alone = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET);
        alone.expect("this test needs root");
        Firewall::load(plan::tests::plan("example.com:22", &[])).unwrap()
    }

    fn request(name: &HostName, seconds: u32) -> Request<'_> {
        Request {
            name,
            endpoints: &ENDPOINTS,
            seconds,
        }
    }

    const ENDPOINTS: [SocketAddr; 1] = [SocketAddr::V4(std::net::SocketAddrV4::new(
        std::net::Ipv4Addr::new(203, 0, 113, 7),
        22,
    ))];

    fn packets(packets: u64) -> Counters {
        Counters {
            packets,
            ..Counters::default()
        }
    }

    /// A counter is set to `count`, by us as far as anybody can tell.
    fn count(firewall: &mut Firewall, packets: u64) {
        let table = "inet sandbox_egress";
        nft(&format!(
            "flush chain {table} output; flush chain {table} input; flush chain {table} forward
             flush chain {table} leaving; flush chain {table} proxy
             delete counter {table} denied_packets
             add counter {table} denied_packets {{ packets {packets} bytes 1; }}"
        ));
        let _ = firewall.look().unwrap();
    }

    #[tokio::test]
    async fn what_pid_1_does_itself_is_nothing() {
        let mut firewall = firewall();
        firewall
            .open(request(&HostName::parse("example.com").unwrap(), 60))
            .unwrap();
        assert_eq!(firewall.look().unwrap(), Finding::Nothing);
        firewall.reload(Counters::default()).unwrap();
        firewall.counters().unwrap();
        firewall
            .open(request(&HostName::parse("example.com").unwrap(), 60))
            .unwrap();
        for _ in 0..3 {
            assert_eq!(firewall.look().unwrap(), Finding::Nothing);
        }
    }

    #[tokio::test]
    async fn what_another_does_is_found_and_mended_with_all_that_was_open() {
        let mut firewall = firewall();
        firewall
            .open(request(&HostName::parse("example.com").unwrap(), 600))
            .unwrap();
        for command in [
            "flush ruleset",
            "delete table inet sandbox_egress",
            "insert rule inet sandbox_egress output accept",
            "add element inet sandbox_egress allow4 { 192.0.2.1 . 22 timeout 1h }",
        ] {
            nft(command);
            let Finding::Changed(by) = firewall.changed().await.unwrap() else {
                panic!("{command}")
            };
            assert!(by.starts_with("`nft`"), "{by}");
            firewall.reload(Counters::default()).unwrap();
            assert_eq!(firewall.look().unwrap(), Finding::Nothing, "{command}");
            let listing = nft("list table inet sandbox_egress");
            assert!(listing.contains("203.0.113.7 . 22"), "{listing}");
            assert!(!listing.contains("192.0.2.1 . 22"), "{listing}");
            assert!(listing.contains("hook output priority filter; policy drop"));
        }
    }

    /// A listener at an address of this network, and a connection to it.
    fn connected(to: SocketAddr) -> (std::net::TcpListener, std::net::TcpStream) {
        for arguments in [
            format!("addr add {}/32 dev lo", to.ip()),
            "link set lo up".to_owned(),
        ] {
            let mut ip = std::process::Command::new("ip");
            assert!(ip.args(arguments.split(' ')).status().unwrap().success());
        }
        let listener = std::net::TcpListener::bind(to).unwrap();
        let stream = std::net::TcpStream::connect(to).unwrap();
        (listener, stream)
    }

    /// `ADDRESS . PORT MINUTES` of what is open: what it is open for besides is spare.
    fn timeouts() -> String {
        let listing = nft("list table inet sandbox_egress");
        let elements = listing.split(" expires ").filter_map(|before| {
            let (before, timeout) = before.rsplit_once(" timeout ")?;
            let key = before.rsplit(['{', ',']).next()?.trim();
            Some(format!("{key} {}m", timeout.split('m').next()?))
        });
        let mut elements: Vec<_> = elements.collect();
        elements.sort();
        elements.join(", ")
    }

    #[tokio::test]
    async fn an_opening_outlasts_its_answer_while_the_guest_is_connected_to_it_and_no_longer() {
        let mut firewall = firewall();
        let name = HostName::parse("example.com").unwrap();
        firewall.open(request(&name, 600)).unwrap();
        let other = ["203.0.113.8:22".parse().unwrap()];
        let request = Request {
            name: &name,
            endpoints: &other,
            seconds: 600,
        };
        firewall.open(request).unwrap();
        let (_listener, stream) = connected(ENDPOINTS[0]);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        firewall.prolong(at(580)).unwrap();
        assert_eq!(timeouts(), "203.0.113.7 . 22 10m, 203.0.113.8 . 22 10m");
        // As the kernel has no other time than its own, the one that is prolonged ends sooner here.
        firewall.prolong(at(590)).unwrap();
        assert_eq!(timeouts(), "203.0.113.7 . 22 1m, 203.0.113.8 . 22 10m");
        assert_eq!(firewall.look().unwrap(), Finding::Nothing);
        let open = firewall.opened.all(at(640));
        assert_eq!(
            open.iter().map(|kept| kept.to).collect::<Vec<_>>(),
            ENDPOINTS
        );
        drop(stream);
        firewall.prolong(at(640)).unwrap();
        assert!(firewall.opened.all(at(651)).is_empty());
    }

    fn by_address(list: &str) -> Firewall {
        let alone = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET);
        alone.expect("this test needs root");
        let here = plan::tests::plan(list, &[]).here;
        let policy = Policy::parse(list).unwrap();
        Firewall::load_by_address(AddressPlan::of(&policy, Vec::new(), here).unwrap()).unwrap()
    }

    fn opening(net: &str, low: u16, high: u16) -> AddressRule {
        AddressRule {
            net: net.parse().unwrap(),
            ports: policy::PortRange::new(low, high).unwrap(),
        }
    }

    #[tokio::test]
    async fn where_addresses_decide_what_another_does_is_mended_with_what_was_open_too() {
        let mut firewall = by_address("a.example:22,a.example:8000-9000");
        let until = |seconds| Instant::now() + Duration::from_secs(seconds);
        let (narrow, wide) = (
            opening("203.0.113.7/32", 22, 22),
            opening("203.0.113.7/32", 8000, 9000),
        );
        firewall.open_range(narrow, until(600)).unwrap();
        firewall.open_range(wide, until(600)).unwrap();
        // Another name has it for a shorter time.
        firewall.open_range(narrow, until(60)).unwrap();
        assert_eq!(firewall.look().unwrap(), Finding::Nothing);
        for command in [
            "flush ruleset",
            "insert rule inet sandbox_egress output accept",
            "add element inet sandbox_egress ports_8000_9000_4 { 192.0.2.1 timeout 1h }",
        ] {
            nft(command);
            let found = firewall.changed().await.unwrap();
            assert!(matches!(found, Finding::Changed(_)), "{command}: {found:?}");
            firewall.reload(Counters::default()).unwrap();
            assert_eq!(firewall.look().unwrap(), Finding::Nothing, "{command}");
            let listing = nft("list table inet sandbox_egress");
            assert!(listing.contains("203.0.113.7 . 22 timeout 9m"), "{listing}");
            assert_eq!(
                listing.matches("203.0.113.7 timeout 9m").count(),
                1,
                "{listing}"
            );
            assert!(!listing.contains("192.0.2.1"), "{listing}");
        }
    }

    #[tokio::test]
    async fn where_addresses_decide_another_list_is_a_change_of_our_own_and_lasts_over_a_reload() {
        let mut firewall = by_address("a.example:8000-9000");
        let until = Instant::now() + Duration::from_secs(600);
        let old = opening("203.0.113.7/32", 8000, 9000);
        firewall.open_range(old, until).unwrap();
        let mut held = Held::default();
        held.note(opening("203.0.113.8/32", 1, 1023), until, Instant::now());
        let policy = Policy::parse("b.example:1-1023").unwrap();
        firewall.follow_addresses(&policy, held).unwrap();
        assert_eq!(firewall.look().unwrap(), Finding::Nothing);
        assert!(firewall.open_range(old, until).is_err(), "its set is gone");
        for _ in 0..2 {
            let listing = nft("list table inet sandbox_egress");
            assert!(
                listing.contains("203.0.113.8") && !listing.contains("203.0.113.7"),
                "{listing}"
            );
            firewall.reload(Counters::default()).unwrap();
        }
        assert!(
            firewall.follow(&policy).is_err(),
            "the rules are of another kind"
        );
    }

    #[tokio::test]
    async fn what_was_counted_stays_counted_and_is_no_less_than_the_samples() {
        let mut firewall = firewall();
        firewall.set_aside = packets(2);
        count(&mut firewall, 7);
        assert_eq!(firewall.counters().unwrap(), packets(5));
        firewall.reload(packets(3)).unwrap();
        assert_eq!(firewall.counters().unwrap(), packets(5));
        count(&mut firewall, 10);
        assert_eq!(firewall.counters().unwrap(), packets(15));
        nft("flush ruleset");
        firewall.reload(packets(9)).unwrap();
        assert_eq!(firewall.counters().unwrap(), packets(9));
    }
}
