"""Deterministic simulation: the whole cluster in one thread, from one seed.

`schedule.run(seed)` builds a `world.World` of regions (`region`: a watched store, its acceptor, shard processes, a
replica, a gateway), lets clients and operators act while the `nemesis` does harm, then lets it heal and checks the
invariants I1 to I13. Real are `failover.machine`, `journal.memory`, `ledger`, `boards` and the replica's fold; of its own
are the network, the clocks and the shells around them. `mutants` breaks one rule at a time, `runs` does many seeds.

`fleet.Fleet` is several shards, a world each on one clock, with a board spread over them. There the product's own rounds,
manifests, orders and moves run in the simulated processes, on an event loop of each (`loop`).
"""
