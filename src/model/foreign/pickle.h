#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

namespace cairn {

/// What a pickle builds. Nothing is ever called: a call stays a description of itself, which the
/// reader of a format understands or refuses.
struct PickleValue {
  enum class Kind : std::uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kBytes,
    kList,
    kTuple,
    kDict,  // items: key, value, key, value, …
    kSet,
    kGlobal,      // text: "module.name"
    kCall,        // of `callee` with `arguments`; later BUILD gives `state`, SETITEMS items
    kPersistent,  // a reference outside of the pickle: `arguments` says to what
    kHuge,        // an integer of more than 64 bits
  };
  Kind kind = Kind::kNone;
  std::int64_t integer = 0;  // also of kBool
  double number = 0;
  std::string_view text;             // of kText and kGlobal
  std::span<const std::byte> bytes;  // of kBytes
  std::vector<const PickleValue*> items;
  const PickleValue* callee = nullptr;
  const PickleValue* arguments = nullptr;
  const PickleValue* state = nullptr;

  bool Calls(std::string_view global) const {
    return kind == Kind::kCall && callee->kind == Kind::kGlobal && callee->text == global;
  }
  /// The items of a list or a tuple; empty for anything else.
  std::span<const PickleValue* const> Sequence() const;
};

/// A decoded pickle. Its values point into each other, perhaps in circles, and into the bytes it
/// was decoded from, which must outlive it: who walks over them bounds depth and number of steps.
class Pickle {
 public:
  Pickle() = default;
  Pickle(Pickle&&) = default;
  Pickle& operator=(Pickle&&) = default;

  const PickleValue& root() const { return *root_; }
  /// How many bytes of the input the pickle took.
  std::size_t size() const { return size_; }

 private:
  friend class PickleDecoder;
  std::deque<PickleValue> values_;  // deques: values are pointed to
  std::deque<std::string> texts_;
  const PickleValue* root_ = nullptr;
  std::size_t size_ = 0;
};

/// Decodes a pickle of protocol 0 to 5 without running anything. `allowed` says which names
/// ("module.name") it may mention; any other is refused by name (InvalidArgument). Opcodes that
/// exist only to run code are refused too. Corruption for damaged bytes.
Result<Pickle> DecodePickle(std::span<const std::byte> bytes,
                            bool (*allowed)(std::string_view global));

}  // namespace cairn
