//! Studies that are read, refused and planned: one program, so that the crate is linked once.

mod any_text;
mod broken_studies;
mod bundled_studies;
mod estimates;
mod machine;
mod memory;
mod outside_models;
mod outside_studies;
mod plan;
mod pool_files;
mod what_people_measure;
