//! Decoding of messages from other nodes and tools within a memory budget.
//!
//! One byte of MessagePack can announce a list of four billion elements, or be an element that
//! takes hundreds of bytes in memory. [`from_foreign`] wraps the deserializer of rmp-serde: before
//! a list, a map, a text or a byte string takes memory, its size is subtracted from a budget of
//! [`BUDGET_FACTOR`] bytes for each byte of input and [`BUDGET_BYTES`] more. A message that exceeds
//! the budget is refused with an error that states the budget. An announced length reserves memory
//! only in [`list`] and its variants, after the whole length was charged.
//! Not charged: memory that a type allocates after its parts were decoded, and boxes outside lists.
//! Protocol types keep both small; `tests/decoders/memory.rs` measures the peak of each.

use std::cell::Cell;
use std::fmt::{self, Write};
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde::{Deserialize, de};

/// Bytes of memory that decoding may take for each byte of input.
pub const BUDGET_FACTOR: usize = 4;

/// Bytes of memory that decoding may take in addition, independent of the input's length. Short
/// lists need it: they take more than [`BUDGET_FACTOR`] bytes for each byte of input, because a
/// vector reserves at least 4 elements and a B-tree node 11. A list of 10,000 members, sorted into
/// a B-tree, also exceeds the factor, by a few bytes for each member.
pub const BUDGET_BYTES: usize = 64 * 1024;

/// Maximum length of an error's text in bytes. Longer text, which may quote the input, is cut.
const ERROR_BYTES_MAX: usize = 200;

/// Bytes of [`BUDGET_BYTES`] set aside for uncharged memory: an error's text, boxes outside lists.
const RESERVED: usize = 2 * 1024;

/// Maximum number of elements in a B-tree node of the standard library.
const NODE: usize = 11;

/// Estimated overhead of one allocation in bytes: allocator header, `Arc` counters or B-tree links.
const ALLOCATION: usize = 16;

/// Bytes that a [`packed_list`] charges for each text besides its length: where it ends.
const PACKED_OVERHEAD: usize = 4;

/// Marker names that [`list`] and its variants pass to the deserializer, so that [`BoundedInput`]
/// charges the announced length at once and reveals it as the size hint.
const EXACT: &str = "$ostraca::list";
const CHECKED: &str = "$ostraca::checked_list";

/// Marker name of a newtype struct that copies its encoded bytes into a growing buffer. It is
/// charged three times the length of the whole input, and its content is not charged again.
pub const VERBATIM: &str = "$ostraca::verbatim";

/// Marker name that [`PackedText`] passes to the deserializer.
const PACKED: &str = "$ostraca::packed_text";

/// Decodes a MessagePack value from a peer within the memory budget, with at most `nesting_max`
/// levels of nesting. Bytes after the value are ignored.
///
/// # Errors
/// The bytes do not encode a `T`, nest more than `nesting_max` levels, or exceed the memory budget.
/// Each is a `Syntax` error, so only its text tells them apart, cut at `ERROR_BYTES_MAX`.
pub fn from_foreign<T: DeserializeOwned>(
    bytes: &[u8],
    nesting_max: usize,
) -> Result<T, rmp_serde::decode::Error> {
    let budget = MemoryBudget::new(bytes.len());
    let mut decoder = rmp_serde::Deserializer::from_read_ref(bytes);
    decoder.set_max_depth(nesting_max);
    let decoded = T::deserialize(BoundedInput { inner: &mut decoder, budget: &budget });
    decoded.map_err(|fault| rmp_serde::decode::Error::Syntax(fault.0))
}

/// Decodes a list into a vector of exactly its length, for lists that may be long: a vector that
/// grows takes up to three times its elements. For `#[serde(deserialize_with = "list")]`.
///
/// # Errors
/// Those of the deserializer.
pub fn list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    from.deserialize_tuple_struct(EXACT, 0, ListVisitor(PhantomData::<(T, T)>))
}

/// Like [`list`], but converts each element. `T` and `U` should have the same size, because the
/// size of `T` is charged.
///
/// # Errors
/// Those of the deserializer.
pub fn converted_list<'de, T: Deserialize<'de> + Into<U>, U, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<U>, D::Error> {
    from.deserialize_tuple_struct(EXACT, 0, ListVisitor(PhantomData::<(T, U)>))
}

