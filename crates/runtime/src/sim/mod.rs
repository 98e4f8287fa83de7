//! A simulated world: nodes with disks and a network, in one thread, from one seed.
//!
//! [`Simulation::block_on`] runs a future, as the *observer*, beside the tasks of the nodes. All of
//! them use the ordinary API of this crate. Time jumps from event to event; the order of tasks,
//! latencies, cuts of streams and the outcome of failures come from the seed, so that the same
//! seed gives the same history bit for bit ([`World::history_hash`]), provided that the code above
//! takes time, randomness and I/O from this crate alone, does not depend on addresses of memory,
//! and stays away from the ceiling of pooled memory, which all simulations of a process share.
//!
//! What a node is: an IP address ([`World::ip`]), files and disks of its own ([`World::add_disk`],
//! or made by opening with `create_bytes`), and the tasks of [`World::spawn_on`] and all that they
//! spawn. [`World::crash`] kills its process: tasks are dropped, sockets end or reset, completed
//! writes stay. [`World::power_off`] also loses or tears what was not flushed, and tells nobody.
//! After either, [`World::restart`] and then spawn its tasks again.
//!
//! Not modelled: the durability of a file's creation and growth (they are durable at once), UDP,
//! clocks that drift apart, and memory that runs out.
//!
//! ```
//! use flagstone_runtime::net::{Address, Listener, Stream};
//! use flagstone_runtime::sim::{Config, Simulation};
//!
//! let sim = Simulation::new(7, Config::default());
//! let (server, client) = (sim.add_node("server"), sim.add_node("client"));
//! let address = Address::Tcp((sim.ip(server), 4420).into());
//! let there = address.clone();
//! sim.spawn_on(server, async move {
//!     let listener = Listener::bind(&there).unwrap();
//!     drop(listener.accept().await);
//! });
//! let connected = sim.spawn_on(client, async move {
//!     // Until the server listens it is refused.
//!     while Stream::connect(&address).await.is_err() {}
//! });
//! sim.block_on(async { connected.await.unwrap() });
//! ```

mod config;
mod conn;
mod connect;
mod disk;
mod driver;
mod endings;
mod files;
mod keep_alive;
mod rng;
mod state;
mod store;
mod streams;
mod trace;
mod world;

pub use config::{Config, DiskConfig, DiskFaults, Latency, LinkConfig};
pub use disk::DiskStats;
pub use rng::Rng;
pub use world::{NodeId, OBSERVER, Simulation, World};
