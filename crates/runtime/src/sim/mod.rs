//! Simulated world: nodes with disks and a network, in one thread, from one seed.
//!
//! [`Simulation::block_on`] runs a future, the *observer*, together with the tasks of the nodes.
//! All of them use the ordinary API of this crate. Time jumps from event to event. The order of
//! tasks, latencies, stream segmentation and the outcome of faults come from the seed, so the same
//! seed gives the same history bit for bit ([`World::history_hash`]). This requires that the code
//! above takes time, randomness and I/O only from this crate, does not depend on memory addresses,
//! and stays below the limit of pooled memory, which all simulations of a process share.
//!
//! A node has an IP address ([`World::ip`]), files and disks ([`World::add_disk`], or created by
//! opening with `create_bytes`), and the tasks of [`World::spawn_on`] with everything they spawn.
//! [`World::crash`] kills its process: tasks are dropped, sockets end or reset, completed writes
//! stay. [`World::power_off`] also loses or tears unflushed writes, and peers get no notice. After
//! either, call [`World::restart`] and spawn its tasks again.
//!
//! Not modeled: the durability of file creation and growth (both are durable at once), UDP, clocks
//! that drift apart, and exhausted memory.
//!
//! ```
//! use flagstone_runtime::net::{Address, Listener, Stream};
//! use flagstone_runtime::sim::{SimConfig, Simulation};
//!
//! let sim = Simulation::new(7, SimConfig::default());
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
mod connection_end;
mod disk;
mod driver;
mod files;
mod keep_alive;
mod state;
mod store;
mod streams;
mod trace;
mod world;

pub use config::{DiskConfig, DiskFaults, LinkConfig, SimConfig, SimLatency};
pub use disk::DiskStats;
pub use world::{NodeId, OBSERVER, Simulation, World};