/// Like [`list`], for texts that the caller copies into one allocation. Returns them borrowed from
/// the input. A text is charged its length and four bytes for its place in that allocation, besides
/// the 16 bytes of its reference in the list.
///
/// # Errors
/// Those of the deserializer; also if it does not lend the texts from its input.
pub fn packed_list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<&'de str>, D::Error> {
    converted_list::<PackedText<'de>, _, _>(from)
}

/// An element of a [`packed_list`].
struct PackedText<'de>(&'de str);

impl<'de> From<PackedText<'de>> for &'de str {
    fn from(PackedText(text): PackedText<'de>) -> Self {
        text
    }
}

impl<'de> Deserialize<'de> for PackedText<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Borrowed;

        impl<'de> Visitor<'de> for Borrowed {
            type Value = &'de str;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<&'de str, E> {
                Ok(text)
            }

            /// Other deserializers than [`BoundedInput`] do not know the marker.
            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                from: D,
            ) -> Result<&'de str, D::Error> {
                Deserialize::deserialize(from)
            }
        }

        from.deserialize_newtype_struct(PACKED, Borrowed).map(Self)
    }
}

/// Like [`list`], but charges each element three times, and neither checks nor sorts it. For a list
/// that the caller sorts or copies into a map for its own check.
///
/// # Errors
/// Those of the deserializer.
pub fn checked_list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    from.deserialize_tuple_struct(CHECKED, 0, ListVisitor(PhantomData::<(T, T)>))
}

/// Like [`list`], but returns each element in an [`Arc`]. Each element is charged the size of `T`;
/// the 24 bytes of the `Arc` are not charged, so `T` should be large.
///
/// # Errors
/// Those of the deserializer.
pub fn shared_list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<Arc<T>>, D::Error> {
    converted_list::<T, _, _>(from)
}

/// Like [`list`], but decodes a map into a vector of its entries, in the order of the input, and
/// refuses a list. Entries with equal keys are all kept. Padding of an entry is not charged.
///
/// # Errors
/// Those of the deserializer.
pub fn entry_list<'de, K: Deserialize<'de>, V: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<(K, V)>, D::Error> {
    from.deserialize_struct(EXACT, &[], EntriesVisitor(PhantomData::<(K, V)>))
}

struct ListVisitor<X>(PhantomData<X>);

/// Maximum number of bytes reserved for announced elements, because a deserializer other than
/// [`BoundedInput`] announces lengths that were not charged. A longer vector grows as it is filled.
const UNCHARGED_BYTES_MAX: usize = 64 << 20;

/// Capacity for the first element and the `announced` remaining ones, which [`BoundedInput`] has
/// charged; 1 if the number is unknown. At most one element above [`UNCHARGED_BYTES_MAX`].
fn capacity<T>(announced: Option<usize>) -> usize {
    1 + announced.unwrap_or(0).min(UNCHARGED_BYTES_MAX / size_of::<T>().max(1))
}

struct EntriesVisitor<X>(PhantomData<X>);

impl<'de, T: Deserialize<'de> + Into<U>, U> Visitor<'de> for ListVisitor<(T, U)> {
    type Value = Vec<U>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    /// Reserves memory after the first element, with which [`BoundedParts`] charges the whole
    /// announced length. An empty list reserves none.
    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<U>, A::Error> {
        let Some(first) = elements.next_element::<T>()? else { return Ok(Vec::new()) };
        let mut list = Vec::with_capacity(capacity::<U>(elements.size_hint()));
        list.push(first.into());
        while let Some(element) = elements.next_element::<T>()? {
            list.push(element.into());
        }
        Ok(list)
    }
}

impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<(K, V)> {
    type Value = Vec<(K, V)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    /// Reserves memory after the first entry, as for a list.
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Vec<(K, V)>, A::Error> {
        let Some(first) = entries.next_entry()? else { return Ok(Vec::new()) };
        let mut list = Vec::with_capacity(capacity::<(K, V)>(entries.size_hint()));
        list.push(first);
        while let Some(entry) = entries.next_entry()? {
            list.push(entry);
        }
        Ok(list)
    }
}

/// Decoding error. Its text is cut at [`ERROR_BYTES_MAX`] bytes.
#[derive(Debug)]
struct DecodeFault(String); // ≤ ERROR_BYTES_MAX

impl fmt::Display for DecodeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DecodeFault {}

