//! What the tests of whole programs stand on: a fake internet, guests with and without a container
//! engine, and cases that are data.

pub mod asked;
pub mod bare;
pub mod case;
pub mod clients;
pub mod compare;
pub mod contained;
pub mod deed;
pub mod figures;
pub mod internet;
pub mod namespace;
pub mod pool;
pub mod process;
pub mod programs;
pub mod record;
pub mod schema;
pub mod terminal;
pub mod trials;
