//! Values and sinks.
