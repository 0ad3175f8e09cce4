//! debug
use std::fmt::Write;
use tracing::field::{Field, Visit};
pub(crate) struct Printer;
struct V(String);
impl Visit for V { fn record_debug(&mut self, f: &Field, v: &dyn std::fmt::Debug) { let _ = write!(self.0, " {}={:?}", f.name(), v); } }
impl tracing::Subscriber for Printer {
 fn enabled(&self, m: &tracing::Metadata<'_>) -> bool { m.target().starts_with("ostraca") }
 fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id { tracing::span::Id::from_u64(1) }
 fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
 fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
 fn event(&self, e: &tracing::Event<'_>) { let mut v = V(String::new()); e.record(&mut v); let t=std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis()%1000000; eprintln!("{t} {:?} {} {}{}", std::thread::current().id(), e.metadata().level(), e.metadata().target(), v.0.chars().take(600).collect::<String>()); }
 fn enter(&self, _: &tracing::span::Id) {}
 fn exit(&self, _: &tracing::span::Id) {}
}
pub(crate) fn init() { static O: std::sync::Once = std::sync::Once::new(); O.call_once(|| { if std::env::var_os("TRACE").is_some() { let _ = tracing::subscriber::set_global_default(Printer); } }); }