impl de::Error for DecodeFault {
    /// Formats the error, and cuts it after the last whole character that fits.
    fn custom<T: fmt::Display>(text: T) -> Self {
        struct Short(String);

        impl Write for Short {
            fn write_str(&mut self, part: &str) -> fmt::Result {
                let capacity = ERROR_BYTES_MAX - self.0.len();
                let mut end = part.len().min(capacity);
                while !part.is_char_boundary(end) {
                    end -= 1;
                }
                self.0.push_str(&part[..end]);
                if end < part.len() { Err(fmt::Error) } else { Ok(()) }
            }
        }

        let mut short = Short(String::new());
        let _ = write!(short, "{text}"); // an error means that the text was cut
        Self(short.0)
    }
}

/// Memory budget of one value. `left` is the number of bytes that decoding may still take.
struct MemoryBudget {
    left: Cell<usize>,
    input: usize,
}

impl MemoryBudget {
    fn new(input: usize) -> Self {
        let left = input.saturating_mul(BUDGET_FACTOR).saturating_add(BUDGET_BYTES - RESERVED);
        Self { left: Cell::new(left), input }
    }

    /// Subtracts `bytes` from the budget. If less is left, fails with an error that states the
    /// budget, and subtracts nothing.
    fn take<E: de::Error>(&self, bytes: usize) -> Result<(), E> {
        match self.left.get().checked_sub(bytes) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => Err(E::custom(format_args!(
                "{} bytes of input take more than {BUDGET_FACTOR} times their length and \
                 {BUDGET_BYTES} bytes of memory",
                self.input
            ))),
        }
    }
}

/// How the elements of a sequence or the entries of a map are stored, which decides their charge.
#[derive(Clone, Copy)]
enum Storage {
    /// A collection that grows with each element: a vector or a B-tree.
    Growing,
    /// A vector of the announced length.
    Exact,
    /// A vector of the announced length, and a copy of it in a map or a set.
    Checked,
    /// Fields of the value itself. Their memory was charged with the value that contains them.
    Inline,
    /// A text that is copied into an allocation with others.
    Packed,
}

/// A deserializer, seed or enum access of the inner format that charges the budget.
struct BoundedInput<'b, X> {
    inner: X,
    budget: &'b MemoryBudget,
}

impl<'b, X> BoundedInput<'b, X> {
    fn wrap<Y>(&self, inner: Y) -> BoundedInput<'b, Y> {
        BoundedInput { inner, budget: self.budget }
    }

    fn visitor<V>(&self, visitor: V, storage: Storage) -> BoundedVisitor<'b, V> {
        BoundedVisitor { visitor, storage, budget: self.budget }
    }
}

fn fault(error: impl fmt::Display) -> DecodeFault {
    DecodeFault::custom(error)
}

