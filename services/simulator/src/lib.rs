//! A fleet on flaky links on one machine. Real services, real agents and a real Git repository, each a process of
//! its own; only the links are ours, so that they can break.
//!
//! [`demo`] is the whole story. It uses [`fleet`] (what runs) → [`child`] (one process) and [`link`] (one link),
//! [`weather`] (what happens to the links) → [`flap`] (when), [`repository`] (what shall run), [`hub`] and [`http`]
//! (what is true), [`scene`] (what stands above the picture), [`tally`] and [`closing`] (the closing words).

pub mod app;
pub mod child;
pub mod closing;
pub mod config;
pub mod demo;
pub mod error;
pub mod flap;
pub mod fleet;
pub mod http;
pub mod hub;
pub mod link;
pub mod repository;
pub mod scene;
pub mod tally;
pub mod weather;
