//! [`AnyDotStore`]: the type-erased form of all dot stores. Only this module decides which variant
//! a shape has.

use crate::causal::{Dot, DotSet, Seen};
use crate::clock::HybridTimestamp;
use crate::encoded::{DecodeError, Encoded, LayoutReader, LayoutWriter};
use crate::types::dot_map::DotMap;
use crate::types::dot_store::{DotFun, DotStore, Empty, Stamped};
use crate::types::lww_register::winner;
use crate::types::shape::Shape;

/// A dot store of any kind. Two stores of one shape have the same variant. Operations on two stores
/// panic if the variants differ: callers compare shapes before.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AnyDotStore {
    /// `Flag`: one dot per replica that switched it on before it knew of another one.
    Unit(DotFun<()>),
    /// `GCounter`: one dot per replica, with its running total.
    Total(DotFun<u128>),
    /// `PNCounter`: one dot per replica, with its signed running total.
    Net(DotFun<i128>),
    /// `LWWRegister`: one dot per concurrent write.
    Register(DotFun<Stamped>),
    /// `MVRegister` and user types.
    Plain(DotFun<Encoded>),
    /// `GSet` and `ORSet`: the dots of each element.
    Set(DotMap<DotFun<()>>),
    /// `LWWMap` and `ORMap` of registers.
    Registers(DotMap<DotFun<Stamped>>),
    /// All other maps: a store for each key.
    Map(Box<DotMap<AnyDotStore>>),
}

impl From<DotMap<DotFun<()>>> for AnyDotStore {
    fn from(map: DotMap<DotFun<()>>) -> Self {
        Self::Set(map)
    }
}

impl From<DotMap<DotFun<Stamped>>> for AnyDotStore {
    fn from(map: DotMap<DotFun<Stamped>>) -> Self {
        Self::Registers(map)
    }
}

impl From<DotMap<Self>> for AnyDotStore {
    fn from(map: DotMap<Self>) -> Self {
        Self::Map(Box::new(map))
    }
}

/// Calls the same method on the store in any variant.
macro_rules! each {
    ($store:expr, $inner:ident => $call:expr) => {
        match $store {
            AnyDotStore::Unit($inner) => $call,
            AnyDotStore::Total($inner) => $call,
            AnyDotStore::Net($inner) => $call,
            AnyDotStore::Register($inner) => $call,
            AnyDotStore::Plain($inner) => $call,
            AnyDotStore::Set($inner) => $call,
            AnyDotStore::Registers($inner) => $call,
            AnyDotStore::Map($inner) => $call,
        }
    };
}

/// Calls a method on two stores of one variant. Two variants for one shape would be a bug of this
/// crate.
macro_rules! both {
    ($a:expr, $b:expr, $x:ident, $y:ident => $call:expr) => {
        match ($a, $b) {
            (AnyDotStore::Unit($x), AnyDotStore::Unit($y)) => $call,
            (AnyDotStore::Total($x), AnyDotStore::Total($y)) => $call,
            (AnyDotStore::Net($x), AnyDotStore::Net($y)) => $call,
            (AnyDotStore::Register($x), AnyDotStore::Register($y)) => $call,
            (AnyDotStore::Plain($x), AnyDotStore::Plain($y)) => $call,
            (AnyDotStore::Set($x), AnyDotStore::Set($y)) => $call,
            (AnyDotStore::Registers($x), AnyDotStore::Registers($y)) => $call,
            (AnyDotStore::Map($x), AnyDotStore::Map($y)) => $call,
            _ => unreachable!("stores are joined only after their shapes were compared"),
        }
    };
}

impl AnyDotStore {
    /// Whether the store is a leaf: one place, which every change touches.
    pub(crate) const fn is_leaf(&self) -> bool {
        !matches!(self, Self::Set(_) | Self::Registers(_) | Self::Map(_))
    }