/// Methods that forward the visitor with the [`Storage`] of the elements or entries it receives.
macro_rules! forward {
    ($($method:ident($($argument:ident: $type:ty),*) -> $storage:ident;)*) => {$(
        fn $method<V: Visitor<'de>>(
            self,
            $($argument: $type,)*
            visitor: V,
        ) -> Result<V::Value, DecodeFault> {
            let visitor = self.visitor(visitor, Storage::$storage);
            self.inner.$method($($argument,)* visitor).map_err(fault)
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for BoundedInput<'_, D> {
    type Error = DecodeFault;

    forward! {
        deserialize_any() -> Growing;
        deserialize_bool() -> Growing;
        deserialize_i8() -> Growing;
        deserialize_i16() -> Growing;
        deserialize_i32() -> Growing;
        deserialize_i64() -> Growing;
        deserialize_i128() -> Growing;
        deserialize_u8() -> Growing;
        deserialize_u16() -> Growing;
        deserialize_u32() -> Growing;
        deserialize_u64() -> Growing;
        deserialize_u128() -> Growing;
        deserialize_f32() -> Growing;
        deserialize_f64() -> Growing;
        deserialize_char() -> Growing;
        deserialize_str() -> Growing;
        deserialize_string() -> Growing;
        deserialize_bytes() -> Growing;
        deserialize_byte_buf() -> Growing;
        deserialize_option() -> Growing;
        deserialize_unit() -> Growing;
        deserialize_unit_struct(name: &'static str) -> Growing;
        deserialize_seq() -> Growing;
        deserialize_map() -> Growing;
        deserialize_tuple(len: usize) -> Inline;
        deserialize_enum(name: &'static str, variants: &'static [&'static str]) -> Inline;
    }

    /// Decodes a list if `name` is one of the marker names of [`list`]; `len` is then ignored. Any
    /// other name is that of a real struct, whose size was charged with the value that contains it.
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeFault> {
        let storage = match name {
            EXACT => Storage::Exact,
            CHECKED => Storage::Checked,
            _ => {
                let visitor = self.visitor(visitor, Storage::Inline);
                return self.inner.deserialize_tuple_struct(name, len, visitor).map_err(fault);
            }
        };
        let visitor = self.visitor(visitor, storage);
        self.inner.deserialize_seq(visitor).map_err(fault)
    }

    /// Charges a [`VERBATIM`] struct three times the whole input and decodes it with the bare
    /// visitor; a second one in the same input is charged again. Decodes a [`PACKED`] one as a
    /// text. Any other name is ignored: its content is charged like a value without the struct.
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeFault> {
        if name == PACKED {
            let visitor = self.visitor(visitor, Storage::Packed);
            return self.inner.deserialize_str(visitor).map_err(fault);
        }
        if name == VERBATIM {
            self.budget.take::<DecodeFault>(3 * self.budget.input)?;
            return self.inner.deserialize_newtype_struct(name, visitor).map_err(fault);
        }
        let visitor = self.visitor(visitor, Storage::Growing);
        self.inner.deserialize_newtype_struct(name, visitor).map_err(fault)
    }

    /// Decodes the map of [`entry_list`] if `name` is its marker name. Any other name is that of a
    /// real struct, whose size was charged with the value that contains it.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeFault> {
        if name == EXACT {
            let visitor = self.visitor(visitor, Storage::Exact);
            return self.inner.deserialize_map(visitor).map_err(fault);
        }
        let visitor = self.visitor(visitor, Storage::Inline);
        self.inner.deserialize_struct(name, fields, visitor).map_err(fault)
    }

    /// The name of a field or a variant is only compared, so it is not charged.
    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFault> {
        let visitor = self.visitor(visitor, Storage::Inline);
        self.inner.deserialize_identifier(visitor).map_err(fault)
    }

    /// Ignored values take no memory, so they are not charged.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFault> {
        self.inner.deserialize_ignored_any(visitor).map_err(fault)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

struct BoundedVisitor<'b, V> {
    visitor: V,
    storage: Storage,
    budget: &'b MemoryBudget,
}

impl<'b, V> BoundedVisitor<'b, V> {
    /// Charges a text or a byte string: its length rounded up to 8 bytes and [`ALLOCATION`]; in a
    /// [`packed_list`] its length and [`PACKED_OVERHEAD`]. With [`Storage::Inline`] it is the name
    /// of a field or a variant, which is not stored and costs nothing.
    fn charge<E: de::Error>(&self, len: usize) -> Result<(), E> {
        match self.storage {
            Storage::Inline => Ok(()),
            Storage::Packed => self.budget.take(len + PACKED_OVERHEAD),
            Storage::Growing | Storage::Exact | Storage::Checked => {
                self.budget.take(len.next_multiple_of(8) + ALLOCATION)
            }
        }
    }

    fn parts<X>(&self, inner: X) -> BoundedParts<'b, X> {
        BoundedParts { inner, storage: self.storage, count: 0, left: None, budget: self.budget }
    }
}

/// Methods of a visitor for a value of fixed size.
macro_rules! plain {
    ($($method:ident($type:ty);)*) => {$(
        fn $method<E: de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.visitor.$method(value)
        }
    )*};
}

/// Charges a text or a byte string before the wrapped visitor gets it, and passes values of fixed
/// size on without a charge. Nested values get a deserializer that charges the same budget.
impl<'de, V: Visitor<'de>> Visitor<'de> for BoundedVisitor<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    plain! {
        visit_bool(bool);
        visit_i8(i8);
        visit_i16(i16);
        visit_i32(i32);
        visit_i64(i64);
        visit_i128(i128);
        visit_u8(u8);
        visit_u16(u16);
        visit_u32(u32);
        visit_u64(u64);
        visit_u128(u128);
        visit_f32(f32);
        visit_f64(f64);
        visit_char(char);
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<V::Value, E> {
        self.charge::<E>(text.len())?;
        short(self.visitor.visit_str(text))
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<V::Value, E> {
        self.charge::<E>(text.len())?;
        short(self.visitor.visit_borrowed_str(text))
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<V::Value, E> {
        self.charge::<E>(bytes.len())?;
        short(self.visitor.visit_bytes(bytes))
    }

    fn visit_borrowed_bytes<E: de::Error>(self, bytes: &'de [u8]) -> Result<V::Value, E> {
        self.charge::<E>(bytes.len())?;
        short(self.visitor.visit_borrowed_bytes(bytes))
    }

    fn visit_none<E: de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let bounded = BoundedInput { inner, budget: self.budget };
        self.visitor.visit_some(bounded).map_err(D::Error::custom)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let bounded = BoundedInput { inner, budget: self.budget };
        self.visitor.visit_newtype_struct(bounded).map_err(D::Error::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let parts = self.parts(inner);
        self.visitor.visit_seq(parts).map_err(A::Error::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let parts = self.parts(inner);
        self.visitor.visit_map(parts).map_err(A::Error::custom)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let bounded = BoundedInput { inner, budget: self.budget };
        self.visitor.visit_enum(bounded).map_err(A::Error::custom)
    }
}

/// Converts the error of a visitor. [`DecodeFault`] cuts its text, because it may quote the input.
fn short<T, E: de::Error>(result: Result<T, DecodeFault>) -> Result<T, E> {
    result.map_err(E::custom)
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for BoundedInput<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        let bounded = self.wrap(inner);
        self.inner.deserialize(bounded).map_err(D::Error::custom)
    }
}

/// The elements of a sequence or the entries of a map.
struct BoundedParts<'b, X> {
    inner: X,
    storage: Storage,
    count: usize,        // of elements or entries so far
    left: Option<usize>, // announced parts from the current one on, which is included
    budget: &'b MemoryBudget,
}

impl<X> BoundedParts<'_, X> {
    /// The announced number of parts if it was charged; `None` for a collection that grows.
    fn announced(&self, parts: Option<usize>) -> Option<usize> {
        match self.storage {
            Storage::Exact | Storage::Checked => parts,
            Storage::Growing | Storage::Inline | Storage::Packed => None,
        }
    }

    /// Counts and charges the next element or entry before it is decoded, unless `left`, the
    /// announced number from it on, is zero. Stores `left`. With an unknown number (`None`) also
    /// the end of the collection is charged as a part. For a map, `bytes` is the size of the key.
    fn next_part(&mut self, left: Option<usize>, bytes: usize) -> Result<(), DecodeFault> {
        self.left = left;
        if left == Some(0) {
            return Ok(());
        }
        self.count += 1;
        self.charge(bytes)
    }

    /// Charges the current part, which takes `bytes` bytes. An entry of a map is charged twice, for
    /// its key and for its value.
    ///
    /// Parts of [`Storage::Inline`] are free. Each part of [`Storage::Growing`] is charged its
    /// share of the collection's peak, whatever was announced: the first one for a B-tree node, a
    /// later one for two or three copies of itself. With [`Storage::Exact`] and
    /// [`Storage::Checked`] the first part is charged for all announced ones, and later ones are
    /// free; without an announced length each part is charged once, or for [`Storage::Checked`]
    /// three times, as for a growing collection.
    fn charge(&self, bytes: usize) -> Result<(), DecodeFault> {
        let growth = || match self.count {
            1 => NODE * bytes + ALLOCATION,
            2..NODE => 2 * bytes, // with the first part's charge: a growing vector's peak
            _ => 3 * bytes + ALLOCATION / 2,
        };
        let copies = match self.storage {
            Storage::Inline => return Ok(()),
            Storage::Growing | Storage::Packed => return self.budget.take(growth()),
            Storage::Exact => 1,
            Storage::Checked => 3,
        };
        match self.left {
            None => self.budget.take(copies * growth()),
            Some(left) if self.count == 1 => {
                self.budget.take(left.saturating_mul(copies * bytes).saturating_add(ALLOCATION))
            }
            Some(_) => Ok(()),
        }
    }
}

/// Charges each element before it is decoded. The size hint is `None` if the length was not
/// charged.
impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for BoundedParts<'_, A> {
    type Error = DecodeFault;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DecodeFault> {
        self.next_part(self.inner.size_hint(), size_of::<S::Value>())?;
        let seed = BoundedInput { inner: seed, budget: self.budget };
        self.inner.next_element_seed(seed).map_err(fault)
    }

    fn size_hint(&self) -> Option<usize> {
        self.announced(self.inner.size_hint())
    }
}

