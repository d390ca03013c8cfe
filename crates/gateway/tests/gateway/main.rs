//! The gateway from outside: its engine against a model of S3, under faults and kills, and the program with real clients.

mod clients;
mod damage;
mod faulty;
mod kills;
mod meanwhile;
mod model;
mod program;
mod requests;
mod rig;
mod uploads;
