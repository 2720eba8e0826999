//! A fleet on flaky links on one machine. Real services, real agents and a real Git repository, each a process of
//! its own; only the links are ours, so that they can break.
//!
//! Three programs in one. [`demo`] is a story: [`fleet`] (what runs), [`weather`] (what happens to its links, and how long
//! the truth takes), [`scene`] (what stands above the picture), [`tally`] and [`closing`] (the closing words). [`chaos`] is
//! a trial: everything is killed, stalled, cut off and filled up by a seed, then healed, and nothing may be lost, repeated
//! or wrong. [`carrier`] is a link alone, for whoever builds a network of its own; [`lab`] is what a fleet in containers
//! needs beside its services.
//!
//! They share [`child`] (one process) with [`environment`] (what it inherits), [`link`] (one link) with [`flap`] (when it
//! breaks), [`disk`] (one that can be full), [`repository`] (what shall run), [`hub`] and [`http`] (what is said to be
//! true), [`ledger`] (what is).

pub mod app;
pub mod carrier;
pub mod chaos;
pub mod child;
pub mod closing;
pub mod config;
pub mod demo;
pub mod disk;
mod environment;
pub mod error;
pub mod flap;
pub mod fleet;
pub mod http;
pub mod hub;
pub mod lab;
pub mod ledger;
pub mod link;
pub mod places;
pub mod repository;
pub mod scene;
pub mod tally;
pub mod weather;
