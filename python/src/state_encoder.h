#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "src/known_state.h"
#include "src/numpy_arrays.h"
#include "src/torch_tensors.h"

namespace cairn::python {

/// Walks a nested Python state once: arrays become described tensors, all else JSON (state.json,
/// docs/format/state.md). Containers, plain values, plain NumPy arrays and plain tensors of torch
/// are done here; for anything else Python is asked. For one state; needs the GIL.
class StateEncoder {
 public:
  explicit StateEncoder(StateLayout layout);

  /// Describes the state. Raises cairn.Invalid, naming the place, for what cannot be stored.
  /// `other(value, path, depth)` gives JSON text, or a tuple (text before, value, text after) with
  /// a value to walk instead; `key(key, path)` gives the JSON text of a dict's key that is no str.
  /// `known` (may be null) learns what is found.
  void Encode(nanobind::handle state, const nanobind::callable& other,
              const nanobind::callable& key, const TorchTensors& torch, KnownState* known);
  /// The same for a state that differs from the known one in values alone; false: it does not, and
  /// another encoder is to be asked to encode it.
  bool EncodeKnown(nanobind::handle state, const nanobind::callable& other,
                   const TorchTensors& torch, KnownState* known);

  // For `other`.
  /// A name that no tensor has yet. Raises cairn.Invalid when it is no valid unicode.
  std::string UniqueName(std::string name);
  /// Which file an array at this path belongs into.
  TensorGroup GroupOf(std::string_view path) const;
  std::string TensorName(std::string_view path, TensorGroup group) const;
  /// A tensor as ToTensors wants it; `keep` owns its memory.
  void Add(nanobind::handle described, nanobind::handle keep, std::uint64_t bytes);

  const std::string& json() const { return json_; }  // of the state
  std::string TakeJson() { return std::move(json_); }
  /// Hands the tensors over.
  std::vector<Tensor> TakeTensors() { return std::move(tensors_); }
  nanobind::list keep() const { return keep_; }
  std::uint64_t bytes() const { return bytes_; }
  /// Of all the arrays' content; with the JSON it tells whether a state was changed.
  std::string Digest() const;

 private:
  /// An array that was described: where its Tensor stands, and the one described before that has
  /// the same memory.
  struct Seen {
    std::size_t index;
    bool written_here;
    bool torch;  // else NumPy
    std::size_t before;
  };

  void Node(nanobind::handle value, int depth);
  void Container(nanobind::handle value, int depth);
  void Dict(nanobind::handle value, int depth);
  /// So many values come next, which may be arrays.
  void Expect(std::size_t count);
  void ItemsOfDict(const nanobind::object& items, const char* tag, int depth);
  void Sequence(nanobind::handle value, int depth);
  void Other(nanobind::handle value, int depth);
  bool Array(nanobind::handle value);
  bool TorchTensor(nanobind::handle value);
  /// An array of either kind, at the place where we are: its dtype, shape and data are known.
  /// `keep` owns its memory; `note` is what the file does not say of it, as JSON members.
  void AddArray(Tensor tensor, StateTrace::Step step, std::uint64_t bytes, nanobind::handle keep);
  /// Which of seen_ is stored already, as this one: the same memory, seen the same way.
  std::optional<std::size_t> Tied(const Tensor& tensor, bool torch) const;
  const Tensor& TensorOf(const Seen& seen) const {
    return seen.written_here ? tensors_[seen.index] : of_others_[seen.index];
  }
  void NoteText(std::size_t begin, StateTrace::Kind kind = StateTrace::Kind::kText);
  void NoteContainer(StateTrace::Kind kind, std::size_t count);
  void NoteKey(nanobind::handle key);
  std::string MakeUnique(std::string name);
  /// Walks `value` with `key` added to the path.
  void Child(std::string_view key, nanobind::handle value, int depth);

  const StateLayout layout_;
  nanobind::handle other_;  // while Encode runs: to own them would make a cycle
  nanobind::handle key_;
  const TorchTensors* torch_ = nullptr;
  const nanobind::object ordered_dict_;
  NumpyArrays* const arrays_;  // of the process
  std::string json_;
  std::string path_;
  std::vector<PyObject*> open_;  // containers around the place where we are
  std::unordered_set<std::string> names_{"__metadata__"};
  std::vector<Tensor> tensors_;
  std::vector<Tensor> of_others_;  // arrays that another participant writes
  std::vector<Seen> seen_;
  std::unordered_map<const void*, std::size_t> by_memory_;  // → the last of seen_
  nanobind::list keep_;
  std::uint64_t bytes_ = 0;
  bool asked_ = false;               // `other` described something itself
  std::optional<StateTrace> trace_;  // of the walk, where somebody wants it
};

void DefineStateEncoder(nanobind::module_& module);

}  // namespace cairn::python