    /// Makes a map in a delta refer to everything below it. Its keys stay. Does nothing to a leaf,
    /// which always does.
    pub(crate) fn sweep(&mut self) {
        match self {
            Self::Set(map) => map.sweep(),
            Self::Registers(map) => map.sweep(),
            Self::Map(map) => map.sweep(),
            _ => {}
        }
    }
}

/// Differences between snapshots as readers see them.
impl AnyDotStore {
    /// Whether readers see the same content, whichever replicas wrote it and however often. Both
    /// must have the same shape.
    ///
    /// Counters, MV registers and user types are compared dot by dot, so `false` is possible
    /// although readers see no difference. Of an LWW register, only the value that readers get
    /// counts, not its stamp or writer. Maps are compared key by key in this way.
    pub(crate) fn reads_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unit(a), Self::Unit(b)) => a.is_bottom() == b.is_bottom(),
            (Self::Register(a), Self::Register(b)) => {
                let read = |fun| winner(fun).map(|(_, stamped)| stamped.value.clone());
                read(a) == read(b)
            }
            (Self::Set(_) | Self::Registers(_) | Self::Map(_), _) => {
                self.keys_changed(Some(other)).is_empty()
            }
            (a, b) => a == b,
        }
    }

    /// Returns the keys or elements whose content does not [read like](Self::reads_like) that in
    /// `before`, in no defined order; added and removed ones are included. A snapshot that is
    /// missing or of another kind counts as empty. Empty for a leaf.
    pub(crate) fn keys_changed(&self, before: Option<&Self>) -> Vec<Encoded> {
        match (self, before) {
            (Self::Set(a), Some(Self::Set(b))) => a.keys_changed(b),
            (Self::Registers(a), Some(Self::Registers(b))) => a.keys_changed(b),
            (Self::Map(a), Some(Self::Map(b))) => a.keys_changed(b),
            (Self::Set(a), _) => a.keys_changed(&a.empty_like()),
            (Self::Registers(a), _) => a.keys_changed(&a.empty_like()),
            (Self::Map(a), _) => a.keys_changed(&a.empty_like()),
            _ => Vec::new(),
        }
    }

    /// Returns an estimate of the encoded size, in bytes; 0 for an empty map, at least 4 for a
    /// leaf. Walks the whole content.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Unit(fun) => 4 + fun.len() * 4,
            Self::Total(fun) => 4 + fun.len() * 12,
            Self::Net(fun) => 4 + fun.len() * 12,
            Self::Register(fun) => {
                4 + fun.iter().map(|(_, s)| 16 + s.value.as_bytes().len()).sum::<usize>()
            }
            Self::Plain(fun) => 4 + fun.iter().map(|(_, v)| 8 + v.as_bytes().len()).sum::<usize>(),
            Self::Set(map) => map.iter().map(|(key, _)| 6 + key.key().as_bytes().len()).sum(),
            Self::Registers(map) => {
                let entry = |fun: &DotFun<Stamped>| Self::Register(fun.clone()).size();
                map.iter().map(|(key, fun)| key.key().as_bytes().len() + entry(fun)).sum()
            }
            Self::Map(map) => {
                map.iter().map(|(key, inner)| 2 + key.key().as_bytes().len() + inner.size()).sum()
            }
        }
    }

    /// Merge of a planted fault: a register that received something in `arrived` keeps only that.
    /// Does nothing to other kinds, maps of registers included.
    pub(crate) fn keep_arrived(&mut self, arrived: &DotSet) {
        if let Self::Register(fun) = self
            && fun.iter().any(|(dot, _)| arrived.seen(dot))
        {
            fun.retain(|dot| arrived.seen(dot));
        }
    }

    /// Returns the highest time that a clock gave to any LWW register, at any depth, for the
    /// receiver's clock; siblings that readers do not get count as well. `None` if there is none:
    /// guarded writes, versions chosen by callers and raised times do not count.
    pub(crate) fn latest_time(&self) -> Option<HybridTimestamp> {
        let of = |fun: &DotFun<Stamped>| {
            let clocked = fun.iter().filter(|(_, s)| s.clocked);
            clocked.map(|(_, s)| s.stamp.time).max()
        };
        match self {
            Self::Register(fun) => of(fun),
            Self::Registers(map) => map.iter().filter_map(|(_, fun)| of(fun)).max(),
            Self::Map(map) => map.iter().filter_map(|(_, inner)| inner.latest_time()).max(),
            _ => None,
        }
    }
}

