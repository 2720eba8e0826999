//! A fleet with faulty links on one machine. Services, agents and the Git repository are real, each service and agent is a
//! process; only the links are simulated.
//!
//! It has four programs. [`demo`] shows a fleet and commits its releases: [`fleet`] starts it, [`link_faults`] breaks its
//! links and measures the time to truth, [`header`] is the text above the screen, [`result`] and [`result_text`] are the
//! result. [`chaos`] tests a secured hub with standbys: a schedule from a seed kills, freezes and cuts off every process and
//! fills disks, and then nothing may be lost, duplicated or wrong. [`link_proxy`] is a link alone, for other networks;
//! [`line_cuts`] cuts one of its lines by hand. [`lab`] prepares a fleet in containers.
//!
//! They share [`child`] (a process) with [`environment`], [`link`] (a link) with [`link_schedule`] (its faults), [`disk`] (a
//! disk that can be full), [`ports`] (their addresses), [`run_paths`] (the directory of a run), [`repository`] (the deployments),
//! [`hub`] and [`http`] (requests to services), and [`ledger`] (an independent count).

pub mod app;
pub mod chaos;
pub mod child;
pub mod config;
pub mod demo;
pub mod disk;
mod environment;
mod error;
mod fleet;
mod header;
pub mod http;
pub mod hub;
mod lab;
pub mod ledger;
mod line_cuts;
pub mod link;
mod link_faults;
mod link_proxy;
pub mod link_schedule;
mod ports;
pub mod repository;
mod result;
mod result_text;
mod run_paths;
