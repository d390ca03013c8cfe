//! The gateway from outside: its engine against a model of S3, under faults and kills, and the program with real clients.

mod ahead;
mod at_rest;
mod cached;
mod chunked;
mod clients;
mod cluster;
mod damage;
mod faulty;
mod kills;
mod lies;
mod markers;
mod meanwhile;
mod model;
mod objects;
mod opening;
mod own_etcd;
mod own_s3;
mod program;
mod requests;
mod rig;
mod signed;
mod spilled;
mod unanswered;
mod unmounted;
mod uploads;