impl DotStore for AnyDotStore {
    /// Creates the store that a shape has. This is the only place that decides it.
    fn empty(shape: &Shape) -> Self {
        match shape {
            Shape::Flag => Self::Unit(DotFun::default()),
            Shape::GCounter => Self::Total(DotFun::default()),
            Shape::PNCounter => Self::Net(DotFun::default()),
            Shape::LWWRegister => Self::Register(DotFun::default()),
            Shape::MVRegister | Shape::User(_) => Self::Plain(DotFun::default()),
            Shape::GSet | Shape::ORSet => Self::Set(DotMap::empty(shape)),
            Shape::LWWMap => Self::Registers(DotMap::empty(shape)),
            Shape::ORMap(inner) if **inner == Shape::LWWRegister => {
                Self::Registers(DotMap::empty(shape))
            }
            Shape::PNCounterMap | Shape::ORMultiMap | Shape::ORMap(_) => {
                Self::Map(Box::new(DotMap::empty(shape)))
            }
        }
    }

    fn empty_like(&self) -> Self {
        each!(self, inner => inner.empty_like().into())
    }

    /// Returns the store unchanged, because every kind is an `AnyDotStore`.
    fn from_store(store: Self) -> Self {
        store
    }

    fn is_bottom(&self) -> bool {
        each!(self, inner => inner.is_bottom())
    }

    fn join(&mut self, mine: &impl Seen, other: &Self, theirs: &impl Seen) {
        both!(self, other, a, b => a.join(mine, b, theirs));
    }

    fn join_delta(&mut self, mine: &impl Seen, delta: &Self, gone: &DotSet, empty: Empty) {
        both!(self, delta, a, b => a.join_delta(mine, b, gone, empty));
    }

    fn forget(&mut self, gone: &impl Seen) {
        each!(self, inner => inner.forget(gone));
    }

    fn meets(&self, seen: &impl Seen) -> bool {
        each!(self, inner => inner.meets(seen))
    }

    fn each_dot(&self, f: &mut dyn FnMut(Dot)) {
        each!(self, inner => inner.each_dot(f));
    }

    fn only(&self, dots: &DotSet) -> Self {
        each!(self, inner => inner.only(dots).into())
    }

    fn places(&self, delta: &Self, gone: &DotSet) -> Option<Self> {
        both!(self, delta, a, b => a.places(b, gone).map(Into::into))
    }

    fn encode(&self, writer: &mut LayoutWriter) {
        each!(self, inner => inner.encode(writer));
    }

    /// Reads a store of the variant that the shape has. The bytes contain no variant, so bytes of
    /// another shape may be read as this one.
    fn decode(reader: &mut LayoutReader<'_>, shape: &Shape) -> Result<Self, DecodeError> {
        Ok(match Self::empty(shape) {
            Self::Unit(_) => Self::Unit(DotStore::decode(reader, shape)?),
            Self::Total(_) => Self::Total(DotStore::decode(reader, shape)?),
            Self::Net(_) => Self::Net(DotStore::decode(reader, shape)?),
            Self::Register(_) => Self::Register(DotStore::decode(reader, shape)?),
            Self::Plain(_) => Self::Plain(DotStore::decode(reader, shape)?),
            Self::Set(_) => Self::Set(DotStore::decode(reader, shape)?),
            Self::Registers(_) => Self::Registers(DotStore::decode(reader, shape)?),
            Self::Map(_) => Self::Map(Box::new(DotStore::decode(reader, shape)?)),
        })
    }
}