/// Charges each key before it is decoded, then its value. The size hint is `None` if the length was
/// not charged.
impl<'de, A: MapAccess<'de>> MapAccess<'de> for BoundedParts<'_, A> {
    type Error = DecodeFault;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DecodeFault> {
        self.next_part(self.inner.size_hint(), size_of::<S::Value>())?;
        let seed = BoundedInput { inner: seed, budget: self.budget };
        self.inner.next_key_seed(seed).map_err(fault)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<S::Value, DecodeFault> {
        self.charge(size_of::<S::Value>())?;
        let seed = BoundedInput { inner: seed, budget: self.budget };
        self.inner.next_value_seed(seed).map_err(fault)
    }

    fn size_hint(&self) -> Option<usize> {
        self.announced(self.inner.size_hint())
    }
}

/// Passes the name of the variant on, and wraps the access to its content.
impl<'de, 'b, A: EnumAccess<'de>> EnumAccess<'de> for BoundedInput<'b, A> {
    type Error = DecodeFault;
    type Variant = BoundedInput<'b, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), DecodeFault> {
        let budget = self.budget;
        let (value, inner) =
            self.inner.variant_seed(BoundedInput { inner: seed, budget }).map_err(fault)?;
        Ok((value, BoundedInput { inner, budget }))
    }
}

