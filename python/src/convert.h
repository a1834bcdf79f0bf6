#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/value.h>

namespace cairn::python {

/// Python's None, bool, int, float, str, list, tuple, dict (with str keys) as a Value. Raises
/// cairn.Invalid, naming the place (`where`), for anything else and for integers over 64 bits.
Value ToValue(nanobind::handle object, const std::string& where);
nanobind::object FromValue(const Value& value);

/// "F32", …; raises cairn.Invalid for another word.
DType ToDType(nanobind::handle name);
/// A tuple of numbers that are not negative.
std::vector<std::uint64_t> ToDims(nanobind::handle tuple);

/// A tensor as the Python side describes it:
/// (name, dtype, shape, address, global_shape | None, offset | None, replicated, group).
/// The caller keeps the memory alive.
Tensor ToTensor(nanobind::handle tuple);
std::vector<MutableTensor> ToMutableTensors(nanobind::handle list);

/// The members as a dict of keyword arguments for the Python classes.
nanobind::object FromInfo(const CheckpointInfo& info);
nanobind::object FromOwned(OwnedTensor tensor);

}  // namespace cairn::python
