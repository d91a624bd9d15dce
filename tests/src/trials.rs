//! Tests of whole programs in labs: how many at once, and in which.

use std::{num::NonZero, sync::Arc, thread::available_parallelism};

use libtest_mimic::{Arguments, Failed, Trial};

use crate::{
    contained::{Engine, Lab},
    pool::Pool,
};

/// The labs of one engine.
pub type Labs = Arc<Pool<Lab>>;

/// A test in a lab, whatever its engine.
pub type LabTest = fn(&Lab) -> anyhow::Result<()>;

/// Every engine and its labs, of which there are none yet.
#[must_use]
pub fn engines() -> [(Engine, Labs); 4] {
    let labs: [fn() -> anyhow::Result<Lab>; 4] = [
        || Lab::create(Engine::Docker),
        || Lab::create(Engine::Podman),
        || Lab::create(Engine::Remapped),
        || Lab::create(Engine::Rootless),
    ];
    let [docker, podman, remapped, rootless] = labs.map(|make| Arc::new(Pool::new(make)));
    [
        (Engine::Docker, docker),
        (Engine::Podman, podman),
        (Engine::Remapped, remapped),
        (Engine::Rootless, rootless),
    ]
}

/// Both engines with gVisor, likewise.
#[must_use]
pub fn engines_with_gvisor() -> [(Engine, Labs); 2] {
    let docker = Pool::new(|| Lab::create(Engine::GvisorDocker));
    let podman = Pool::new(|| Lab::create(Engine::GvisorPodman));
    [
        (Engine::GvisorDocker, Arc::new(docker)),
        (Engine::GvisorPodman, Arc::new(podman)),
    ]
}

/// What the command line says. Where it says nothing of how many tests run at once, it is three for
/// each processor: most of a test is waiting for something to be refused.
#[must_use]
pub fn arguments() -> Arguments {
    let processors = available_parallelism().map_or(1, NonZero::get);
    arguments_for(3 * processors)
}

/// The same, where it is `usually` as many.
#[must_use]
pub fn arguments_for(usually: usize) -> Arguments {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(usually);
    arguments
}

/// A test in a lab of `engine`, named after both.
#[must_use]
pub fn in_lab(
    engine: Engine,
    name: &str,
    labs: &Labs,
    test: impl Fn(&Lab) -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    let labs = Arc::clone(labs);
    // Labs are used again: nothing of an earlier test is taken for this one's.
    let test = move |lab: &Lab| {
        lab.internet().reset()?;
        test(lab)
    };
    let run = move || {
        labs.with(test)
            .map_err(|error| Failed::from(format!("{error:#}")))
    };
    Trial::test(format!("{}::{name}", engine.name()), run)
}