/// The fields of a variant are part of the value, whose size was charged with its container, so
/// only the texts, lists and maps in them are charged.
impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for BoundedInput<'_, A> {
    type Error = DecodeFault;

    fn unit_variant(self) -> Result<(), DecodeFault> {
        self.inner.unit_variant().map_err(fault)
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<S::Value, DecodeFault> {
        let seed = self.wrap(seed);
        self.inner.newtype_variant_seed(seed).map_err(fault)
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeFault> {
        let visitor = self.visitor(visitor, Storage::Inline);
        self.inner.tuple_variant(len, visitor).map_err(fault)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeFault> {
        let visitor = self.visitor(visitor, Storage::Inline);
        self.inner.struct_variant(fields, visitor).map_err(fault)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Serialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Long {
        #[serde(deserialize_with = "list")]
        pairs: Vec<(u64, u64)>,
        name: Option<String>,
    }

    fn bytes(value: &impl Serialize) -> Vec<u8> {
        rmp_serde::to_vec_named(value).expect("plain data")
    }

    #[test]
    fn values_within_the_budget_decode() {
        let long = Long { pairs: vec![(u64::MAX, 7); 50_000], name: Some("a".repeat(3_000)) };
        assert_eq!(from_foreign::<Long>(&bytes(&long), 8).ok(), Some(long));
        let map = BTreeMap::from([("a".to_owned(), vec![1_u8, 2]), ("b".to_owned(), vec![])]);
        assert_eq!(from_foreign(&bytes(&map), 8).ok(), Some(map));
    }

    #[test]
    fn small_elements_beyond_the_budget_are_refused() {
        let nothing = [&[0xdc, 0xff, 0xff][..], &[0xc0; 0xffff]].concat();
        let refusal = |error: rmp_serde::decode::Error| error.to_string();
        let error = from_foreign::<Vec<Option<[u64; 9]>>>(&nothing, 8).map_err(refusal);
        assert_eq!(
            error,
            Err("65538 bytes of input take more than 4 times their length and 65536 bytes of \
                 memory"
                .to_owned())
        );
    }

    #[test]
    fn an_announced_length_alone_takes_no_memory() {
        let announced = [0x81, 0xa5, b'p', b'a', b'i', b'r', b's', 0xdd, 0xff, 0xff, 0xff, 0xff];
        let error = from_foreign::<Long>(&announced, 8).expect_err("no element is there");
        assert!(error.to_string().contains("take more than"), "{error}");
    }

    #[test]
    fn error_that_quotes_a_long_text_is_cut() {
        let text = bytes(&"\u{1}".repeat(100_000));
        let error = from_foreign::<u64>(&text, 8).expect_err("a text is no number");
        assert!(error.to_string().len() <= ERROR_BYTES_MAX, "{error}");
    }
}
